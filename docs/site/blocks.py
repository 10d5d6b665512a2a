"""The code blocks of the documentation: found, run, compared, and the pictures that they draw.

A page is one program: its ```python blocks run in order, in one module. Around them a page may have

- ```text directly after a block: what the block prints. Words are compared exactly, numbers with a
  point or an exponent to 1% or to one unit of their last digit, and `...` stands for anything. What
  somebody wrote, and nothing computed, is compared exactly, too: versions such as 1.2.3, all that
  is in quotes, and values of arguments (`b1=0.9`) and of JSON (`"b1": 0.9`).
- `![...](pictures/PAGE/NAME.svg)` directly after a block: a picture that the block saves as
  NAME.svg in the folder in which it runs, for example with `figure.savefig("NAME.svg")`. PAGE is
  the page's own name, without `.md`, and the path is relative to the page.
- `=== "Title"`: a tab, whose blocks run in a copy of the page's module.
- ```python title="NAME.py": a program, which is written to NAME.py and does not run by itself.
- ```console: lines that begin with `$ python -m gradxform` run as commands, and print what follows.
- ```py: a fragment, which does not run.

The tests of the documentation run every page, and the site's build runs those with pictures.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import types
from collections.abc import Iterator

from tests import quick_compiling

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r'^( *)(`{3,})(\w*)(?:[ \t]+title="([^"]*)")?[^`\n]*$')
TAB = re.compile(r'^( *)={3}[!+]* "([^"]*)"')
PICTURE = re.compile(r"^ *!\[[^\]]*\]\((pictures/[^)\s]+)\)")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+(?=e[-+]?\d))(?:e[-+]?\d+)?(?!\w|\.\d)")
# What is written and not computed: one unit of the last digit would let 0.8 pass for 0.9.
WRITTEN = re.compile(r'"[^"\n]*"(?:: [-+.\de]+)?|\'[^\'\n]*\'|\b[A-Za-z_]\w*=[-+.\de]+')


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    language: str
    title: str  # of a program: the file's name
    code: str  # without the indentation of the block
    line: int  # of its first line of code; the page's first line is 1
    tab: tuple[int, str] | None  # the line and the title of the tab that it is in
    shown: "Block | None" = None  # the ```text block directly after it
    pictures: tuple[str, ...] = ()  # paths, as the page has them, of the pictures after it


@dataclasses.dataclass(frozen=True)
class Ran:
    """What came of one block."""

    block: Block
    printed: str
    seconds: float  # of the clock, or of the processor where that is less: others may use it too


class PageError(Exception):
    """A block that failed, or did not print or draw what the page shows."""


def pages() -> list[pathlib.Path]:
    """Return the pages whose code runs: the README and all Markdown files of the folder docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def find(text: str) -> list[Block]:
    """Return the blocks of a page, in order; those that show an output are part of their block."""
    found: list[Block] = []
    lines = text.splitlines()
    tabs: list[tuple[int, int, str]] = []  # indentation, line, title
    near = False  # only empty lines, outputs and pictures are between here and the last block
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip(" "))
        tabs = [tab for tab in tabs if tab[0] < indent]
        if tab := TAB.match(line):
            tabs.append((indent, at, tab[2]))
            near = False
        elif fence := FENCE.match(line):
            begin = at
            end = re.compile(rf" {{0,{indent + 3}}}`{{{len(fence[2])},}} *$")
            while at < len(lines) and not end.match(lines[at]):
                at += 1
            code = textwrap.dedent("\n".join(lines[begin:at]) + "\n")
            at += 1
            inside = tabs[-1][1:] if tabs else None
            block = Block(fence[3], fence[4] or "", code, begin + 1, inside)
            if block.language == "text" and near and found[-1].shown is None:
                found[-1] = dataclasses.replace(found[-1], shown=block)
            else:
                found.append(block)
                near = block.language == "python"
        elif near and (picture := PICTURE.match(line)):
            found[-1] = dataclasses.replace(found[-1], pictures=(*found[-1].pictures, picture[1]))
        else:
            near = False
    return found


# ------------------------------------------------------------------------------------- comparing


def same(shown: str, printed: str) -> bool:
    """Say whether a block printed what the page shows."""
    shown, pattern, numbers, at = shown.strip(), "", [], 0
    for number in [*_computed(shown), None]:
        words = shown[at : number.start() if number else None]
        pattern += r"\s+".join(
            ".*?".join(re.escape(part) for part in word.split("..."))
            for word in re.split(r"\s+", words)
        )
        if number:
            pattern += r"([-+]?[\d.]+(?:e[-+]?\d+)?)"
            numbers.append(number[0])
            at = number.end()
    match = re.fullmatch(rf"\s*{pattern}\s*", printed, re.DOTALL)
    return match is not None and all(map(_near, numbers, match.groups()))


def _computed(shown: str) -> list[re.Match[str]]:
    """Return the numbers that another processor may print otherwise."""
    written = {i for match in WRITTEN.finditer(shown) for i in range(*match.span())}
    return [number for number in NUMBER.finditer(shown) if number.start() not in written]


def _near(shown: str, printed: str) -> bool:
    digits, _, exponent = shown.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    try:
        x, y = float(shown), float(printed)
    except ValueError:
        return False
    return abs(x - y) <= max(1e-2 * abs(x), 1.001 * unit)


# --------------------------------------------------------------------------------------- running


def run(page: pathlib.Path, folder: pathlib.Path) -> list[Ran]:
    """Run the blocks of a page in this process, and compare what they print with what it shows.

    Args:
      page: the Markdown file.
      folder: an empty folder; the blocks run in it, and their files stay there.

    Raises:
      PageError: with the page and the line of the block that is wrong.
    """
    name = "docs_page_" + re.sub(r"\W", "_", str(page.with_suffix("")))
    modules: dict[tuple[int, str] | None, types.ModuleType] = {}
    ran = []
    before = os.environ.copy()
    try:
        with contextlib.chdir(folder):
            for block in find(page.read_text()):
                if block.language == "python" and block.title:
                    pathlib.Path(block.title).write_text(block.code)
                elif block.language == "python":
                    if block.tab not in modules:
                        suffix = f"_{len(modules)}" if modules else ""
                        module = types.ModuleType(name + suffix)
                        if None in modules:  # a tab begins with what the page has so far
                            module.__dict__.update(vars(modules[None]), __name__=name + suffix)
                        modules[block.tab] = sys.modules[name + suffix] = module
                    ran.append(_run_block(page, block, vars(modules[block.tab])))
                elif block.language == "console":
                    ran.extend(_run_console(page, block))
    finally:
        os.environ.clear()
        os.environ.update(before)
        for module in modules.values():
            sys.modules.pop(module.__name__, None)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
    return ran


def _run_block(page: pathlib.Path, block: Block, namespace: dict[str, object]) -> Ran:
    where = f"{page.name}, line {block.line}"
    printed = io.StringIO()
    began = time.monotonic(), time.process_time()
    try:
        # Empty lines above it, so that tracebacks have the lines of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except Exception as error:  # the code of a page may raise anything
        raise PageError(f"{where}: the block ends with {type(error).__name__}: {error}") from error
    seconds = min(time.monotonic() - began[0], time.process_time() - began[1])
    if block.shown is not None and not same(block.shown.code, printed.getvalue()):
        raise PageError(
            f"{where}: the block does not print what the page shows.\n"
            f"--- shown\n{block.shown.code}--- printed\n{printed.getvalue()}"
        )
    for picture in block.pictures:
        if pathlib.PurePosixPath(picture).parts[1:-1] != (page.stem,):
            raise PageError(f"{where}: the picture {picture} is not in pictures/{page.stem}/.")
        file = pathlib.Path(picture).name
        if not pathlib.Path(file).is_file():
            raise PageError(f"{where}: the block does not save the picture {file}.")
    return Ran(block, printed.getvalue(), seconds)


def _run_console(page: pathlib.Path, block: Block) -> Iterator[Ran]:
    """Run the commands of a block that are gradxform's own, each with what it prints below it."""
    for part in re.split(r"^(?=\$ )", block.code, flags=re.MULTILINE):
        command, _, shown = part.removeprefix("$ ").partition("\n")
        if not part.startswith("$ python -m gradxform "):
            continue
        began = time.monotonic()
        # The same environment, but with this checkout, and one device.
        env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *shlex.split(command)[1:]],
            env=env | {"COLUMNS": "100"},
            capture_output=True,
            text=True,
        )
        if (shown.strip() and not same(shown, done.stdout + done.stderr)) or (
            done.returncode and not shown.strip()
        ):
            raise PageError(
                f"{page.name}, line {block.line}: `{command}` ends with {done.returncode}.\n"
                f"--- shown\n{shown}--- printed\n{done.stdout}{done.stderr}"
            )
        yield Ran(block, done.stdout, time.monotonic() - began)


# -------------------------------------------------------------------------------------- pictures


def environment() -> dict[str, str]:
    """Return the environment in which pages run: eight CPU devices, Keras on JAX, no display.

    Their programs compile soon rather than run fast, which takes half the time.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        flags += f" --xla_force_host_platform_device_count=8 {quick_compiling.xla_flags()}"
    return {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "MPLBACKEND": "agg",
        "XLA_FLAGS": flags.strip(),
    }


def pictures(page: pathlib.Path, cache: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the pictures of a page: from their paths on the page to the files that were drawn.

    A page with pictures runs in a process of its own. Its files stay in the cache, under a key made
    of the page's code, the library's sources and the versions of what draws them; a second call
    with the same key runs nothing. A page without pictures does not run.

    Args:
      page: the Markdown file.
      cache: a folder, which is made where it does not exist.

    Raises:
      PageError: as in `run`.
    """
    found = find(page.read_text())
    named = [picture for block in found for picture in block.pictures]
    if not named:
        return {}
    key = hashlib.sha256(_sources().encode())
    key.update(json.dumps([dataclasses.asdict(block) for block in found]).encode())
    if any("benchmarks" in block.code for block in found):
        key.update(_measured().encode())
    home = cache.resolve() / f"{page.stem}-{key.hexdigest()[:16]}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="page-", dir=home.parent))
        done = subprocess.run(
            [sys.executable, __file__, str(page.resolve()), "--into", str(folder)],
            env=os.environ | environment() | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            shutil.rmtree(folder)
            raise PageError(done.stderr.strip())
        folder.replace(home)
    return {picture: home / pathlib.PurePosixPath(picture).name for picture in named}


@functools.cache
def _sources() -> str:
    """Return a digest of what pictures depend on beside the page's code."""
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for path in sorted((ROOT / "gradxform").rglob("*.py")):
        digest.update(path.read_bytes())
    for package in ("jax", "matplotlib"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()


@functools.cache
def _measured() -> str:
    """Return a digest of what pages show of the benchmarks, and of how they show it."""
    digest = hashlib.sha256()
    for folder, pattern in ((DOCS / "site" / "data", "*.json"), (ROOT / "benchmarks", "*.py")):
        for path in sorted(folder.rglob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> int:
    """Run one page into a folder, as `pictures` does in a process of its own."""
    parser = argparse.ArgumentParser(description="Run the code blocks of a page.")
    parser.add_argument("page", type=pathlib.Path, help="the Markdown file")
    parser.add_argument("--into", type=pathlib.Path, required=True, help="where its files go")
    args = parser.parse_args()
    try:
        ran = run(args.page.resolve(), args.into)
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{args.page}: {len(ran)} blocks, {sum(r.seconds for r in ran):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The tests that the change at hand concerns: they run in full in `make test`.

The change is what differs from the main branch: commits since then, edits and new files. Without
git, on no branch, or where nothing differs, it concerns no test.
"""

import functools
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

import pytest

from tests.environment import ROOT
from tests.project.names import said_by

MAIN = "origin/main", "main"
# A name that so many test files use does not say which of them a change concerns.
COMMON = 12
# It names many parts. What it tests of one of them is that one's rows.
BY_ROWS = "tests/test_contract.py"


def changed() -> list[PurePosixPath]:
    """Return the files that differ from the main branch."""
    try:
        if _git("symbolic-ref", "--quiet", "HEAD") is None:
            return []
        mains = [ref for ref in MAIN if _git("rev-parse", "--quiet", "--verify", ref)]
        base = _git("merge-base", "HEAD", mains[0]) if mains else None
    except OSError:  # git is not installed
        return []
    if base is None:
        return []
    differing = _git("diff", "--name-only", base[0]) or []
    new = _git("ls-files", "--others", "--exclude-standard") or []
    return sorted(map(PurePosixPath, {*differing, *new}))


def _git(*arguments: str) -> list[str] | None:
    """Return the lines that a command of git prints, or None where it fails."""
    argv = ["git", "-c", "core.quotePath=off", *arguments]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def concern(files: Iterable[PurePosixPath]) -> Callable[[pytest.Item], bool]:
    """Return whether a change of these files concerns a test."""
    files = list(files)
    tests = set().union(*map(test_files, files))
    rows = set().union(*map(rows_of, files))

    def concerns(item: pytest.Item) -> bool:
        if not tests and not rows:
            return False
        arguments = getattr(item, "callspec", None)
        row = arguments.params.get("name") if arguments else None
        return item.path.relative_to(ROOT).as_posix() in tests or row in rows

    return concerns


def test_files(file: PurePosixPath) -> set[str]:
    """Return the test files that name a file, its module or one of its rarer public names."""
    sources = _sources()
    if file.as_posix() in sources:
        return {file.as_posix()}
    if not file.suffix:
        return set()
    module = file.with_suffix("").as_posix()
    if module.startswith("tests/"):
        patterns = [re.escape(module.replace("/", "."))]
    else:
        place = re.escape("/".join(module.split("/")[-2:])).replace("/", "[./]")
        patterns = [place, *_rare(file)]
        if module.startswith("examples/"):
            patterns.append(rf"import {file.stem}")
    named = re.compile(rf"\b(?:{'|'.join([*patterns, re.escape(file.name)])})\b")
    same = {name for name in sources if PurePosixPath(name).name == f"test_{file.stem}.py"}
    naming = {name for name, source in sources.items() if named.search(source)}
    return (same | naming) - {BY_ROWS}


def rows_of(file: PurePosixPath) -> set[str]:
    """Return the rows of the catalogue that a change of a file concerns."""
    if file.parts[0] not in ("gradxform", "tests"):
        return set()
    public = set(_public(file))
    return {
        row
        for family, rows in _families().items()
        for row in rows
        if file.stem == family or row.partition("/")[0] in public
    }


def _families() -> dict[str, list[str]]:
    from tests import catalogue  # only where something has changed

    kinds = "TRANSFORMS", "WRAPPERS", "OPTIMIZERS"
    return {
        family: [row for kind in kinds for row in getattr(module, kind, {})]
        for family, module in catalogue.FAMILIES.items()
    }


def _rare(file: PurePosixPath) -> list[str]:
    """Return the public names of a file that few test files use."""
    texts = _sources().values()
    words = {name: re.compile(rf"\b{re.escape(name)}\b") for name in _public(file)}
    return [
        name for name, word in words.items() if sum(map(bool, map(word.search, texts))) < COMMON
    ]


def _public(file: PurePosixPath) -> list[str]:
    """Return the names that a file of the library makes public."""
    if file.suffix != ".py" or file.parts[0] != "gradxform" or not (ROOT / file).is_file():
        return []
    try:
        return said_by(".".join(file.with_suffix("").parts))
    except ValueError:  # its list is made while it runs
        return []


@functools.cache
def _sources() -> dict[str, str]:
    """Return the sources of all test files, by their places."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}

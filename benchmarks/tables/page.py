"""Write the figures of pages anew from the files of results: `make speed`.

A block of the page lies between `<!-- figures: NAME -->` and `<!-- end -->`; its content is the
tables of the section of that name, and the machine. Blocks without results stay as they are.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.options import Results
from benchmarks.sections.names import SECTIONS
from benchmarks.subjects.cases import OURS, THEIRS
from benchmarks.tables.figures import show_ratio, show_value
from benchmarks.timing import machine

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "benchmarks" / "results"
# The results of these pages are kept with them.
TPU_PAGE, TPU_RESULTS = ROOT / "docs" / "tpu.md", ROOT / "docs" / "site" / "data"
BACKWARD_PAGE = ROOT / "docs" / "guides" / "update_in_backward.md"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class _Tables(Console):
    """A console that keeps the tables that a section prints, and shows nothing."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.tables: list[Table] = []

    def print(self, *objects: Any, **kwargs: Any) -> None:
        """Keep the tables among what is printed."""
        self.tables += [x for x in objects if isinstance(x, Table)]


def optimizers(results: Results) -> list[str]:
    """Return the table of the section `optimizers`: ratios, and temporary memory in bytes."""
    lines = _head(["optimizer", "step", "trace + lower", "temp, ours / Optax's"])
    for case in results["cases"]:
        figures = case["figures"]
        step, trace = (
            show_ratio(figures[name]["ratio"]).rstrip("x") for name in ("step", "trace+lower")
        )
        temp = figures["temp"]
        ours, theirs = (_bytes(temp["median"][who]) for who in (OURS, THEIRS))
        lines.append(f"| {case['chain']} | {step} | {trace} | {ours} / {theirs} |")
    return lines


def _bytes(value: float) -> str:
    return re.sub(r"(?<=\d)(?=[a-zA-Z])", " ", show_value(value, "B")) if value else "0"


def tables(name: str, results: Results) -> list[str]:
    """Return the tables that a section prints, each below its title."""
    console = _Tables()
    SECTIONS[name].show(results, console)
    lines: list[str] = []
    for table in console.tables:
        if table.title:
            title = _plain(table.title)
            lines += [f"{title[0].upper()}{title[1:].rstrip(':')}:", ""]
        lines += _head([_plain(column.header) for column in table.columns])
        rows = zip(*(column.cells for column in table.columns), strict=True)
        lines += [f"| {' | '.join(map(_plain, row))} |" for row in rows]
        lines.append("")
    return lines[:-1]


def _plain(x: Any) -> str:
    return x.plain if isinstance(x, Text) else str(x)


def _head(titles: list[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]


def block(name: str, folder: Path) -> str | None:
    """Return the content of the block of a section; None without its results."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    results = json.loads(path.read_text())
    lines = optimizers(results) if name == "optimizers" else tables(name, results)
    where, of = machine.one_line(results["machine"]), results["machine"]
    how = f"Compiled by libtpu {of['libtpu']}" if "libtpu" in of else "Measured"
    said = f"{how} on {where}, at a load of {of['load']}."
    return "\n".join(["", *lines, "", said, "", ""])


def page(text: str, folder: Path) -> str:
    """Return the page with the blocks of the sections that have results in the folder."""

    def anew(match: re.Match[str]) -> str:
        content = block(match[2], folder)
        return match[0] if content is None else match[1] + content + match[3]

    return BLOCK.sub(anew, text)


def main(argv: list[str] | None = None) -> int:
    """Write the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables.page", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    kept = [(page, TPU_RESULTS) for page in (TPU_PAGE, BACKWARD_PAGE)]
    for path, folder in [(PAGE, parser.parse_args(argv).results), *kept]:
        path.write_text(page(path.read_text(), folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())

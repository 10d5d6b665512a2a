"""Write the tables of the guides; `python -m docs.site.from_pytorch.tables`.

A table stands in a page between `<!-- rows: NAME -->` and `<!-- end of rows -->`.
"""

import importlib
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from docs.site.cache import ROOT
from docs.site.from_pytorch import authors, other_libraries, torch_optim
from docs.site.from_pytorch.row import Row

GUIDES = ROOT / "docs" / "guides"
# The files whose rows are of `pytorch_optimizer`.
FAMILIES = (
    "adam_relatives",
    "curvature_and_sharpness",
    "less_memory",
    "matrices",
    "not_here",
    "projections_and_inertia",
    "pytorch_optimizer",
)


def of_families() -> list[Row]:
    """Return the rows of all families that exist, by name."""
    rows: list[Row] = []
    for family in FAMILIES:
        name = f"docs.site.from_pytorch.{family}"
        if importlib.util.find_spec(name):
            rows += importlib.import_module(name).ROWS
    return sorted(rows, key=lambda row: row.theirs.lower())


# By the page, and by the name of the table in it.
TABLES: dict[str, dict[str, Sequence[Row]]] = {
    "from_pytorch": {"torch.optim": torch_optim.ROWS},
    "from_pytorch_optimizer": {
        "pytorch_optimizer": of_families(),
        "timm": other_libraries.TIMM,
        "bitsandbytes": other_libraries.BITSANDBYTES,
        "HeavyBall": other_libraries.HEAVYBALL,
        "authors": authors.ROWS,
    },
}


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    lines = ["| there | gradxform | differs by at most | notes |", "| --- | --- | --- | --- |"]
    for row in rows:
        ours = f"`{row.ours}`" if row.ours else "not here"
        difference = "" if row.difference is None else f"{row.difference:.0e}"
        lines.append(f"| `{row.theirs}` | {ours} | {difference} | {row.text()} |")
    return "\n".join(lines)


def shown(page: str) -> list[tuple[Row, str, float | None]]:
    """Return the rows of a guide, each with the call and the number that stand in it."""
    text, found = path(page).read_text("utf-8"), []
    for name, rows in TABLES[page].items():
        part = text.split(f"<!-- rows: {name} -->\n")[1].split("<!-- end of rows -->")[0]
        for row, line in zip(rows, part.splitlines()[2:], strict=True):
            _, ours, difference, _ = re.split(r"(?<!\\)\|", line.strip("|"), maxsplit=3)
            call = "" if ours.strip() == "not here" else ours.strip().strip("`")
            found.append((row, call, float(difference) if difference.strip() else None))
    return found


def written(page: str) -> str:
    """Return the text of a guide with its tables written anew."""
    text = path(page).read_text("utf-8")
    for name, rows in TABLES[page].items():
        head = f"<!-- rows: {name} -->\n"
        pattern = re.escape(head) + ".*?(?=<!-- end of rows -->)"
        text, found = re.subn(
            pattern, lambda _, r=rows, h=head: h + table(r) + "\n", text, flags=re.S
        )
        if found != 1:
            raise ValueError(f"{page}: a table {name!r} is missing, or there twice.")
    return text


def path(page: str) -> Path:
    """Return where a guide is."""
    return GUIDES / f"{page}.md"


if __name__ == "__main__":
    for page in TABLES:
        path(page).write_text(written(page), "utf-8")

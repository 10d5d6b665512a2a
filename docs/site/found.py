"""What the guides say of other libraries, for `gx.find`; `python -m docs.site.found` writes it.

The rows are those of the tables of the guides, and the factories of `gradxform.compat`, each with
the names by which somebody may look for it.
"""

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from docs.site import elsewhere
from docs.site.from_pytorch import tables
from docs.site.from_pytorch.row import Row
from gradxform import compat
from gradxform.commands.finding.composition import definitions
from gradxform.commands.finding.elsewhere import DATA
from gradxform.commands.finding.lookup import without_links
from gradxform.values.docstrings import doc_of

# The library of each table of calls, and what stands before its names there.
LIBRARIES = {"torch.optim": "PyTorch"}
# Tables that are written by hand: by the page, the heads of those that say what to write here.
BY_HAND = {
    "guides/from_pytorch.md": {"PyTorch": "PyTorch"},
    "doors.md": {
        "What you wrote there": "TensorFlow and Keras",
        "What you wrote": "Keras",
        "What you wrote in Keras": "Keras",
    },
}
# Factories that are to be inherited from, and arguments that are needed in spite of a default.
BASES = {"BaseCustom"}
UNNAMED = {"AGN": ("optimizer",), "Tower": ("optimizer",)}
CODE = re.compile(r"`([^`]+)`")


def rows() -> list[dict[str, Any]]:
    """Return all rows, as `elsewhere.json` has them."""
    return [*_calls(), *_factories(), *_by_hand()]


def text() -> str:
    """Return the file."""
    lines = [json.dumps({k: x for k, x in row.items() if x}, ensure_ascii=False) for row in rows()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _row(library: str, there: str, names: list[str], page: str, **said: str) -> dict[str, Any]:
    return {"library": library, "there": there, "names": names, "page": page, **said}


# ------------------------------------------------------------------------- calls of PyTorch


def _calls() -> Iterator[dict[str, Any]]:
    """Yield the rows of the tables of calls, with the line and the number of the page."""
    for page in tables.TABLES:
        code = _code_of_the_rows(page)
        shown = iter(tables.shown(page))
        for table, of_table in tables.TABLES[page].items():
            for _ in of_table:
                row, line, difference = next(shown)
                compared = ""
                if difference is not None:
                    compared = (
                        "with twelve steps that were recorded there; the parameters are at most "
                        f"{difference:.0e} of their way apart"
                    )
                yield _row(
                    LIBRARIES.get(table, table),
                    f"{table}.{row.theirs}" if table in LIBRARIES else row.theirs,
                    [f"{table}.{name}" for name in _names_of(row)],
                    f"guides/{page}.md#{table.lower() if table not in LIBRARIES else 'optimizers'}",
                    line=line,
                    text=without_links(row.text()),
                    compared=compared,
                    definitions=definitions(line, code) if line else "",
                )


def _names_of(row: Row) -> list[str]:
    """Return the classes that a row is about: `A(lr)`, `A, B`, or an option `a="b"`."""
    if "(" in row.theirs:
        return re.findall(r"\w+", row.theirs.partition("(")[0])
    if "=" in row.theirs:
        return re.findall(r"^\w+", row.theirs)
    return re.findall(r"\w+", row.theirs)


def _code_of_the_rows(page: str) -> str:
    written = tables.path(page).read_text("utf-8")
    block = re.search(r"<!-- names of the rows -->\n+```python\n(.*?)```", written, re.S)
    return block[1] if block else ""


# ------------------------------------------------------------------------ factories of compat


def _factories() -> Iterator[dict[str, Any]]:
    """Yield the factories of `gradxform.compat` that are named as classes of other libraries."""
    for door, library in elsewhere.DOORS.items():
        module = getattr(compat, door)
        for name in sorted(filter(lambda x: x[0].isupper(), dir(module))):
            factory = getattr(module, name)
            ours = getattr(factory, "__module__", "").startswith("gradxform.")
            if not ours or not inspect.isfunction(factory) or name in BASES:
                continue
            doc = doc_of(factory)
            reference = CODE.search(doc.reference)
            there = reference[1] if reference else f"{door}.{name}"
            needed = [*_needed(factory), *UNNAMED.get(name, ())]
            yield _row(
                library,
                there,
                sorted({there, f"{door}.{name}"}),
                "doors.md",
                line=f"gx.compat.{door}.{name}({', '.join(needed)})",
                text=doc.summary,
            )


def _needed(factory: Any) -> Iterator[str]:
    """Yield the arguments that a call must have, as it writes them."""
    for p in inspect.signature(factory).parameters.values():
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            value = "lr" if p.name == "learning_rate" else p.name
            yield value if p.kind is p.POSITIONAL_OR_KEYWORD else f"{p.name}={value}"


# ------------------------------------------------------------------------- tables by hand


def _by_hand() -> Iterator[dict[str, Any]]:
    """Yield the rows of tables with two columns: what one writes there, and here."""
    for page, heads in BY_HAND.items():
        for head, there, here in _two_columns(page):
            names = [name for code in CODE.findall(there) for name in _named(code)]
            if head not in heads or not names:
                continue
            here = without_links(here)
            said = {"line": here.strip("`")} if CODE.fullmatch(here) else {"text": f"Here: {here}"}
            yield _row(heads[head], ", ".join(CODE.findall(there)), names, page, **said)


def _two_columns(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield the head of the first column, and both cells, of each row of such a table."""
    head = ""
    for line in (elsewhere.DOCS / page).read_text("utf-8").splitlines():
        if not line.startswith("|"):
            head = ""
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not head:
            head = cells[0]
        elif len(cells) == 2 and not set(line) <= set("|- "):
            yield head, cells[0].replace(r"\|", "|"), cells[1].replace(r"\|", "|")


def _named(code: str) -> list[str]:
    """Return the names that a piece of code calls or is, without variables such as `opt`."""
    found = re.findall(r"([A-Za-z_][\w.]*)\(", code)[:1] or re.findall(r"^[\w.]+$", code)
    return [re.sub(r"^(opt|optimizer|loss|model|p)\.", "", name) for name in found]


if __name__ == "__main__":
    DATA.write_text(text(), "utf-8")

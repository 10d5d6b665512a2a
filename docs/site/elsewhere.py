"""The same optimizer in other libraries: the call in each, and where it differs."""

import functools
import inspect
import pathlib
import posixpath
import re
from typing import Any, NamedTuple

from docs.site.code import cell, table
from gradxform import compat
from gradxform.values.docstrings import doc_of

DOCS = pathlib.Path(__file__).resolve().parents[1]
# The modules of `gradxform.compat`, and the library that each is for.
DOORS = {
    "keras3": "Keras 3",
    "keras": "Keras of TensorFlow 2",
    "tf1": "TensorFlow 1",
    "tf_contrib": "TensorFlow 1, contrib",
    "returnn": "RETURNN",
}
# Classes of other libraries that are not named as the optimizer here.
ALIASES = {
    "gradientdescent": "sgd",
    "momentum": "sgd",
    "momentumw": "sgdw",
    "proximalgradientdescent": "proximal_sgd",
    "adamgs": "adam",
    "customadam": "adam",
    "customgradientdescent": "sgd",
}
# The guides whose tables have four columns, and where their optimizers are, if not in the heading.
TORCH = {"guides/from_pytorch.md": "torch.optim", "guides/from_pytorch_optimizer.md": ""}


class Call(NamedTuple):
    """A call in another library."""

    library: str
    there: str  # Markdown
    here: str  # Markdown: the call with its numbers
    notes: str  # Markdown


class Row(NamedTuple):
    """A row of a table of a page, with links as they are written in a folder of `docs/`."""

    heading: str
    cells: tuple[str, ...]


def _links_from_a_folder(page: str, text: str) -> str:
    def moved(link: re.Match[str]) -> str:
        path, mark, place = link[1].partition("#")
        path = posixpath.join(posixpath.dirname(page), path) if path else page
        return f"](../{posixpath.normpath(path)}{mark}{place})"

    return re.sub(r"\]\((?![a-z]+:|/)([^)\s]+)\)", moved, text)


@functools.cache
def rows_of(page: str) -> tuple[Row, ...]:
    """Return the rows of the tables of a page, without their heads."""
    found, heading, head = [], "", True
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            head = True
        elif re.fullmatch(r"\|[\s|:-]+\|", line):
            head = False
        elif not head:
            line = _links_from_a_folder(page, line)
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            found.append(Row(heading, tuple(c.strip() for c in cells)))
    return tuple(found)


def _names(name: str, text: str) -> bool:
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text))


def _of_doors(name: str) -> list[Call]:
    found = []
    for door, library in DOORS.items():
        for factory_name, factory in vars(getattr(compat, door)).items():
            if not inspect.isfunction(factory) or not factory_name[0].isupper():
                continue
            plain = factory_name.lower().replace("_", "")
            if ALIASES.get(plain, plain) not in (name, name.replace("_", "")):
                continue
            doc = doc_of(factory)
            reference = doc.reference.rstrip(".") or f"`{factory_name}`"
            here = f"`gradxform.compat.{door}.{factory_name}`"
            found.append(Call(library, reference, here, doc.summary))
    return found


def _of_optax(name: str, part: Any) -> list[Call]:
    import optax
    import optax.contrib

    # What is deprecated at the top is in `contrib`.
    for module, prefix in ((optax.contrib, "optax.contrib"), (optax, "optax")):
        if hasattr(module, name):
            there = tuple(inspect.signature(getattr(module, name)).parameters)
            here = tuple(inspect.signature(part).parameters)
            more = [a for a in here if a not in there]
            notes = "the same arguments"
            if there[: len(here)] != here[: len(there)] or more:
                notes = "more arguments here: " + ", ".join(f"`{a}`" for a in more)
            notes = notes if more or there == here else "see the signatures"
            return [Call("Optax", f"`{prefix}.{name}`", f"`gx.{name}`", notes)]
    return []


def _of_torch(name: str) -> list[Call]:
    found = []
    for page, prefix in TORCH.items():
        for row in rows_of(page):
            there, here = (cell.strip("`") for cell in row.cells[:2])
            named = len(row.cells) == 4 and _names(f"gx.{name}", here.replace("gx.", " gx."))
            if named and row.cells[1] != "not here":
                library = prefix or row.heading
                found.append(Call("PyTorch", f"`{library}.{there}`", f"`{here}`", row.cells[3]))
    return found


def calls(name: str, part: Any) -> list[Call]:
    """Return the calls of other libraries that an optimizer stands for."""
    return [*_of_optax(name, part), *_of_doors(name), *_of_torch(name)]


def differences(names: list[str]) -> list[Row]:
    """Return the rows of the page of differences from Optax that name one of these parts."""
    return [
        row
        for row in rows_of("differences.md")
        if any(f"`{name}" in row.cells[0] and _names(name, row.cells[0]) for name in names)
    ]


def differences_markdown(names: list[str]) -> str:
    """Return these rows as a table, or ""."""
    rows = [[*row.cells, "", ""][:4] for row in differences(names)]
    return table(("where", "Optax", "gradxform", "why"), rows) if rows else ""


def calls_markdown(found: list[Call]) -> str:
    """Return the calls as a table."""
    rows = [(c.library, cell(c.there), c.here, c.notes) for c in found]
    return table(("library", "there", "here", ""), rows)

"""The code cells of a notebook as one program, and the notebook with changes in them.

A notebook is JSON. Only the texts that change are written anew, so that all else keeps every byte.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gradxform.commands.port.imports import Edit, with_edits
from gradxform.commands.port.magics import masked
from gradxform.commands.port.syntax import PortError, text_of, tree_of


class Cell(NamedTuple):
    """A code cell."""

    number: int  # among all cells, from 1
    source: str
    line: int  # of the program: the first line of the cell, from 1
    start: int  # in the program, in characters
    place: tuple[int, int]  # in the text of the notebook: from where to where its source stands


class Notebook(NamedTuple):
    """A notebook, and the program that its cells make together."""

    text: str
    cells: tuple[Cell, ...]
    program: str  # with a 0 in place of magics

    def cell_of(self, line: int) -> tuple[int, int]:
        """Return the number of the cell that has a line of the program, and the line in it."""
        cell = next(c for c in reversed(self.cells) if c.line <= line)
        return cell.number, line - cell.line + 1

    def changed(self, edits: Iterable[Edit]) -> str:
        """Return the text of the notebook with edits of the program in its cells."""
        edits, text = list(edits), self.text
        for cell in reversed(self.cells):
            end = cell.start + len(cell.source)
            cell_edits = [
                edit._replace(start=edit.start - cell.start, end=edit.end - cell.start)
                for edit in edits
                if cell.start <= edit.start and edit.end <= end
            ]
            if cell_edits:
                start, stop = cell.place
                new = _written_source(text[start:stop], with_edits(cell.source, cell_edits))
                text = text[:start] + new + text[stop:]
        return text


def read_notebook(path: pathlib.Path) -> Notebook:
    """Read a notebook; one of another language is read as one without cells.

    Raises:
      PortError: if it cannot be read, is not a notebook of format 4, or has a cell that is not
        Python.
    """
    text = text_of(path, "utf-8")
    try:
        book = json.loads(text)
        code = [_is_code(cell) for cell in book["cells"]]
        language = _language(book)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PortError(
            f"{path}: not a notebook of format 4; `jupyter nbconvert --to notebook` converts "
            "older ones."
        ) from None
    if language not in ("python", "ipython", ""):
        return Notebook(text, (), "")
    cells, program = [], ""
    # Places in the text, and not the cells of `book`: an edit must leave all else as it is.
    for i, place in sorted(_sources(text).items()):
        if i < len(code) and code[i]:
            content = json.loads(text[slice(*place)])
            source = content if isinstance(content, str) else "".join(content)
            cell = Cell(i + 1, source, program.count("\n") + 1, len(program), place)
            python = masked(source)
            tree_of(f"{path}, cell {cell.number}", python)
            cells.append(cell)
            program += f"{python}\n"
    return Notebook(text, tuple(cells), program)


def _is_code(cell: dict[str, Any]) -> bool:
    source = cell.get("source")
    is_text = isinstance(source, str) or all(isinstance(line, str) for line in source or [0])
    return cell["cell_type"] == "code" and is_text


def _language(book: dict[str, Any]) -> str:
    metadata = book.get("metadata") or {}
    named = metadata.get("language_info") or {}
    return (named.get("name") or (metadata.get("kernelspec") or {}).get("language") or "").lower()


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]')


def _sources(text: str) -> dict[int, tuple[int, int]]:
    """Return where in the text of a notebook the source of each cell stands."""
    path: list[Any] = []  # of the value at hand: a key, or the index in a list
    spans, start = {}, 0
    key = None
    for token in _TOKENS.finditer(text):
        word = token[0]
        is_source = len(path) == 3 and path[0] == "cells" and path[2] == "source"
        if word in "[{":
            if is_source:
                start = token.start()
            path.append(0 if word == "[" else None)
        elif word in "]}":
            path.pop()
            if len(path) == 3 and path[0] == "cells" and path[2] == "source":
                spans[path[1]] = (start, token.end())
        elif word == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif word == ":":
            path[-1] = key
        elif path and path[-1] is None:
            key = json.loads(word)
        elif is_source:
            spans[path[1]] = token.span()
    return spans


def _written_source(old: str, source: str) -> str:
    """Return a source as JSON, in the form of the old one; lines that are in both keep theirs."""
    ascii_only = old.isascii()

    def string(line: str) -> str:
        return json.dumps(line, ensure_ascii=ascii_only)

    if old.startswith('"'):
        return string(source)
    same = {json.loads(token): token for token in _strings(old)}
    lines = [same.get(line) or string(line) for line in source.splitlines(keepends=True)]
    inside = old[1:-1]
    before = inside[: len(inside) - len(inside.lstrip())]
    after = inside[len(inside.rstrip()) :]
    between = f",{before or ' '}"
    return f"[{before}{between.join(lines)}{after}]"


def _strings(text: str) -> Iterator[str]:
    return (token[0] for token in _TOKENS.finditer(text) if token[0].startswith('"'))

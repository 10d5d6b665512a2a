"""Changed imports: Optax's names from gradxform, and what is missing still from Optax."""

import ast
import difflib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gradxform.commands.port.names import MISSING, find_optax_name
from gradxform.commands.port.uses import Use, dotted_name, inner, is_optax

# What Optax is imported as where both are needed.
ORIGINAL = "original_optax"


class Edit(NamedTuple):
    """A replacement of a part of a line, or of several lines."""

    start: int  # in characters, from the beginning of the file
    end: int
    text: str


def with_changed_imports(source: str, tree: ast.Module, uses: list[Use]) -> str:
    """Return the source with its imports of Optax changed."""
    return with_edits(source, edits_of(source, tree, uses))


def with_edits(source: str, edits: Iterable[Edit]) -> str:
    """Return the source with edits made."""
    for edit in sorted(set(edits), reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


def edits_of(source: str, tree: ast.Module, uses: list[Use]) -> list[Edit]:
    """Return the edits that change the imports of Optax.

    A name that gradxform does not have keeps its import of Optax. If it is used as an attribute,
    as `optax.name`, Optax is imported as `original_optax` beside gradxform.
    """
    place = _locator(source)
    edits = []
    words = {word.id for word in ast.walk(tree) if isinstance(word, ast.Name)}
    of_optax: dict[str, list[Use]] = {}  # by the word in front: uses that must stay with Optax
    for use in uses:
        if use.root is not None and use.name and find_optax_name(use.name).status == MISSING:
            of_optax.setdefault(use.root.id, []).append(use)
    originals: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            lines = _changed(node, of_optax, words, originals)
        elif not node.level and is_optax(node.module):
            lines = _changed_from(node)
        else:
            continue
        if lines is not None:
            start, end = place(node.lineno, node.col_offset), place(*_end(node))
            line_start = place(node.lineno, 0)
            before = source[line_start:start]
            alone = not before.strip() and not source[end:].lstrip(" \t").startswith(";")
            separator = f"\n{before}" if alone else "; "
            edits.append(Edit(start, end, separator.join(lines)))
    for word, name in originals.items():
        for use in of_optax[word]:
            if use.root is not None and use.within != "import":
                start = place(use.root.lineno, use.root.col_offset)
                if source[start : start + len(word)] == word:  # not in the text of an annotation
                    edits.append(Edit(start, start + len(word), name))
    return edits


def diff_of_file(path: str, source: str, new: str) -> str:
    """Return a unified diff, "" if nothing changes."""
    old_lines, new_lines = source.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = difflib.unified_diff(old_lines, new_lines, path, path)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _end(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _locator(source: str) -> Callable[[int, int], int]:
    """Return a function from a line and a column in bytes to a place in the text."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        text = lines[line - 1] if line <= len(lines) else ""
        return starts[line - 1] + len(text.encode()[:column].decode())

    return place


def _changed(
    node: ast.Import, of_optax: dict[str, list[Use]], words: set[str], originals: dict[str, str]
) -> list[str] | None:
    """Return the statements for `import optax`, None if it has nothing of Optax."""
    if not any(is_optax(alias.name) for alias in node.names):
        return None
    lines, others = [], []
    for alias in node.names:
        if not is_optax(alias.name):
            others.append(_alias(alias.name, alias.asname))
            continue
        word, name = alias.asname or "optax", inner(alias.name) if alias.asname else ""
        counterpart = find_optax_name(name)
        if counterpart.status == MISSING:
            lines.append(f"import {_alias(alias.name, alias.asname)}")
            continue
        lines.append(f"import {_alias(counterpart.here, word)}")
        if word in of_optax:
            original = ORIGINAL if word == "optax" else f"original_{word}"
            while original in words:
                original = f"_{original}"
            originals[word] = original
            lines.append(f"import {_alias(dotted_name('optax', name), original)}")
    if others:
        lines.insert(0, f"import {', '.join(others)}")
    return list(dict.fromkeys(lines))


def _changed_from(node: ast.ImportFrom) -> list[str] | None:
    """Return the statements for `from optax import ...`, None where it stays as it is."""
    groups: dict[str, list[str]] = {}
    for alias in node.names:
        if alias.name == "*":
            return None
        counterpart = find_optax_name(dotted_name(inner(node.module or ""), alias.name))
        if counterpart.status == MISSING:
            home, name = node.module or "", alias.name
        else:
            home, _, name = counterpart.here.rpartition(".")
        asname = alias.asname if alias.asname != name else None
        groups.setdefault(home, []).append(_alias(name, asname))
    if set(groups) == {node.module}:
        return None
    lines = []
    for home, names in groups.items():
        lines.append(f"from {home} import {', '.join(names)}")
    return lines


def _alias(name: str, asname: str | None) -> str:
    return f"{name} as {asname}" if asname else name

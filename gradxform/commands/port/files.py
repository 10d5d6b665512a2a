"""The Python files and notebooks that are ported: which, and what each uses."""

import ast
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gradxform.commands.port.calls import applying_differences
from gradxform.commands.port.constants import constants_of
from gradxform.commands.port.differences import ARGUMENT, THOUGHT, Difference
from gradxform.commands.port.imports import diff_of_file, edits_of, with_changed_imports
from gradxform.commands.port.names import FORWARDED, MISSING, SAME, find_optax_name
from gradxform.commands.port.notebooks import read_notebook
from gradxform.commands.port.syntax import PortError, text_of, tree_of
from gradxform.commands.port.uses import Use, find_uses

DIFFERENT, STAR = "different", "star"
# What a use may be, in the order of the report.
STATUSES = (MISSING, STAR, DIFFERENT, ARGUMENT, FORWARDED, SAME)
SUFFIXES = (".py", ".pyi", ".ipynb")


class Judged(NamedTuple):
    """A use of Optax, and what becomes of it."""

    path: str
    line: int  # of the file, or of the cell
    column: int
    name: str  # as `optax.adam`
    status: str  # one of `STATUSES`; "same" also with differences that take nothing
    here: str  # where it is here; "" if it is missing
    remedy: str  # what to do, if it is missing
    differences: tuple[Difference, ...]  # those that may change numbers come first
    cell: int | None = None  # the number of the cell in a notebook, counting all cells from 1

    @property
    def place(self) -> str:
        """The file and the line, with the cell between them in a notebook."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{cell}{self.line}"


class Ported(NamedTuple):
    """The uses of Optax in a file, and its changed imports."""

    path: str
    uses: tuple[Judged, ...]
    diff: str


def python_files(paths: Iterable[str]) -> list[pathlib.Path]:
    """Return the Python files and notebooks among paths, and in folders that are not hidden.

    Raises:
      PortError: if a path does not exist, is of another kind, or is a folder without any.
    """
    files: dict[pathlib.Path, None] = {}
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            inside = _sources_in_folder(path)
            if not inside:
                raise PortError(f"{path}: no Python files or notebooks in this folder.")
            files |= dict.fromkeys(inside)
        elif not path.exists():
            raise PortError(f"{path}: no such file or folder.")
        elif path.suffix not in SUFFIXES:
            raise PortError(f"{path}: not a Python file; its name must end in .py or .ipynb.")
        else:
            files[path] = None
    return list(files)


def _sources_in_folder(folder: pathlib.Path) -> list[pathlib.Path]:
    files = []
    for here, folders, names in os.walk(folder):
        place = pathlib.Path(here)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not (place / name / "pyvenv.cfg").exists()
        )
        files += [place / name for name in sorted(names) if name.endswith(SUFFIXES)]
    return files


def port(path: pathlib.Path) -> Ported:
    """Read one file, and judge its uses of Optax.

    The code cells of a notebook are one program; a use has the number of its cell, and the line in
    it. The diff is that of the notebook's text.

    Raises:
      PortError: if it cannot be read, or is not Python.
    """
    try:
        return _notebook(path) if path.suffix == ".ipynb" else _program(path)
    except RecursionError:
        raise PortError(
            f"{path}: nested too deep to be read; split its longest expression."
        ) from None


def _program(path: pathlib.Path) -> Ported:
    source = text_of(path)
    tree = tree_of(path, source)
    uses, constants = find_uses(tree), constants_of(tree)
    judged = tuple(_judged_use(str(path), use, constants) for use in uses)
    return Ported(
        str(path),
        judged,
        diff_of_file(path.as_posix(), source, with_changed_imports(source, tree, uses)),
    )


def _notebook(path: pathlib.Path) -> Ported:
    book = read_notebook(path)
    tree = tree_of(path, book.program)
    uses, constants = find_uses(tree), constants_of(tree)
    judged = []
    for use in uses:
        cell, line = book.cell_of(use.line)
        judged.append(_judged_use(str(path), use, constants)._replace(line=line, cell=cell))
    new = book.changed(edits_of(book.program, tree, uses))
    return Ported(str(path), tuple(judged), diff_of_file(path.as_posix(), book.text, new))


def _judged_use(path: str, use: Use, constants: Mapping[str, ast.expr]) -> Judged:
    name = f"optax.{use.name}" if use.name else "optax"
    if use.name == "*" or use.name.endswith(".*"):
        remedy = "import the names that you use, so that they can be looked up"
        return Judged(path, use.line, use.column, name, STAR, "", remedy, ())
    counterpart = find_optax_name(use.name)
    rows: tuple[Difference, ...] = ()
    if counterpart.status != MISSING:
        rows = tuple(applying_differences(use, counterpart.part, constants))
    status, takes = counterpart.status, {row.takes for row in rows}
    if status == SAME:
        status = DIFFERENT if THOUGHT in takes else ARGUMENT if ARGUMENT in takes else SAME
    return Judged(
        path, use.line, use.column, name, status, counterpart.here, counterpart.remedy, rows
    )

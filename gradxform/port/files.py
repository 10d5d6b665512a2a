"""The Python files that are ported: which, how they are read, and what each uses."""

import ast
import io
import os
import pathlib
import tokenize
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from gradxform.port.calls import applying
from gradxform.port.differences import Difference
from gradxform.port.imports import changed, diff
from gradxform.port.names import FORWARDED, MISSING, SAME, find
from gradxform.port.uses import Use, find_uses

DIFFERENT, STAR = "different", "star"
# What a use may be, in the order of the report.
STATUSES = (MISSING, STAR, DIFFERENT, FORWARDED, SAME)


class Judged(NamedTuple):
    """A use of Optax, and what becomes of it."""

    path: str
    line: int
    column: int
    name: str  # as `optax.adam`
    status: str  # one of `STATUSES`
    here: str  # where it is here; "" if it is missing
    remedy: str  # what to do, if it is missing
    differences: tuple[Difference, ...]  # those that may change numbers come first


class Ported(NamedTuple):
    """What a file uses, and its changed imports."""

    path: str
    uses: tuple[Judged, ...]
    diff: str


class PortError(Exception):
    """A path that cannot be read as Python; the message is one line."""


def python_files(paths: Iterable[str]) -> list[pathlib.Path]:
    """Return the Python files among some paths, and in folders; hidden folders are left out.

    Raises:
      PortError: if a path does not exist, is not a Python file, or is a folder without any.
    """
    files: dict[pathlib.Path, None] = {}
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            found = _in_folder(path)
            if not found:
                raise PortError(f"{path}: no Python files in this folder.")
            files |= dict.fromkeys(found)
        elif not path.exists():
            raise PortError(f"{path}: no such file or folder.")
        elif path.suffix not in (".py", ".pyi"):
            raise PortError(f"{path}: not a Python file; its name must end in .py.")
        else:
            files[path] = None
    return list(files)


def _in_folder(folder: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for here, folders, names in os.walk(folder):
        place = pathlib.Path(here)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not (place / name / "pyvenv.cfg").exists()
        )
        found += [place / name for name in sorted(names) if name.endswith((".py", ".pyi"))]
    return found


def port(path: pathlib.Path) -> Ported:
    """Read one file, and judge its uses of Optax.

    Raises:
      PortError: if it cannot be read, or is not Python.
    """
    source, tree = _parsed(path)
    uses = find_uses(tree)
    new = changed(source, tree, uses)
    return Ported(
        str(path), tuple(_judged(str(path), use) for use in uses), _diff(path, source, new)
    )


def _diff(path: pathlib.Path, source: str, new: str) -> str:
    return "" if source == new else diff(path.as_posix(), source, new)


def _parsed(path: pathlib.Path) -> tuple[str, ast.Module]:
    try:
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser about the user's strings
            return source, ast.parse(source)
    except OSError as error:
        raise PortError(f"{path}: {error.strerror or error}.") from None
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise PortError(f"{path}{line}: not Python: {error.msg}.") from None
    except (UnicodeDecodeError, LookupError, ValueError) as error:
        raise PortError(f"{path}: not text: {' '.join(str(error).split())}.") from None
    except (RecursionError, MemoryError):
        raise PortError(f"{path}: nested too deep to be parsed.") from None


def _judged(path: str, use: Use) -> Judged:
    name = f"optax.{use.name}" if use.name else "optax"
    if use.name == "*" or use.name.endswith(".*"):
        remedy = "import the names that you use, so that they can be looked up"
        return Judged(path, use.line, use.column, name, STAR, "", remedy, ())
    found = find(use.name)
    rows = () if found.status == MISSING else tuple(applying(use, found.part))
    status = DIFFERENT if rows and found.status == SAME else found.status
    return Judged(path, use.line, use.column, name, status, found.here, found.remedy, rows)

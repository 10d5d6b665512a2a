"""The house, read from its imports: rooms, floors, and arrows from one room to another.

A room is a folder or a loose file of the package, and an arrow an import from one to another. Those
inside functions count, and `import_module("...")` of a literal, but not those for type checkers. A
name that a package only forwards counts as an import of its file.
`python -m tests.project.layout` draws the floors, and names the longest files.
"""

import ast
import collections
import functools
import graphlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping

from gradxform._names.homes import homes_of

ROOT = pathlib.Path(__file__).parents[2] / "gradxform"
LONG = 400  # lines; a longer file asks whether it is about one thing


def sources() -> list[pathlib.Path]:
    """Every file of the library."""
    return sorted(ROOT.rglob("*.py"))


def module_of(path: pathlib.Path) -> str:
    """The dotted name of a file."""
    name = ".".join(("gradxform", *path.relative_to(ROOT).with_suffix("").parts))
    return name.removesuffix(".__init__")


def room_of(path: pathlib.Path) -> str:
    """The folder or loose file of the package to which a file belongs."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


@functools.cache
def files() -> dict[str, pathlib.Path]:
    """Every module, with its file."""
    return {module_of(path): path for path in sources()}


@functools.cache
def imported(path: pathlib.Path) -> frozenset[str]:
    """The modules of the library that a file imports, wherever it does."""
    package = ".".join(("gradxform", *path.relative_to(ROOT).parts[:-1]))
    return frozenset(imported_by(ast.parse(path.read_text("utf-8")), package)) - {module_of(path)}


def imported_by(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules of the library that the code of a package's file imports."""
    names: list[str] = []
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from imported_by(child, package)
        return
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        homes = homes_of(module)
        names = [f"{homes.get(x.name, module)}.{x.name}" for x in node.names]
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        if ast.unparse(node.func).endswith("import_module"):
            names = [str(node.args[0].value)]
    for name in names:
        while name.startswith("gradxform") and name not in files():
            name = name.rpartition(".")[0]
        if name.startswith("gradxform"):
            yield name
    for child in ast.iter_child_nodes(node):
        yield from imported_by(child, package)


@functools.cache
def arrows() -> dict[str, frozenset[str]]:
    """Every room, with the rooms from which it imports."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for path in sources():
        rooms = {room_of(files()[name]) for name in imported(path)}
        found[room_of(path)] |= rooms - {room_of(path)}
    return {room: frozenset(others) for room, others in found.items()}


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Rooms or files that import each other, as a way that ends where it begins; else nothing."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@functools.cache
def floor_of(room: str) -> int:
    """The number of a room's floor: one more than the highest from which it imports."""
    return 1 + max((floor_of(other) for other in arrows()[room]), default=0)


def floors() -> list[list[str]]:
    """The rooms of each floor, the top first."""
    rooms = collections.defaultdict(list)
    for room in sorted(arrows()):
        rooms[floor_of(room)].append(room)
    return [rooms[height] for height in sorted(rooms, reverse=True)]


def loose() -> list[str]:
    """The files that stand beside `__init__`."""
    return sorted(path.stem for path in ROOT.glob("*.py") if path.stem != "__init__")


def summary_of(room: str) -> str:
    """The first line of what a room says of itself."""
    path = ROOT / room / "__init__.py" if (ROOT / room).is_dir() else ROOT / f"{room}.py"
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


def picture() -> str:
    """Draw the floors, the top first, each room with what it is for."""
    lines = []
    for height, rooms in zip(range(len(floors()), 0, -1), floors(), strict=True):
        for i, room in enumerate(rooms):
            name = room + "/" * (ROOT / room).is_dir()
            lines.append(f"{height if i == 0 else '':>3} {name:<14} {summary_of(room)}".rstrip())
    return "\n".join(lines)


PAGE = ROOT.parent / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by `make tables` -->\n```\n", "\n```\n<!-- end -->"


def drawn(page: str) -> str:
    """A page with the picture as it should be; all that stands around the picture stays.

    Raises:
      ValueError: if a mark is missing: what follows would be lost.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        missing = (END if begin else BEGIN).strip()
        raise ValueError(f"{PAGE.name} does not have the mark {missing!r} around the picture.")
    return before + BEGIN + picture() + END + after


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
    arrow_count = sum(map(len, arrows().values()))
    print(f"{len(arrows())} rooms, {len(floors())} floors, {arrow_count} arrows")
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in sources()}
    for path in sorted(lengths, key=lambda p: -lengths[p]):
        if lengths[path] > LONG and path.name != "table.py":
            print(f"{path.relative_to(ROOT)}: {lengths[path]} lines; is it about one thing?")
    sys.exit(0)

"""The architecture, read from the sources: floors, what the core imports, sizes of files."""

import ast
import pathlib
import subprocess
import sys

import gradxform as gx
from tests.environment import limit

ROOT = pathlib.Path(gx.__file__).parent
# Ground floor first; a module imports only lower floors. What stands on one line is one floor,
# whose modules may import each other as long as there is no cycle.
FLOORS = [
    {"_version", "_compat", "types"},
    {"errors"},
    {"content"},
    {"values"},
    {"registry"},
    {"numerics"},
    {"linalg"},
    {"rowsparse"},
    {"trees"},
    {"rows", "chunks", "shards"},
    {"lift"},
    {"running"},
    {"methods"},
    {"base"},
    {"apply", "functions", "schedules", "masks", "treestate"},
    {"transforms"},
    {"wrappers"},
    {"distributed"},
    {"optimizers"},
    {"contrib", "compat", "sparse"},
    {"tree"},
    {"tree_utils"},
    {"config", "interop"},
    {"testing", "describe"},
    {"catalog"},
    {"__main__"},
]
EXTRAS = {"optax", "flax", "haiku", "equinox", "matplotlib", "orbax", "sklearn", "rich", "chex"}
EXTRAS |= {"websockets"}


def module_of(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path):
    """The modules of the library that a file imports at its head, and those of others."""
    ours, others = set(), set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if parts[0] != "gradxform":
                others.add(parts[0])
            elif len(parts) > 1:
                ours.add(parts[1])
            else:
                ours |= {alias.name for alias in node.names}
    return ours, others


def sources():
    return [p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"]


def test_imports_point_down():
    height = {name: i for i, floor in enumerate(FLOORS) for name in floor}
    for path in sources():
        module = module_of(path)
        for other in imports(path)[0]:
            assert other in height, f"{other} has no floor"
            below = height[other] < height[module] or other == module
            assert below, f"{path.relative_to(ROOT)} imports {other}, which is not below {module}"


def test_within_a_package_imports_have_no_cycle():
    graph = {}
    for path in sources():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[name] = {
            ".".join((node.module or "").split(".")[1:])
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradxform.")
        }
    seen, done = [], set()

    def visit(name):
        assert name not in seen, [*seen, name]
        if name in done or name not in graph:
            return
        seen.append(name)
        for other in graph[name]:
            visit(other)
        seen.pop()
        done.add(name)

    for name in graph:
        visit(name)


def test_the_core_imports_jax_and_numpy_only():
    allowed = set(sys.stdlib_module_names) | {"jax", "numpy"}
    for path in sources():
        assert imports(path)[1] <= allowed, path
    code = "import sys, gradxform; print(sorted(sys.modules))"
    argv, longest = [sys.executable, "-c", code], limit(40, 120)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=longest, check=True)
    loaded = done.stdout
    assert not [extra for extra in EXTRAS if f"'{extra}'" in loaded]


def test_files_are_short():
    for path in sources():
        assert len(path.read_text().splitlines()) <= 400, f"{path.name} asks for a split"


def test_only_public_jax():
    for path in sources():
        text = path.read_text()
        assert "jax._src" not in text and "from __future__" not in text, path


def test_every_public_transform_is_documented():
    for name, part in vars(gx).items():
        if isinstance(part, type) and issubclass(part, gx.Transform):
            assert part.__doc__ and len(part.__doc__.splitlines()[0]) > 10, name
            fields = getattr(part, "__dataclass_fields__", {})
            for field in fields:
                assert f"{field}:" in part.__doc__, f"{name} does not document {field}"
    for name, recipe in gx.OPTIMIZERS.items():
        assert "Reference" in (recipe.__doc__ or ""), name

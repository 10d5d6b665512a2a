"""The architecture, read from the sources: rooms and floors, what the core imports, names."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys

import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform._names.lazy import FORWARDS
from gradxform.values.registry import REGISTRY
from tests import catalogue
from tests.environment import limit
from tests.project import layout, names
from tests.project.layout import PAGE, ROOT
from tests.public import names_of

TESTS = ROOT.parent / "tests"
EXTRAS = {"optax", "flax", "haiku", "equinox", "matplotlib", "orbax", "sklearn", "rich", "chex"}
EXTRAS |= {"keras", "h5py", "ray"}


def sources():
    return [path for path in layout.sources() if path != ROOT / "__init__.py"]


def others_of(path):
    """The modules of other libraries that a file imports at its head."""
    others = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            others.add((node.module or "").split(".")[0])
    return others - {"gradxform"}


def test_imports_point_down():
    assert not layout.circle(layout.arrows())


def test_no_file_imports_itself_through_others():
    """Not inside a room either, nor by an import in a function."""
    graph = {name: layout.imported(path) for name, path in layout.files().items()}
    assert len(graph) > 300 and sum(map(len, graph.values())) > 3000
    assert not layout.circle(graph)


IMPORTS_OF_CONFIGS = [
    "from gradxform.compat.keras.configs import serialize",
    "from gradxform.compat.keras import configs",
    "from gradxform.compat.keras import serialize",  # which the package only forwards
    "from .configs import serialize",
    "from . import serialize",
    "import gradxform.compat.keras.configs as configs",
    "def f():\n    from gradxform.compat.keras.configs import serialize",
    "def f():\n    import_module('gradxform.compat.keras.configs').serialize",
    "if TYPE_CHECKING:\n    pass\nelse:\n    from gradxform.compat.keras import configs",
]


@pytest.mark.parametrize("code", IMPORTS_OF_CONFIGS)
def test_an_import_that_closes_a_circle_is_seen_in_every_form(code):
    names = set(layout.imported_by(ast.parse(code), "gradxform.compat.keras"))
    graph = {name: layout.imported(path) for name, path in layout.files().items()}
    graph["gradxform.compat.keras.schedules"] |= names
    assert names == {"gradxform.compat.keras.configs"}
    assert {*names, "gradxform.compat.keras.schedules"} <= set(layout.circle(graph))


def test_the_house_is_small():
    assert len(layout.arrows()) <= 37 and len(layout.floors()) <= 14
    assert len(layout.loose()) <= 14, layout.loose()


def test_every_folder_says_what_it_is_for():
    for path in ROOT.rglob("__init__.py"):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert 10 < len(said.partition("\n")[0]) <= 100, path


def test_no_module_imports_from_inside_the_engine():
    """But the engine itself: others import what its face names."""
    for path in sources():
        if path.parent.name == "engine":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) or ""
            assert not module.startswith("gradxform.engine."), path
    rooms = {path.stem for path in (ROOT / "engine").glob("*.py")}
    named = {
        node.attr
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "engine"
    }
    assert not named & rooms


# Words that the field uses of what it does, and words for whatever found no other place.
NOUNS = {"clipping", "scaling", "rounding", "sharding", "state_sharding"}
NOUNS |= {"aggregating"}  # Optax's name
DRAWERS = {"shared", "tune", "due", "everywhere", "utils", "helpers", "misc", "common"}
DRAWERS |= {"pieces", "steps", "base"}


def test_a_module_is_named_after_its_content():
    for path in sources():
        assert path.stem not in DRAWERS, path
        assert path.stem in NOUNS or not path.stem.endswith("ing") or path.stem == "testing", path


PACKAGES = ["", ".transforms", ".wrappers", ".optimizers", ".schedules", ".distributed"]


SHOWN = """
import importlib, json, gradxform
packages = [importlib.import_module(f"gradxform{name}") for name in {names}]
print(json.dumps([[k for k in dir(p) if not k.startswith("_")] for p in packages]))
"""


def test_a_package_exposes_only_its_public_names():
    argv = [sys.executable, "-c", SHOWN.replace("{names}", repr(PACKAGES))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit(40, 120), check=True)
    for name, shown in zip(PACKAGES, json.loads(done.stdout), strict=True):
        package = importlib.import_module(f"gradxform{name}")
        public = package.__all__
        assert len(set(public)) == len(public) and set(shown) >= set(public)
        assert set(shown) - set(public) <= set(FORWARDS.get(package.__name__, "").split())
        assert all(hasattr(package, k) for k in public)
        states = [k for k in public if k.endswith("State") and k != "OptState"]
        assert public[len(public) - len(states) :] == sorted(states)  # states last


@pytest.mark.parametrize("name", PACKAGES[1:])
def test_public_names_are_listed_in_their_own_files(name):
    """A rule and its recipe are public once their file says so: no list besides is to be kept."""
    package = importlib.import_module(f"gradxform{name}")
    said = []
    for path in (ROOT / name[1:]).rglob("*.py"):
        if path.stem != "__init__":
            said += names.said_by(layout.module_of(path))
    assert sorted(said) == sorted(set(package.__all__) - {"hlo", "hlo_schedule"})


def test_a_recipe_is_in_the_file_named_as_its_rules():
    for path in (ROOT / "optimizers").glob("*.py"):
        if path.stem in ("__init__", "optimizer", "by_name"):
            continue
        recipes = names.said_by(f"gradxform.optimizers.{path.stem}")
        files = [file for home in HOMES for file in (ROOT / home).rglob(f"{path.stem}.py")]
        rules = [x for file in files for x in names.said_by(layout.module_of(file))]
        for recipe in recipes:
            source = inspect.getsource(getattr(gx, recipe))
            assert any(name in source for name in {*rules, *recipes} - {recipe}), recipe


HOMES = ("transforms", "wrappers", "compat")


# Packages whose rows and references stand in one file each.
IN_ONE_FILE = {"wrappers", "distributed", "experimental", "schedules"}


def family_of(part):
    """The name of the files in tests/catalogue and tests/references that a part belongs to."""
    package, *rest = inspect.getmodule(part).__name__.split(".")[1:]
    own_file = rest and (package not in IN_ONE_FILE or rest[-1] in catalogue.FAMILIES)
    return rest[-1] if own_file else package


def test_a_row_of_the_catalogue_stands_in_the_file_named_as_its_parts():
    for family, module in catalogue.FAMILIES.items():
        for kind in ("TRANSFORMS", "WRAPPERS", "OPTIMIZERS"):
            for row in getattr(module, kind, {}):
                name = row.split("/")[0]
                part = REGISTRY.get(name) or getattr(gx, name, None) or getattr(gd, name)
                assert family_of(part) == family, row


def test_a_reference_stands_in_a_file_named_as_one_of_the_library():
    families = {path.stem for home in HOMES for path in (ROOT / home).rglob("*.py")} | IN_ONE_FILE
    references = {path.stem for path in (TESTS / "references").glob("*.py")}
    assert references - families == {"base", "compression", "interop", "row_sparse"}


def test_the_core_imports_jax_and_numpy_only():
    allowed = set(sys.stdlib_module_names) | {"jax", "numpy"}
    for path in sources():
        assert others_of(path) <= allowed, path
    code = "import sys, gradxform; print(sorted(sys.modules))"
    argv, longest = [sys.executable, "-c", code], limit(40, 120)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=longest, check=True)
    loaded = done.stdout
    assert not [extra for extra in EXTRAS if f"'{extra}'" in loaded]


def test_only_the_public_api_of_jax_is_used():
    for path in sources():
        text = path.read_text()
        assert "jax._src" not in text and "from __future__" not in text, path


def test_every_public_transform_is_documented():
    for name, part in names_of(gx).items():
        if isinstance(part, type) and issubclass(part, gx.GradientTransformation):
            assert part.__doc__ and len(part.__doc__.splitlines()[0]) > 10, name
            fields = getattr(part, "__dataclass_fields__", {})
            for field in fields:
                assert f"{field}:" in part.__doc__, f"{name} does not document {field}"
    for name, recipe in gx.OPTIMIZERS.items():
        assert "Reference" in (recipe.__doc__ or ""), name


def test_the_architecture_page_shows_the_house():
    page = PAGE.read_text("utf-8")
    assert page == layout.drawn(page), "run make tables"
    assert page.endswith(" |\n")


def test_drawing_the_house_keeps_all_that_stands_around_it():
    page = PAGE.read_text("utf-8")
    before, rest = page.split(layout.BEGIN)
    _, after = rest.split(layout.END)
    drawn = layout.drawn(before + layout.BEGIN + "an old picture" + layout.END + after)
    assert drawn == page
    for mark in (layout.BEGIN, layout.END):
        with pytest.raises(ValueError, match="does not have the mark"):
            layout.drawn(page.replace(mark, ""))


def test_the_architecture_page_tells_the_way_of_a_leaf_and_names_what_there_is():
    page = PAGE.read_text("utf-8")
    parts = page.split("\n## ")
    titles = ["The floors", "How a name is found", "The way of one leaf", "Where to put what"]
    assert [part.partition("\n")[0] for part in parts[1:]] == titles
    assert parts[3].count("\n1. ") == 1 and parts[3].count("\n10. ") == 1
    told = "".join(parts[2:])
    named = re.findall(r"`([\w/]+(?:\.py|/))`", told)
    assert len(set(named)) > 25
    missing = [x for x in named if not any((root / x).exists() for root in (ROOT, ROOT.parent))]
    assert not missing, f"the page names files that do not exist: {missing}"
    assert {"engine/lift.py", "engine/run.py", "engine/one_leaf.py"} <= set(named)

"""The public names of the library, and the subject of each."""

import ast
import functools
import inspect
import pathlib
import pkgutil
import types
from typing import Any, NamedTuple

import gradxform as gx
from gradxform.commands.catalog import kind_of

# Subjects of the names of `gradxform` itself, by the module that a name comes from.
SUBJECTS = {
    "states": "States",
    "optimizers": "Optimizers",
    "transforms": "Transforms",
    "wrappers": "Wrappers",
    "schedules": "Schedules",
    "masks": "Masks",
    "training": "Training loops",
    "inspection": "Inspection",
    "config": "Configs",
    "migration": "Other optimizers and Optax",
    "core": "Transformations and values",
    "arithmetic": "Arithmetic",
    "types": "Types",
}
# The first with which the path of a module begins counts.
_BY_MODULE = {
    "run_states.migration": "migration",
    "run_states.optax": "migration",
    "run_states.reset": "migration",
    **dict.fromkeys(("run_states", "tables"), "inspection"),
    **dict.fromkeys(("training.derivatives", "training.distributions"), "arithmetic"),
    **dict.fromkeys(("linalg", "numerics", "tree"), "arithmetic"),
    "leaves.masks": "masks",
    "values.config": "config",
    **{name: name for name in ("schedules", "training", "types")},
}
# Modules with a page of their own, beside those that `gradxform` names.
MODULES = ("distributed.center", "distributed.ray", "experimental.aggregating", "plot")
DOORS = ("tf1", "tf_contrib", "keras", "keras3", "returnn")

_ALL: list[str] = vars(gx)["__all__"]


class Name(NamedTuple):
    """A public name."""

    module: str  # where it is public, such as "gradxform.sparse"
    name: str
    value: Any

    @property
    def path(self) -> str:
        """Its full name."""
        return f"{self.module}.{self.name}"


def _modules() -> list[str]:
    named = [name for name in _ALL if isinstance(getattr(gx, name), types.ModuleType)]
    inner = [name for name in named if name not in ("compat", "transforms", "schedules")]
    found = dict.fromkeys([*inner, *MODULES, *(f"compat.{door}" for door in DOORS)])
    return [f"gradxform.{name}" for name in found]


def _declared(module: types.ModuleType) -> list[str]:
    """Return what a module says is public, or else what it defines or imports `as` itself."""
    said = getattr(module, "__all__", None)
    if said is not None:
        return list(said)
    found = []
    for node in ast.parse(pathlib.Path(inspect.getfile(module)).read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found += [a.name for a in node.names if a.asname == a.name]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [t.id for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
    return [name for name in found if not name.startswith("_")]


@functools.cache
def names() -> tuple[Name, ...]:
    """Return every public name, modules left out."""
    found = [Name("gradxform", name, getattr(gx, name)) for name in _ALL]
    for path in _modules():
        module = pkgutil.resolve_name(path)
        found += [Name(path, name, getattr(module, name)) for name in _declared(module)]
    return tuple(n for n in found if not isinstance(n.value, types.ModuleType))


@functools.cache
def homes() -> dict[str, str]:
    """Return for each public name the name under which its object is described."""
    first: dict[int, str] = {}
    found = {}
    for name in names():
        plain = isinstance(name.value, int | float | str | tuple | None)
        key = id(name) if plain else id(name.value)
        found[name.path] = first.setdefault(key, name.path)
    return found


def subject_of(name: Name) -> str:
    """Return the stem of the page of the reference that describes a name."""
    if name.module != "gradxform":
        return name.module.removeprefix("gradxform.").replace(".", "_")
    if name.name.endswith("State") and name.name != "OptState":
        return "states"
    kind = kind_of(name.value)
    if kind is not None:
        return kind
    root, _, module = getattr(name.value, "__module__", "").partition(".")
    if root != "gradxform" or not module:
        return "types"
    subjects = (x for path, x in _BY_MODULE.items() if module.startswith(path))
    return next(subjects, "core")


@functools.cache
def pages() -> dict[str, tuple[Name, ...]]:
    """Return the names on each page of the reference, by its stem, in the order of the pages."""
    found: dict[str, list[Name]] = {subject: [] for subject in SUBJECTS}
    for name in names():
        found.setdefault(subject_of(name), []).append(name)
    order = [s for s in found if s != "states"] + ["states"]
    return {stem: tuple(sorted(found[stem], key=lambda n: n.name.lower())) for stem in order}


def page_of(path: str) -> str:
    """Return the address of a name's description, from the folder docs."""
    home = homes()[path]
    return f"reference/{_subjects()[home]}.md#{home}"


@functools.cache
def _subjects() -> dict[str, str]:
    return {name.path: subject_of(name) for name in names()}

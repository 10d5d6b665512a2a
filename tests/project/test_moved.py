"""Modules that were elsewhere are found under their old paths, by imports and by type checkers."""

import importlib
import json
import pathlib

import pytest

import gradxform as gx
from gradxform._names.moved import MOVED
from tests.project import names
from tests.project.test_imports import run

ROOT = pathlib.Path(gx.__file__).parent
# Old paths in documentation of before, which type checkers find by a stub.
STUBS = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.pyi"))


def test_what_has_moved_is_where_the_table_says():
    modules = set(names.modules())
    for old, new in MOVED.items():
        assert f"gradxform.{new}" in modules, new
        assert f"gradxform.{old}" not in modules, old  # the table would hide it


IMPORTED = """
import importlib, json, sys
import jax
{first}
wrong = []
for old, new in json.loads(sys.argv[1]).items():
    old, new = f"gradxform.{old}", f"gradxform.{new}"
    here = {}
    exec(f"import {old}", here)
    module = sys.modules[new]
    parent, _, name = old.rpartition(".")
    public = [k for k, x in vars(module).items() if getattr(x, "__module__", "") == new][:1]
    for k in public:
        exec(f"from {old} import {k}", here)
        if here[k] is not getattr(module, k):
            wrong.append(f"{old}.{k}")
    if not (sys.modules[old] is importlib.import_module(old) is importlib.import_module(new)):
        wrong.append(old)
    if module.__name__ != new or module.__spec__.name != new or module.__loader__ is None:
        wrong.append(f"{old}: {module.__spec__}")
    if importlib.util.find_spec(old) is None:
        wrong.append(f"{old}: no spec")
print(json.dumps(wrong))
"""


@pytest.mark.parametrize("order", ["old paths first", "new paths first"])
def test_old_paths_are_other_names_of_the_same_modules(order):
    first = "import gradxform, importlib.util"
    if order == "new paths first":
        first += "".join(f"\nimport gradxform.{new}" for new in MOVED.values())
    assert run(IMPORTED.replace("{first}", first), json.dumps(MOVED)) == []


def test_a_module_that_never_was_is_not_found():
    for path in ("gradxform.masksx", "gradxform.storage.nothing", "gradxform.storagex.blocks"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(path)


@pytest.mark.parametrize("stub", STUBS, ids=str)
def test_a_stub_leads_type_checkers_to_the_new_path(stub):
    old = ".".join(stub.with_suffix("").parts)
    assert (ROOT / stub).read_text("utf-8") == f"from gradxform.{MOVED[old]} import *\n"

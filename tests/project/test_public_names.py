"""Public names: the same in whatever order modules are loaded, and what tools show of them."""

import copy
import importlib
import inspect
import pickle
import pydoc
import subprocess
import sys
import threading
import types

import pytest

import gradxform as gx
from gradxform._names.homes import homes_of
from gradxform._names.table import NAMES
from tests.environment import limit
from tests.project import names
from tests.project.test_imports import run

# Names that a module of the package has too: `gradxform.optimizers.adam`, ...
MODULES = set(names.modules())
SHARED = [
    (package, name)
    for package in NAMES
    for name, home in homes_of(package).items()
    if home != package and f"{package}.{name}" in MODULES and f"{home}.{name}" not in MODULES
]

BOTH = """
import importlib, json, sys, types
import gradxform
wrong = []
for package, name in json.loads(sys.argv[1]):
    full = f"{package}.{name}"
    here = importlib.import_module(package)
    if sys.argv[2] == "module first":
        module = importlib.import_module(full)
    made = getattr(here, name)
    __import__(full)
    module = importlib.import_module(full)
    exec(f"import {full}")
    spaces = {}
    exec(f"import {full} as b; from {package} import {name} as c", spaces)
    exec(f"from {full} import *", {})
    same = [getattr(here, name), spaces["b"], spaces["c"], vars(here)[name]]
    if not isinstance(module, types.ModuleType) or isinstance(made, types.ModuleType):
        wrong.append(full)
    if any(x is not made for x in same) or sys.modules[full] is not module:
        wrong.append(f"{full}: changed")
    importlib.reload(here)
    if getattr(here, name) is not made:
        wrong.append(f"{full}: changed by a reload")
print(json.dumps(wrong))
"""


@pytest.mark.parametrize("order", ["name first", "module first"])
def test_a_name_and_the_module_of_that_name_both_work(order):
    import json

    assert {("gradxform.optimizers", "adam"), ("gradxform.wrappers", "sam")} <= set(SHARED)
    assert run(BOTH, json.dumps(SHARED), order) == []


# A module of the library is an attribute only where it is a public name, or the docs name its path.
LEAKS = """
import importlib, json, pkgutil, sys, types
import gradxform
from gradxform._names.homes import PATHS
from gradxform._names.table import NAMES
modules = [m.name for m in pkgutil.walk_packages(gradxform.__path__, "gradxform.")]
modules = [m for m in modules if "__main__" not in m and ".ray." not in m and "._" not in m]
wrong = []
for turn in range(2):  # before any of them is loaded, and after all are
    for module in modules:
        package, _, name = module.rpartition(".")
        here = importlib.import_module(package)
        public = here.__all__ if package in NAMES else [name]
        if name in (*public, *PATHS.get(package, "").split()):
            continue
        try:
            found = getattr(here, name)
        except AttributeError as error:
            if f"no attribute {name!r}" not in str(error):
                wrong.append(f"{module}: {error}")
        else:
            if isinstance(found, types.ModuleType):
                wrong.append(module)
        if name in dir(here) and isinstance(getattr(here, name, None), types.ModuleType):
            wrong.append(f"{module} in dir")
    for module in modules:
        spaces = {}
        exec(f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]} as a", spaces)
        if importlib.import_module(module) is not sys.modules[module]:
            wrong.append(f"import {module}")
print(json.dumps(wrong))
"""


def test_modules_that_are_not_public_are_no_attributes():
    assert run(LEAKS) == []


def test_a_module_that_is_not_public_leads_to_what_is():
    for module, name, meant in (
        (gx, "values", "'Value'"),
        (gx.distributed, "zero", "'zero1'"),
        (gx.schedules, "periodic", "from gradxform.schedules import periodic"),
    ):
        importlib.import_module(f"{module.__name__}.{name}")
        with pytest.raises(AttributeError) as caught:
            getattr(module, name)
        assert meant in str(caught.value)


def test_a_package_and_a_function_of_almost_its_name_are_told_apart():
    assert isinstance(gx.microbatching, types.ModuleType) and inspect.isfunction(gx.microbatch)


# Modules that the docs name: where they are found does not say in which folder their files are.
NAMED = ("gradxform.curvature", "gradxform.port", "gradxform.tree_utils")
NAMED += ("gradxform.distributed.hlo", "gradxform.distributed.hlo_schedule")


@pytest.mark.parametrize("path", NAMED)
def test_a_module_that_the_docs_name_is_an_attribute_and_can_be_imported_from_its_package(path):
    package, _, name = path.rpartition(".")
    code = f"""
import importlib, json, types
here = {{}}
exec("from {package} import {name}", here)
module = getattr(importlib.import_module("{package}"), "{name}")
print(json.dumps([isinstance(module, types.ModuleType), here["{name}"] is module]))
"""
    assert run(code) == [True, True]


def test_a_name_is_an_ordinary_attribute_once_it_has_been_asked_for():
    made = gx.adamw
    assert vars(gx)["adamw"] is made is sys.modules["gradxform.optimizers.adam"].adamw
    vars(gx).pop("adamw")
    assert gx.adamw is made


@pytest.mark.parametrize("package", NAMES)
def test_all_dir_and_star_say_the_same(package):
    module, space = importlib.import_module(package), {}
    exec(f"from {package} import *", space)
    space.pop("__builtins__")
    assert set(space) == set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is x for name, x in space.items())
    assert not [name for name in dir(module) if not hasattr(module, name)]
    assert inspect.getmembers(module) and pydoc.render_doc(module)


def test_a_reload_keeps_what_a_program_has():
    tx, adamw = gx.adamw(0.1), gx.adamw
    again = importlib.reload(gx)
    assert again is gx and gx.adamw is adamw and gx.adamw(0.1) == tx
    assert isinstance(tx, gx.Transform) and isinstance(tx, gx.GradientTransformation)


def test_a_reload_shows_a_file_that_has_been_loaded_anew():
    code = """
import importlib, json, sys
import gradxform as gx
before = gx.safe_norm
module = importlib.reload(sys.modules["gradxform.linalg.norms"])
importlib.reload(gx)
print(json.dumps([gx.safe_norm is module.safe_norm, gx.safe_norm is before]))
"""
    assert run(code) == [True, False]


def test_help_and_signatures_are_complete():
    text = pydoc.render_doc(gx.adamw, renderer=pydoc.plaintext)
    assert (
        "learning_rate: ScalarOrSchedule" in text
        and "  b1:" in text
        and "  weight_decay_mask:" in text
    )
    signature = inspect.signature(gx.adamw)
    assert list(signature.parameters)[:2] == ["learning_rate", "b1"]
    assert signature.return_annotation is gx.chain and "Annotated" not in str(signature)
    assert signature == copy.copy(signature) == copy.deepcopy(signature)
    assert hash(signature) == hash(inspect.signature(gx.adamw))
    assert signature.bind(0.1).arguments == {"learning_rate": 0.1}
    assert not signature.replace(parameters=[]).parameters
    assert inspect.signature(gx.scale_by_adam.__init__).parameters.keys() >= {"self", "b1", "b2"}
    assert inspect.isfunction(gx.adamw) and gx.adamw.__module__ == "gradxform.optimizers.adam"


MISSPELT = {
    "import gradxform as gx; gx.adamww": "AttributeError",
    "from gradxform import adamww": "ImportError",
    "from gradxform import optimizers; optimizers.adamww": "AttributeError",
    "from gradxform.optimizers import adamww": "ImportError",
}


@pytest.mark.parametrize("code", MISSPELT)
def test_an_error_that_nobody_catches_suggests_a_name_once(code):
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit(20, 120), check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{MISSPELT[code]}: ") and "adamw'" in last
    assert done.stderr.count("Did you mean") == 1 and done.stderr.count("Traceback") == 1


def test_a_missing_name_is_an_attribute_error_without_the_cost_of_a_suggestion():
    with pytest.raises(AttributeError) as caught:
        _ = gx.adamww
    assert caught.value.name == "adamww"
    assert not hasattr(gx, "_nothing") and not hasattr(gx, "__wrapped__")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("gradxform.adamww")


def test_optimizers_by_name_are_all_of_them():
    code = "import json, gradxform as gx; print(json.dumps(list(gx.OPTIMIZERS)))"
    assert run(code) == list(gx.OPTIMIZERS) and len(gx.OPTIMIZERS) > 80
    assert gx.OPTIMIZERS["adamw"] is gx.adamw and type(gx.OPTIMIZERS) is dict


PICKLED = """
import copy, json, pickle, sys
tx, state = pickle.loads(bytes.fromhex(sys.argv[1]))
import gradxform as gx
assert isinstance(tx, gx.Transform) and tx == gx.chain(gx.clip(1.0), gx.scale_by_lion(0.8))
assert copy.copy(tx) == copy.deepcopy(tx) == tx and hash(copy.deepcopy(tx)) == hash(tx)
print(json.dumps(type(state[1]).__name__))
"""


def test_a_pickle_loads_where_nothing_has_been_imported():
    tx = gx.chain(gx.clip(1.0), gx.scale_by_lion(0.8))
    state = tx.init({"w": 1.0})
    assert run(PICKLED, pickle.dumps((tx, state)).hex()) == type(state[1]).__name__


def test_a_spawned_process_gets_transforms():
    code = """
import json, multiprocessing
import gradxform as gx
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        tx = gx.adamw(gx.cosine_decay_schedule(0.1, 10))
        print(json.dumps(pool.apply(repr, (tx,)) == repr(tx)))
"""
    assert run(code) is True


def test_classes_compile_their_init_when_they_are_called():
    code = """
import json
import gradxform as gx
kinds = [type(vars(gx.scale_by_lion)["__init__"]).__name__]
a = gx.scale_by_lion(0.5)
kinds.append(type(vars(gx.scale_by_lion)["__init__"]).__name__)
own = [name in vars(gx.scale_by_lion) for name in ("__setattr__", "__delattr__", "__eq__")]
print(json.dumps([kinds, own]))
"""
    assert run(code) == [["_Init", "function"], [False, False, False]]


def test_threads_may_make_the_first_value_of_a_class_at_once():
    class part(gx.ArrayRule):
        number: float = 1.0

        def rule(self, g, p):
            return g

    kind, made = gx.transform(part), []
    gate = threading.Barrier(8)

    def make():
        gate.wait()
        made.append(kind(2.0))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [kind(2.0)] * 8


@pytest.mark.parametrize("package", [gx, importlib.import_module("gradxform.distributed")])
def test_a_package_is_pickled_by_its_name(package):
    """As modules are by cloudpickle, when functions that use them travel to other processes."""
    assert pickle.loads(pickle.dumps(package)) is package

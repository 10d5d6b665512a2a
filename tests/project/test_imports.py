"""What `import gradxform` loads, and in which order modules may be loaded."""

import ast
import json
import os
import pickle
import subprocess
import sys

import pytest

import gradxform as gx
from gradxform._names.table import NAMES
from gradxform.values.registry import REGISTRY
from tests.environment import limit
from tests.project import names

FIRST = {"gradxform", "gradxform._names"}
FIRST |= {f"gradxform._names.{file}" for file in ("homes", "jax_first", "lazy", "table", "version")}
# What a first optimizer does not need.
HEAVY = ("jax.extend", "jax._src.pallas", "jax.experimental", "jax._src.checkify")
HEAVY += ("jax._src.scipy", "jax.scipy", "optax", "flax", "matplotlib")
# The families that `chain`, `adamw`, `clip_by_global_norm` and a schedule are made of.
USED = {
    "optimizers": {"adam", "optimizer"},
    "schedules": {"decay", "periodic", "schedule"},
    "transforms": {
        *("adam", "clipping", "matrices", "momentum", "scaling", "together"),
    },
    "wrappers": {"changed_steps", "compose", "one_pass", "parts"},
}


def run(code, *argv, **env):
    """What a program prints in a fresh process, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        capture_output=True,
        text=True,
        timeout=limit(60, 240),
        env=os.environ | {"PYTHONPATH": str(names.ROOT), "JAX_PLATFORMS": "cpu"} | env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LOADED = """
import json, sys
{before}
before = set(sys.modules)
{code}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(code, before="import jax, jax.numpy"):
    return set(run(LOADED.format(before=before, code=code)))


# -------------------------------------------------------------------------------- what is loaded


def test_the_table_of_names_is_what_the_files_say():
    assert names.TABLE.read_text("utf-8") == names.table(), (
        "gradxform/_names/table.py is not what the files say is public: run `make tables`."
    )


@pytest.mark.parametrize("package", names.STUBS)
def test_a_stub_says_what_the_files_of_a_package_make_public(package):
    assert names.stub_of(package).read_text("utf-8") == names.stub(package), (
        f"{names.stub_of(package)} is not what the files say is public: run `make tables`."
    )


def test_the_import_loads_the_table_of_names_and_nothing_else():
    assert loaded_by("import gradxform") == FIRST
    found = loaded_by("import gradxform; dir(gradxform), gradxform.__all__", before="")
    assert {x for x in found if x.split(".")[0] in ("gradxform", "jax", "numpy")} == FIRST


USE = """
import gradxform as gx
gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(gx.cosine_decay_schedule(1e-3, 100)))
"""


def test_a_first_optimizer_loads_its_families_only():
    found = loaded_by(USE)
    for package, files in USED.items():
        inside = {x.split(".")[2] for x in found if x.startswith(f"gradxform.{package}.")}
        assert inside <= files, package
    assert not {x for x in found if x.startswith(HEAVY)}
    for package in ("distributed", "compat", "testing", "training", "sparse"):
        assert f"gradxform.{package}" not in found


ONE_NAME = """
import importlib, json, os, sys
import jax, jax.numpy
packages, wrong = json.loads(sys.argv[1]), []
for package, files in packages.items():
    pid = os.fork()
    if pid:
        if os.waitpid(pid, 0)[1]:
            wrong.append(package)
        continue
    file = min(files)
    getattr(importlib.import_module(package), files[file].split()[0])
    os._exit(file not in sys.modules or set(files) <= set(sys.modules))
print(json.dumps(wrong))
"""
# Whose files need each other.
WHOLE = {"gradxform", "gradxform.engine", "gradxform.testing"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, which Windows does not have")
def test_a_package_does_not_load_all_its_files_for_one_name():
    packages = {k: files for k, files in NAMES.items() if k not in WHOLE and len(files) > 2}
    assert len(packages) > 8 and run(ONE_NAME, json.dumps(packages)) == []


HELP = """
import json, sys
from gradxform.commands import main
try:
    main(["--help"])
except SystemExit as end:
    print(json.dumps([end.code, *(x for x in ("jax", "numpy") if x in sys.modules)]))
"""


def test_the_help_of_the_command_line_needs_no_jax():
    assert run(HELP) == [0]


# ------------------------------------------------------------------------------------- the order


def imported_by(module):
    """The modules that loading one loads: its package, and what its head imports."""
    known = set(names.modules())
    found = {module.rpartition(".")[0]} - {""}
    for node in ast.parse(names.source_of(module).read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {node.module} | (inside & known)
            files = NAMES.get(node.module, {}).items()
            for alias in node.names:  # a package loads the file of a name
                found |= {file for file, own in files if alias.name in own.split()}
    return (found & known) - {module}


def test_no_module_is_needed_to_load_itself():
    """Neither by way of its package, whose head is run before: then threads cannot wait for each
    other, and any module may be the first."""
    graph = {module: imported_by(module) for module in names.modules()}
    graph["gradxform"] = set()  # it needs three modules that need nothing
    for recipe in gx.OPTIMIZERS.values():  # whose docstrings are completed with those of others
        words = (recipe.__doc__ or "").partition("See also ")[2].partition(".")[0].split("`")[1::2]
        homes = {REGISTRY._homes[word] for word in words if word in REGISTRY._homes}
        graph[recipe.__module__] |= homes - {recipe.__module__}
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            path.append(module)
            for other in sorted(graph[module]):
                visit(other)
            done.add(path.pop())

    for module in graph:
        visit(module)


ALONE = """
import json, os, sys, traceback
import jax, jax.numpy, jax.extend.core
homes, modules = json.loads(sys.argv[1]), json.loads(sys.argv[2])
wrong = []
for module in modules:
    pid = os.fork()
    if pid:
        if os.waitpid(pid, 0)[1]:
            wrong.append(module)
        continue
    try:
        __import__(module)
        from gradxform.values.registry import REGISTRY
        for name in homes.get(module, ()):
            assert REGISTRY[name] is not None, name
            assert ":" in name or name in REGISTRY._parts, name
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)
print(json.dumps(wrong))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, which Windows does not have")
def test_any_module_may_be_the_first_and_registers_its_parts():
    """Of those that have parts for configs, and of the packages."""
    parts = {}
    for name, home in REGISTRY._homes.items():
        parts.setdefault(home, []).append(name)
    first = sorted({*parts, *NAMES})
    assert run(ALONE, json.dumps(parts), json.dumps(first)) == []


THREADS = """
import json, sys, threading
sys.setswitchinterval(1e-6)
import gradxform as gx
names, longest = json.loads(sys.argv[1]), float(sys.argv[2])
gate, found, wrong = threading.Barrier(len(names)), {}, []

def ask(name):
    gate.wait()
    try:
        if name.startswith("import "):
            exec(name)
        else:
            found[name] = getattr(gx, name)
    except BaseException as error:
        wrong.append(f"{name}: {error!r}")

threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(longest)
wrong += [f"{thread.name} hangs" for thread in threads if thread.is_alive()]
wrong += [name for name, x in found.items() if getattr(gx, name) is not x]
wrong += [name for name in ("metrics", "describe") if not callable(getattr(gx, name))]
tx = gx.chain(gx.clip(1.0), gx.adamw(1e-3))
assert gx.from_json(gx.to_json(tx)) == tx
print(json.dumps(wrong))
"""
AT_ONCE = [
    *(
        "adamw",
        "adamw",
        "metrics",
        "describe",
        "shampoo",
        "lbfgs",
        "chain",
        "masked",
        "moving_average",
    ),
    *("distributed", "compat", "testing", "Optimizer", "minimize", "from_config", "soap", "muon"),
    *("Transform", "RowSparse", "OPTIMIZERS", "inject_hyperparams", "GradientTransformation"),
    *("import gradxform.wrappers.sam", "import gradxform.engine.lift", "adopt"),
    *("import gradxform.leaves.storage.blocks", "import gradxform.optimizers.adam"),
]


@pytest.mark.parametrize("turn", range(3))
def test_threads_may_ask_for_names_at_once(turn):
    turned = AT_ONCE[turn * 9 :] + AT_ONCE[: turn * 9]
    names_asked = [name for name in turned if name.startswith("import ") or hasattr(gx, name)]
    assert len(names_asked) == len(AT_ONCE)
    assert run(THREADS, json.dumps(names_asked), str(limit(20, 60))) == []


# Nobody has imported JAX, whose modules need each other while they are loaded.
BEFORE_JAX = """
import importlib, json, pickle, sys, threading
sys.setswitchinterval(1e-6)
import gradxform as gx
assert "jax" not in sys.modules
asked, pickled, longest = list(gx.__all__), bytes.fromhex(sys.argv[1]), float(sys.argv[2])
begins = [
    lambda: importlib.import_module("gradxform.distributed"),
    lambda: exec("from gradxform.sparse import grad"),
    lambda: exec("from gradxform.compat.keras import Adam"),
    lambda: exec("import gradxform.distributed.center as center"),
    lambda: pickle.loads(pickled),
    lambda: exec("from gradxform import *", {}),
]
gate, wrong = threading.Barrier(16), []

def ask(turn):
    gate.wait()
    begin = begins[turn:turn + 1]
    for step in [*begin, *(lambda name=name: getattr(gx, name) for name in asked[turn::3])]:
        try:
            step()
        except BaseException as error:
            wrong.append(repr(error))

threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(longest)
wrong += [f"{thread.name} hangs" for thread in threads if thread.is_alive()]
for name in asked:
    getattr(gx, name)
print(json.dumps(wrong))
"""


@pytest.mark.parametrize("turn", range(2))
def test_threads_may_ask_before_anybody_has_imported_jax(turn):
    tx = gx.chain(gx.clip(1.0), gx.scale_by_lion(0.8))
    assert run(BEFORE_JAX, pickle.dumps(tx).hex(), str(limit(40, 120)), TURN=str(turn)) == []


# ------------------------------------------------------------------------------------ the registry

FRESH = """
import json, sys
import gradxform as gx
made = [
    gx.from_config({"name": "scale_by_lion"}),
    gx.from_config({"name": "adamw", "learning_rate": 0.1}),
]
shampoo = "gradxform.transforms.shampoo.shampoo" in sys.modules
made += [
    gx.from_config({"name": "keras:Adam"}),
    gx.from_json('{"name": "zero1", "inner": {"name": "sgd", "learning_rate": 0.1}, "axes": "d"}'),
    gx.from_config({"name": "MultiSteps", "opt": {"name": "adam", "learning_rate": 0.1},
        "every_k_schedule": 2, "should_skip_update_fn": {"function": "skip_not_finite"}}),
]
for tx in made:
    assert gx.from_json(gx.to_json(tx)) == tx
    from gradxform.values.registry import REGISTRY
    assert eval(repr(tx), {}, REGISTRY) == tx, tx
messages = []
for name in ("adamww", "keras:Adm", "their:part"):
    try:
        gx.from_config({"name": name})
    except ValueError as error:
        messages.append(str(error))
print(json.dumps([messages, shampoo]))
"""


def test_configs_find_parts_that_nobody_has_loaded():
    (first, second, third), shampoo = run(FRESH)
    assert "Did you mean 'adamw'" in first and "'keras:Adam'" in second
    assert "Import the package that registers 'their:part' first" in third
    assert not shampoo


def test_the_registry_is_a_mapping_of_names_to_parts():
    assert set(REGISTRY) == set(dict(REGISTRY.items())) and len(REGISTRY) == len(list(REGISTRY))
    assert "apply_updates" not in REGISTRY and REGISTRY.get("apply_updates") is None
    assert REGISTRY["adamw"] is gx.adamw and REGISTRY.name_of(gx.adamw) == "adamw"
    assert (
        REGISTRY.name_of(gx.compat.keras.Adam)
        == "keras:Adam"
        == REGISTRY.name_of(REGISTRY["keras:Adam"])
    )
    assert REGISTRY.name_of(gx.apply_updates) is None
    with pytest.raises(ValueError, match=r"'keras:Adam' is already registered, by gradxform"):
        gx.register("keras:Adam", lambda: None)
    with pytest.raises(KeyError):
        REGISTRY["their:nothing"]

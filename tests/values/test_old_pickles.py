"""Pickles of the rows of the catalogue, as the library wrote them at commit 1f3e939.

`tests/golden/pickles_1f3e939.pkl.xz` has each row (`Row`) with its state after one update. It is
never written anew: the pickles name modules as they were then, and whoever moves a class or a
function keeps it within reach there. Two rows are not in it, `GradientTransformation` and
`chain/optax inside`: they hold functions that were made inside of functions, which do not pickle.
"""

import collections
import importlib
import json
import lzma
import operator
import pickle
import pickletools
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.testing.promise import settings
from tests.catalogue import CASES, Case
from tests.project import names
from tests.project.test_imports import run


class Row(NamedTuple):
    made: bytes  # a pickle of the transform
    state: bytes  # a pickle of its state
    params: bytes  # a pickle of the parameters
    printed: str  # repr(transform)
    paths: list[str]  # of the leaves of the state


ARCHIVE = names.ROOT / "tests" / "golden" / "pickles_1f3e939.pkl.xz"
STORED = pickle.loads(lzma.decompress(ARCHIVE.read_bytes()))
ROWS = {name: Row(*parts) for name, parts in STORED.items()}
# States that ask for `migrate_state` before they go on: these were without a `unit`.
OF_OLDER_FORM = {
    ("gradxform.transforms.lbfgs_steps", "StepByLBFGSState"),
    ("gradxform.transforms.lbfgsb", "StepByLBFGSBState"),
}


def named_in(data):
    """The classes and functions that a pickle names, as pairs of a module and a name in it."""
    named, pushed, memo = set(), [], []
    for code, argument, _ in pickletools.genops(data):
        if code.name == "MEMOIZE":
            memo.append(pushed[-1])
        elif code.name == "STACK_GLOBAL":
            named.add(tuple(pushed[-2:]))
            pushed.append(None)
        elif code.name in ("BINGET", "LONG_BINGET"):
            pushed.append(memo[argument])
        else:
            pushed.append(argument if isinstance(argument, str) else None)
    return named


NAMED = {name: named_in(row.made) | named_in(row.state) for name, row in ROWS.items()}
# By module, of the library and of the catalogue; what JAX and NumPy name is their concern.
PATHS = collections.defaultdict(set)
for _module, _name in sorted(set().union(*NAMED.values())):
    if _module.split(".")[0] in ("gradxform", "tests"):
        PATHS[_module].add(_name)


def one_for_each_class():
    """The rows whose states have a class, of a state or of a storage, that none before them has."""
    seen, first = set(), []
    for name, row in ROWS.items():
        ours = {pair for pair in named_in(row.state) if pair[0] in PATHS}
        if not ours <= seen:
            first.append(name)
        seen |= ours
    return first


def exists(module, name):
    try:
        operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def load(name):
    """The transform, the state and the parameters of a row."""
    others = [pair for pair in sorted(NAMED[name]) if pair[0] not in PATHS]
    if gone := [".".join(pair) for pair in others if not exists(*pair)]:
        pytest.skip(f"other libraries no longer have {', '.join(gone)}")
    row = ROWS[name]
    return tuple(map(pickle.loads, (row.made, row.state, row.params)))


def is_as_it_was(name):
    return name in CASES and repr(CASES[name].tx) == ROWS[name].printed


def paths_of(state):
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]


# ---------------------------------------------------------------------------------------- modules


@pytest.mark.parametrize("module", PATHS)
def test_what_a_pickle_names_is_where_it_was(module):
    exec(f"import {module}", {})
    assert importlib.import_module(module) is sys.modules[module]
    assert [name for name in PATHS[module] if not exists(module, name)] == []


FRESH = """
import json, operator, sys
wrong = []
for module, names in json.loads(sys.argv[1]).items():
    for name in names:
        try:
            exec(f"import {module}")
            operator.attrgetter(name)(sys.modules[module])
        except Exception as error:
            wrong.append(f"{module}.{name}: {error!r}")
print(json.dumps(wrong))
"""


def test_it_is_there_where_nothing_has_been_imported():
    library = {module: sorted(named) for module, named in PATHS.items() if module[:5] != "tests"}
    assert run(FRESH, json.dumps(library)) == []


# ------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("name", ROWS)
def test_an_old_row_loads(name):
    made, state, _ = load(name)
    if is_as_it_was(name):
        assert made == CASES[name].tx and hash(made) == hash(CASES[name].tx)
    again = pickle.loads(pickle.dumps((made, state)))
    assert again[0] == made
    assert jax.tree.structure(again[1]) == jax.tree.structure(state)
    if not NAMED[name] & OF_OLDER_FORM:
        assert paths_of(state) == ROWS[name].paths


def test_almost_all_rows_are_compared_with_those_of_today():
    others = [name for name in ROWS if not is_as_it_was(name)]
    assert len(ROWS) == 424 and len(others) <= 0.05 * len(ROWS), others


@pytest.mark.parametrize("name", one_for_each_class())
def test_an_old_state_goes_on(name):
    tx, state, params = load(name)
    case = CASES.get(name) or Case(tx)
    grads = case.like(jax.tree.map(jnp.ones_like, params))
    extra = case.extra_of(grads, params)
    with settings(case):
        if NAMED[name] & OF_OLDER_FORM:
            with pytest.raises(ValueError, match="of an older form; go on with that of migrate_st"):
                tx.update(grads, state, params, **extra)
            state, _ = gx.migrate_state(state, tx, tx, params)
        updates, after = tx.update(grads, state, params, **extra)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert all(np.isfinite(np.asarray(u)).all() for u in jax.tree.leaves(updates))
    assert jax.tree.structure(after) == jax.tree.structure(state)

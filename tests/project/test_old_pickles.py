"""Pickles of transforms, schedules and states that an older version has written.

`tests/golden/values.zip` was written before modules were loaded on demand. It has a transform with
its state for almost every class of values and states, and how the transform printed.
"""

import json
import pickle
import zipfile

import jax
import numpy as np
import pytest

import gradxform as gx
from tests.project import names
from tests.project.test_imports import run

ARCHIVE = names.ROOT / "tests" / "golden" / "values.zip"
with zipfile.ZipFile(ARCHIVE) as _archive:
    PICKLES = {n.removesuffix(".pickle"): _archive.read(n) for n in _archive.namelist() if "." in n}
PRINTED = json.loads(PICKLES.pop("reprs.json"))


@pytest.mark.parametrize("name", PICKLES)
def test_an_old_pickle_loads(name):
    made, state = pickle.loads(PICKLES[name])
    assert repr(made) == PRINTED[name]
    again = pickle.loads(pickle.dumps((made, state)))
    assert again[0] == made
    assert jax.tree.structure(again[1]) == jax.tree.structure(state)
    assert all(map(np.array_equal, jax.tree.leaves(again[1]), jax.tree.leaves(state)))


FRESH = """
import json, pickle, sys, zipfile
wrong = []
with zipfile.ZipFile(sys.argv[1]) as archive:
    for name in sorted(archive.namelist()):
        if name.endswith(".pickle"):
            try:
                pickle.loads(archive.read(name))
            except Exception as error:
                wrong.append(f"{name}: {error!r}")
import gradxform
print(json.dumps(wrong))
"""


def test_old_pickles_load_where_nothing_has_been_imported():
    assert run(FRESH, str(ARCHIVE)) == []


def test_an_old_state_goes_on():
    tx, state = pickle.loads(PICKLES["scale_by_adam"])
    assert isinstance(tx, gx.scale_by_adam)
    params = jax.tree.map(np.ones_like, state.mu)
    updates, _ = tx.update(params, state, params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(updates))

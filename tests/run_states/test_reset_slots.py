"""Slots of some parameters, or of some of their entries, begin anew in the middle of a run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from jax.sharding import NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.leaves import is_hole, names_of, with_paths
from gradxform.leaves.storage import fetched, is_stored
from gradxform.testing.promise import settings
from gradxform.tree.params_in_state import map_params
from gradxform.wrappers.parts import all_parts
from tests.catalogue import CASES
from tests.run_states.test_migrate import after, numbered
from tests.telling import with_new_parts
from tests.trees import assert_identical

pytestmark = pytest.mark.numeric

PARAMS = {"emb": jnp.arange(10.0).reshape(5, 2), "w": jnp.ones((3, 4)), "b": jnp.ones(4)}
ROWS = with_new_parts(CASES)


def changes(new, old):
    """The paths of the arrays of a state that differ, as names."""
    pairs = zip(jax.tree_util.tree_flatten_with_path(old)[0], jax.tree.leaves(new), strict=True)
    return {names_of(path) for (path, x), y in pairs if not same_bits(x, y)}


def same_bits(x, y):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = map(jax.random.key_data, (x, y))
    return np.asarray(x).tobytes() == np.asarray(y).tobytes()


def is_below(path, names):
    """Whether a parameter's path is in that of an array."""
    n = len(path)
    return any(names[i : i + n] == path for i in range(len(names) - n + 1))


def is_joint(tx):
    """Whether a part keeps all parameters in one array."""
    return any(isinstance(part, gx.flatten) for part in all_parts(tx))


# -------------------------------------------------------------------------------- every transform


@pytest.mark.parametrize("name", ROWS)
def test_all_slots_begin_as_init_has_them_and_nothing_else_changes(name):
    case = CASES[name]
    with settings(case):
        tx, params = case.tx, case.params()
        fresh = tx.init(params)
        state = numbered(fresh)
        new = gx.reset_slots(state, tx, params, True)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        assert same_types(new, state)
        paths = [path for path, x in with_paths(params) if not is_hole(x)]
        try:
            seen = jax.tree.map(lambda x: jnp.zeros(x.shape), state, is_leaf=is_stored)
            indices = jax.tree.unflatten(jax.tree.structure(params), range(len(paths)))
            like = map_params(tx, is_slot, seen, indices, transform_non_params=lambda _: False)
        except (TypeError, ValueError):  # its init looks into the parameters
            like = jax.tree.map(lambda _: False, state, is_leaf=is_stored)
        flat = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_stored)[0]
        leaves = [jax.tree.leaves(x, is_leaf=is_stored) for x in (new, fresh)]
        is_like = jax.tree.leaves(like)
        for (path, old), x, first, declared in zip(flat, *leaves, is_like, strict=True):
            names = names_of(path)
            owned = declared or any(is_below(p, names) for p in paths if p)
            assert_identical(x, first if owned else old)


def is_slot(x, index):
    """Whether an array is of one parameter, or of all in one; not the average of a measure."""
    return isinstance(index, int) or x.ndim > 0


def same_types(a, b):
    kinds = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (a, b)]
    return kinds[0] == kinds[1]


@pytest.mark.parametrize("name", ROWS)
def test_only_the_slots_of_the_chosen_parameter_change(name):
    case = CASES[name]
    with settings(case):
        tx, params = case.tx, case.params()
        fresh = tx.init(params)
        state = numbered(fresh)
        paths = [path for path, x in with_paths(params) if not is_hole(x)]
        chosen = max(paths, key=len)
        where = jax.tree_util.tree_map_with_path(lambda p, _: names_of(p) == chosen, params)
        if is_joint(tx) and jax.tree.leaves(state) and len(paths) > 1:
            with pytest.raises(ValueError, match="all parameters in one array"):
                gx.reset_slots(state, tx, params, where)
            return
        new = gx.reset_slots(state, tx, params, where)
        everything = changes(gx.reset_slots(state, tx, params, True), state)
        if len(paths) > 1:
            expected = {names for names in everything if is_below(chosen, names)}
            assert changes(new, state) == expected
        else:
            assert changes(new, state) == everything


@pytest.mark.parametrize("name", ROWS)
def test_rows_begin_anew_and_others_stay_or_it_is_refused(name):
    case = CASES[name]
    with settings(case):
        tx, params = case.tx, case.params()
        fresh = tx.init(params)
        state = numbered(fresh)
        paths = {path: x for path, x in with_paths(params) if not is_hole(x)}
        tables = [path for path, x in paths.items() if jnp.ndim(x) == 2 and len(x) > 1]
        if not tables or not all(tables):
            pytest.skip("no matrix with a name")
        n, m = paths[tables[0]].shape
        rows = np.arange(n) % 2 == 1
        where = jax.tree_util.tree_map_with_path(
            lambda p, _: jnp.asarray(rows) if names_of(p) == tables[0] else False, params
        )
        try:
            new = gx.reset_slots(state, tx, params, where)
        except ValueError as error:
            assert "cannot begin anew in part" in str(error)
            assert tx.locality not in ("entry", "row") or is_kept_as_means(fresh)
            return
        flat = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_stored)[0]
        leaves = [jax.tree.leaves(x, is_leaf=is_stored) for x in (new, fresh)]
        for (path, old), *pair in zip(flat, *leaves, strict=True):
            if is_stored(old):  # see below for what it keeps
                continue
            old, x, first = fetched((old, *pair))
            if not is_below(tables[0], names_of(path)) or n not in old.shape:
                assert same_bits(x, old), path
            elif old.shape == (n, m) and n != m:
                np.testing.assert_array_equal(x[rows], first[rows])
                np.testing.assert_array_equal(x[~rows], old[~rows])


def is_kept_as_means(state):
    leaves = jax.tree.leaves(state, is_leaf=is_stored)
    return any(is_stored(x) and x.needs_means for x in leaves)

"""Trees that can be called, as most Equinox models, and mappings, as masks, labels and bounds."""

from collections import UserDict
from types import MappingProxyType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.values import is_function

pytestmark = pytest.mark.numeric

MODEL = eqx.filter(eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0)), eqx.is_array)


def model_of(f):
    return jax.tree.map(f, MODEL)


MATRICES = model_of(lambda x: x.ndim > 1)
LABELS = model_of(lambda x: "matrix" if x.ndim > 1 else "vector")


def step(tx):
    return tx.update(MODEL, tx.init(MODEL), MODEL)[0]


def on_dict(make):
    """The updates of a dict by the same choice."""
    flat, treedef = jax.tree.flatten(MODEL)
    tree = dict(enumerate(flat))
    tx = make(lambda f: {k: f(x) for k, x in tree.items()})
    updates, _ = tx.update(tree, tx.init(tree), tree)
    return treedef.unflatten(updates[k] for k in range(len(flat)))


def is_matrix(x):
    return x.ndim > 1


PLACES = {
    "adamw": lambda tree: gx.adamw(0.1, mask=tree(is_matrix)),
    "masked": lambda tree: gx.masked(gx.scale(2.0), tree(is_matrix)),
    "add_decayed_weights": lambda tree: gx.add_decayed_weights(0.1, tree(is_matrix)),
    "lars": lambda tree: gx.lars(0.1, trust_ratio_mask=tree(is_matrix)),
    "freeze": lambda tree: gx.freeze(tree(is_matrix)),
    "selective_transform": lambda tree: gx.selective_transform(
        gx.sgd(0.1), freeze_mask=tree(is_matrix)
    ),
    "partition": lambda tree: gx.partition(
        {"matrix": gx.sgd(0.1), "vector": gx.adam(0.1)},
        tree(lambda x: "matrix" if x.ndim > 1 else "vector"),
    ),
    "muon": lambda tree: gx.contrib.muon(
        0.1,
        muon_weight_dimension_numbers=tree(
            lambda x: gx.contrib.MuonDimensionNumbers() if x.ndim > 1 else None
        ),
    ),
    "quantize_state": lambda tree: gx.quantize_state(
        gx.adam(0.1), which=tree(is_matrix), min_size=0
    ),
}


@pytest.mark.parametrize("place", list(PLACES))
def test_a_model_that_can_be_called_is_a_tree(place):
    tx = PLACES[place](model_of)
    expected = on_dict(PLACES[place])
    for a, b in zip(jax.tree.leaves(step(tx)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert PLACES[place](model_of) == tx and hash(tx) == hash(PLACES[place](model_of))


def test_a_model_of_bounds_is_a_tree():
    lower = model_of(lambda x: 0.25)
    tx = gx.lbfgsb(lower=lower)
    start = model_of(lambda x: jnp.full_like(x, 0.5))
    loss = lambda model: sum(jnp.sum(x**2) for x in jax.tree.leaves(model))  # noqa: E731
    value, grads = jax.value_and_grad(loss)(start)
    updates, _ = tx.update(grads, tx.init(start), start, value=value, grad=grads, value_fn=loss)
    for p in jax.tree.leaves(gx.apply_updates(start, updates)):
        assert np.all(p >= 0.25)


def test_functions_are_called():
    assert is_function(is_matrix) and is_function(jax.tree_util.Partial(is_matrix))
    assert not is_function(MATRICES) and not is_function(LABELS) and not is_function(dict)
    by_function = gx.masked(gx.scale(2.0), lambda tree: jax.tree.map(is_matrix, tree))
    for a, b in zip(
        jax.tree.leaves(step(by_function)),
        jax.tree.leaves(step(gx.masked(gx.scale(2.0), MATRICES))),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


class Config:
    """A mapping only by its methods, as an ml_collections.ConfigDict is."""

    def __init__(self, items):
        self._items = items

    def keys(self):
        return self._items.keys()

    def __getitem__(self, key):
        return self._items[key]


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType, Config])
def test_any_mapping_is_a_mask(kind):
    params = {"a": {"w": jnp.ones(2), "b": jnp.ones(2)}, "c": jnp.ones(2)}
    mask = kind({"a": kind({"w": True, "b": False}), "c": False})
    tx = gx.masked(gx.set_to_zero(), mask)
    assert tx == gx.masked(gx.set_to_zero(), {"a": {"w": True, "b": False}, "c": False})
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["a"]["w"], np.zeros(2))
    np.testing.assert_array_equal(updates["a"]["b"], np.ones(2))
    by_function = gx.masked(gx.set_to_zero(), lambda tree: mask)
    updates, _ = by_function.update(params, by_function.init(params), params)
    np.testing.assert_array_equal(updates["c"], np.ones(2))

"""NamedTuples among the parameters: they are not taken for states."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform import distributed as gd

pytestmark = pytest.mark.numeric


class Linear(NamedTuple):
    w: Any
    b: Any


PARAMS = {"l": Linear(jnp.ones((2, 3)), jnp.ones(3)), "r": jnp.ones(4)}
AS_DICT = {"l": {"w": PARAMS["l"].w, "b": PARAMS["l"].b}, "r": PARAMS["r"]}
OPTIMIZERS = {
    "adam": lambda: gx.adam(0.1),
    "moving_average": lambda: gx.moving_average(gx.sgd(0.1, momentum=0.9), 0.9),
    "apply_if_finite": lambda: gx.apply_if_finite(gx.adam(0.1), 3),
    "masked": lambda: gx.masked(gx.adam(0.1), gx.ndim_at_least(1)),
    "partition": lambda: gx.partition(
        {"a": gx.adam(0.1)}, lambda p: jax.tree.map(lambda _: "a", p)
    ),
    "MultiSteps": lambda: gx.MultiSteps(gx.adam(0.1), 2),
    "lookahead": lambda: gx.lookahead(gx.adam(0.1), 2, 0.5),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_weights_are_all_arrays_of_the_state(name):
    tx = OPTIMIZERS[name]()
    optimizer, of_dict = gx.Optimizer(tx, PARAMS), gx.Optimizer(tx, AS_DICT)
    weights = optimizer.get_weights()
    assert len(weights) == 1 + len(jax.tree.leaves(tx.init(PARAMS)))
    # A dict is flattened by its keys in order, a NamedTuple by its fields.
    assert sorted(np.shape(w) for w in weights) == sorted(
        np.shape(w) for w in of_dict.get_weights()
    )
    optimizer.set_weights(weights)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_slots_and_metrics_are_those_of_a_dict(name):
    tx = OPTIMIZERS[name]()
    states = []
    for params in (PARAMS, AS_DICT):
        state = tx.init(params)
        for _ in range(2):
            _, state = tx.update(params, state, params)
        states.append(state)
    names = [gx.Optimizer(tx, params).get_slot_names() for params in (PARAMS, AS_DICT)]
    assert names[0] == names[1]
    numbers = [gx.metrics(state, slots=True) for state in states]
    assert numbers[0].keys() == numbers[1].keys()
    for k in numbers[0]:
        np.testing.assert_allclose(numbers[0][k], numbers[1][k], rtol=1e-6)


def test_parameters_in_a_named_tuple_are_resized_as_parameters():
    tree = jax.tree.map(lambda p: jnp.stack([p, 3 * p]), PARAMS)
    state = jax.vmap(gx.adam(0.1).init)(tree)
    resized = gd.resize_replicas({"params": tree, "state": state}, 3)
    np.testing.assert_array_equal(resized["params"]["l"].w, np.full((3, 2, 3), 2.0))

"""Paths of leaves: a field named `value` is a part of one, the value of a Variable is not."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx

import gradxform as gx
from gradxform.leaves import with_paths

pytestmark = pytest.mark.numeric


class Named(NamedTuple):
    value: Any
    scale: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    value: Any
    scale: Any


@flax.struct.dataclass
class Struct:
    value: Any
    scale: Any


class Module(eqx.Module):
    value: Any
    scale: Any


CONTAINERS = [Named, Data, Struct, Module]


@pytest.fixture(params=CONTAINERS, ids=lambda kind: kind.__name__)
def tree(request):
    return request.param(jnp.ones(2), jnp.full(3, 2.0))


def like(tree, value, scale):
    return type(tree)(value, scale)


def step(tx, tree):
    return tx.update(tree, tx.init(tree), tree)[0]


def test_a_field_named_value_has_its_name(tree):
    assert [path for path, _ in with_paths(tree)] == [("value",), ("scale",)]
    assert [path for path, _ in with_paths({"a": tree})] == [("a", "value"), ("a", "scale")]


CHOICES = {
    "masked": lambda tree: gx.masked(gx.set_to_zero(), like(tree, True, False)),
    "masked by a pattern": lambda _: gx.masked(gx.set_to_zero(), gx.path_matches("^value$")),
    "partition": lambda tree: gx.partition(
        {"zero": gx.set_to_zero(), "same": gx.identity()}, like(tree, "zero", "same")
    ),
    "freeze": lambda tree: gx.freeze(like(tree, True, False)),
    "selective_transform": lambda tree: gx.selective_transform(
        gx.identity(), freeze_mask=like(tree, True, False)
    ),
}


@pytest.mark.parametrize("choice", list(CHOICES))
def test_a_choice_of_the_field_value_leaves_the_others_alone(choice, tree):
    updates = step(CHOICES[choice](tree), tree)
    np.testing.assert_array_equal(updates.value, np.zeros(2))
    np.testing.assert_array_equal(updates.scale, tree.scale)


def test_the_other_way_round(tree):
    updates = step(gx.masked(gx.set_to_zero(), like(tree, False, True)), tree)
    np.testing.assert_array_equal(updates.value, tree.value)
    np.testing.assert_array_equal(updates.scale, np.zeros(3))


def test_slots_and_weights_have_the_name(tree):
    tx = gx.adam(0.1)
    _, state = tx.update(tree, tx.init(tree), tree)
    slots = gx.get_slots(tx, state)
    assert set(slots) == {"mu", "nu", "count"}
    np.testing.assert_allclose(slots["mu"].value, 0.1 * tree.value, rtol=1e-5)


def test_a_variable_has_the_path_of_its_value():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    state = nnx.state(model, nnx.Param)
    assert [path for path, _ in with_paths(state)] == [("bias",), ("kernel",)]
    pure = nnx.to_pure_dict(state)
    masked = gx.masked(gx.set_to_zero(), gx.path_matches("kernel$"))
    updates, _ = masked.update(pure, masked.init(state), pure)
    assert not np.any(updates["kernel"]) and np.all(updates["bias"] == pure["bias"])


def test_a_variable_inside_a_field_named_value(tree):
    inside = like(tree, nnx.Param(jnp.ones(2)), {"value": nnx.Param(jnp.ones(3))})
    assert [path for path, _ in with_paths(inside)] == [("value",), ("scale", "value")]


def test_a_box_of_linen_has_the_path_of_its_value():
    w, b = nn.Partitioned(jnp.ones(2), ("x",)), jnp.ones(3)
    assert [path for path, _ in with_paths({"w": w, "b": b})] == [("b",), ("w",)]
    frozen = step(gx.freeze(gx.path_matches("w$")), {"w": w, "b": b})
    np.testing.assert_array_equal(frozen["w"].value, 0)
    np.testing.assert_array_equal(frozen["b"], 1)

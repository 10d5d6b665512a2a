"""`ArrayRule.static`: what a rule knows of a leaf before anything is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric


@gx.transform
class scale_by_name(gx.ArrayRule):
    """Multiply the update by a factor that depends on the name and rank of the parameter."""

    factor: float = 3.0

    locality = "entry"

    def static(self, path, leaf):
        return path[-1], len(leaf.shape)

    def rule(self, g, p, static):
        name, rank = static
        return (self.factor if name == "w" else 1.0) * rank * g


TREE = {
    f"layer{i}": {"w": jnp.ones((2, 2)), "v": jnp.ones((2, 2)), "b": jnp.ones(2)} for i in (1, 2)
}


def factors(updates):
    return {k: float(np.unique(x).item()) for k, x in updates["layer1"].items()}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_rule_gets_what_static_says_of_each_leaf(wrap):
    tx = gx.chain(gx.scale(2.0), scale_by_name(), gx.scale(0.5))
    updates, _ = wrap(tx.update)(TREE, tx.init(TREE))
    assert factors(updates) == {"w": 6.0, "v": 2.0, "b": 1.0}
    assert factors(updates) == factors({"layer1": updates["layer2"]})


def test_leaves_with_equal_values_of_other_types_do_not_share_a_call():
    @gx.transform
    class by_type(gx.ArrayRule):
        """Multiply by a number of the type of the leaf's static value."""

        def static(self, path, leaf):
            return {"a": 1, "b": 1.0, "c": True}[path[-1]]

        def rule(self, g, p, static):
            return {int: 2, float: 3, bool: 5}[type(static)] * g

    tree = dict.fromkeys("abc", jnp.ones(2))
    updates, _ = by_type().update(tree, by_type().init(tree))
    assert {k: float(u[0]) for k, u in updates.items()} == {"a": 2.0, "b": 3.0, "c": 5.0}


def test_a_hole_has_no_static_and_a_mask_does_not_shift_the_values():
    tree = {"layer1": TREE["layer1"] | {"b": None}, "layer2": TREE["layer2"]}
    tx = gx.masked(scale_by_name(), gx.path_matches("w"))
    updates, _ = tx.update(tree, tx.init(TREE))
    assert updates["layer1"]["b"] is None
    assert float(updates["layer1"]["w"][0, 0]) == 6.0
    assert float(updates["layer2"]["v"][0, 0]) == 1.0


def test_static_of_a_row_sparse_leaf_is_that_of_its_parameter():
    g = gx.RowSparse(jnp.asarray([1]), jnp.ones((1, 2)), 5)
    params = {"w": jnp.ones((5, 2))}
    tx = scale_by_name()
    updates, _ = tx.update({"w": g}, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"].to_dense()[1], [6.0, 6.0])


def test_a_static_that_is_not_a_value_is_refused_with_the_leaf():
    @gx.transform
    class with_list(gx.ArrayRule):
        """Has a list as static."""

        def static(self, path, leaf):
            return [1]

        def rule(self, g, p, static):
            return g

    with pytest.raises(
        TypeError, match=r"with_list: static of \['layer1'\]\['b'\] must be a value"
    ):
        with_list().update(TREE, with_list().init(TREE))


def test_scale_by_shape_is_a_rule_that_runs_with_its_neighbours():
    assert issubclass(gx.scale_by_shape, gx.ArrayRule)
    tall = {"w": jnp.ones((4, 9))}
    tx = gx.chain(gx.scale(2.0), gx.scale_by_shape())
    updates, _ = jax.jit(tx.update)(tall, tx.init(tall))
    np.testing.assert_allclose(updates["w"], 2 * 1.5)

"""The doors for decoupled weight decay and for clipped variables, beside TensorFlow's semantics."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import tf1, tf_contrib
from tests import references as ref
from tests.public import names_of
from tests.references import as_tree, row_sparse as tables

pytestmark = pytest.mark.numeric


def test_a_cautious_decay_takes_entries_that_do_not_step():
    p, g = {"w": jnp.asarray([1.0, -2.0, 3.0])}, {"w": jnp.asarray([0.0, 1.0, 1.0])}
    tx = gx.decoupled_weight_decay(gx.sgd(0.1), 0.5, cautious=True)
    updates, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_allclose(updates["w"], [-0.5, -0.1, -1.6], rtol=1e-6)


STEPS = 6
HAT = ref.adam_hat(0.8, 0.9, 0.1)
# For each base: the door, NumPy's parts of the base, and what a table's gradient means to it.
BASES = {
    "Adagrad": ((0.1, 0.2), [ref.adagrad(0.2, 0.0), ref.scale(-0.1)], tables.rows),
    "Adam": ((0.1, 0.8, 0.9, 0.1), [HAT, ref.scale(-0.1)], tables.dense),
    "Ftrl": ((0.1, -0.5, 0.2), [ref.ftrl(0.1, start=0.2)], tables.rows),
    "GradientDescent": ((0.1,), [ref.scale(-0.1)], tables.rows),
    "Momentum": ((0.1, 0.8), [ref.trace(0.8), ref.scale(-0.1)], tables.rows),
    "RMSProp": (
        (0.1, 0.8, 0.7, 0.1),
        [ref.rms(0.8, 0.1, 1.0), ref.scale(-0.1), ref.trace(0.7)],
        tables.rows,
    ),
}


def door_of(base, **kwargs):
    return getattr(tf_contrib, f"ExtendWD_{base}")(0.2, *BASES[base][0], **kwargs)


def drawn(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def slices(seed, n=7):
    """Rows in any order, some of them several times."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, n - 2, size=5).astype(np.int32), rng.normal(size=(5, 3))


@pytest.mark.parametrize("base", BASES)
def test_a_parameter_decays_before_the_step(base):
    tx, parts = door_of(base), as_tree(ref.sequence(*BASES[base][1]))
    p = drawn(0, (4, 3))
    state, ours = tx.init({"w": jnp.asarray(p[0], jnp.float32)}), jnp.asarray(p[0], jnp.float32)
    theirs, update = parts.start(p), jax.jit(tx.update)
    for t in range(1, STEPS + 1):
        g = drawn(t, (4, 3))
        p = [p[0] * (1 - 0.2)]
        (u,), theirs = parts.step(g, theirs, p, t)
        p = [p[0] + u]
        updates, state = update({"w": jnp.asarray(g[0], jnp.float32)}, state, {"w": ours})
        ours = ours + updates["w"]
        np.testing.assert_allclose(ours, p[0], rtol=0, atol=2e-5 * np.abs(p[0]).max() + 1e-6)


@pytest.mark.parametrize("base", BASES)
def test_touched_rows_of_a_table_decay_once(base):
    tx, (_, parts, meaning) = door_of(base), BASES[base]
    table = meaning(parts)
    (p,) = drawn(0, (7, 3))
    ours = jnp.asarray(p, jnp.float32)
    state, theirs, update = tx.init({"w": ours}), table.start(p), jax.jit(tx.update)
    for t in range(1, STEPS + 1):
        indices, values = slices(t)
        if base != "GradientDescent":
            p = p.copy()
            p[np.unique(indices)] *= 1 - 0.2
        u, theirs = table.step(indices, values, theirs, p, t)
        p = p + u
        g = gx.RowSparse(indices, values.astype(np.float32), 7)
        updates, state = update({"w": g}, state, {"w": ours})
        ours = gx.apply_updates({"w": ours}, updates)["w"]
        np.testing.assert_allclose(ours, p, rtol=0, atol=2e-5 * np.abs(p).max() + 1e-6)


def test_only_named_parameters_decay():
    tree = {"w": jnp.ones(3), "b": jnp.ones(3)}
    zeros = jax.tree.map(jnp.zeros_like, tree)
    for names, expected in ((["b"], [0.0, -0.2]), ([], [-0.2, -0.2]), (None, [-0.2, -0.2])):
        tx = door_of("Momentum", decay_var_list=names)
        updates, _ = tx.update(zeros, tx.init(tree), tree)
        np.testing.assert_allclose([updates["w"][0], updates["b"][0]], expected, rtol=1e-6)
    with pytest.raises(TypeError, match="ExtendWD_Momentum: decay_var_list must be a list"):
        door_of("Momentum", decay_var_list="b")


def test_a_factory_of_ones_own_can_be_extended():
    def Descent(learning_rate, b1=0.9):
        return gx.sgd(learning_rate, b1)

    door = tf_contrib.extend_with_decoupled_weight_decay(Descent)
    listed = ["weight_decay", "learning_rate", "b1", "decay_var_list"]
    assert list(inspect.signature(door).parameters) == listed
    tree = {"w": jnp.full(3, 2.0)}
    tx = door(0.1, 0.5, b1=0.8)
    updates, _ = tx.update({"w": jnp.ones(3)}, tx.init(tree), tree)
    np.testing.assert_allclose(updates["w"], np.full(3, -0.2 - 0.5), rtol=1e-6)
    with pytest.raises(TypeError, match="Base must be a factory"):
        tf_contrib.extend_with_decoupled_weight_decay(tf1.Adam(0.1))


@pytest.mark.parametrize("base", BASES)
def test_the_doors_are_values(base):
    tx = door_of(base, decay_var_list=["b"])
    assert eval(repr(tx), names_of(gx)) == tx and gx.from_json(gx.to_json(tx)) == tx


# ------------------------------------------------------------------------------ clipped variables


def test_a_row_is_corrected_once_for_every_slice():
    """As TensorFlow does: a row [3, 4] that two slices touch becomes [-1.8, -2.4]."""
    tree = {"w": jnp.asarray([[3.0, 4.0], [6.0, 8.0], [0.3, 0.4]])}
    g = gx.RowSparse([0, 2, 0], jnp.zeros((3, 2)), 3)
    for per_slice, row in ((True, [-1.8, -2.4]), (False, [0.6, 0.8])):
        for inner in (gx.sgd(0.1), gx.chain(gx.sparse.densify(), gx.sgd(0.1))):
            tx = gx.variable_clipping(inner, {"w": (1,)}, 1.0, per_slice=per_slice)
            updates, _ = tx.update({"w": g}, tx.init(tree), tree)
            new = gx.apply_updates(tree, updates)["w"]
            np.testing.assert_allclose(new, [row, [6.0, 8.0], [0.3, 0.4]], atol=1e-6)
    door = tf_contrib.VariableClipping(tf1.GradientDescent(0.1), {"w": [1]}, 1.0)
    assert door == gx.chain(
        gx.variable_clipping(tf1.GradientDescent(0.1), {"w": (1,)}, 1.0, per_slice=True)
    )


def test_with_dimension_0_the_whole_table_is_clipped():
    tree = {"w": jnp.asarray([[3.0, 0.3], [4.0, 0.4]])}
    g = gx.RowSparse([1], jnp.zeros((1, 2)), 2)
    tx = gx.variable_clipping(gx.sgd(0.1), {"w": 0}, 1.0)
    updates, _ = tx.update({"w": g}, tx.init(tree), tree)
    new = gx.apply_updates(tree, updates)["w"]
    np.testing.assert_allclose(new, [[0.6, 0.3], [0.8, 0.4]], atol=1e-6)


def test_infinity_is_no_bound():
    tree = {"w": jnp.full((2, 2), 3e38)}
    tx = gx.variable_clipping(gx.sgd(0.1), {"w": 1}, jnp.inf)
    updates, _ = tx.update({"w": jnp.ones((2, 2))}, tx.init(tree), tree)
    np.testing.assert_allclose(updates["w"], np.full((2, 2), -0.1), rtol=1e-6)

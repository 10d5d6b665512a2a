"""Measurements of updates: Optax's values, in states that keep their form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from tests.catalogue import gradients, params

pytestmark = pytest.mark.numeric


def is_large(updates):
    """A measurement that is a boolean."""
    return optax.tree.norm(updates) > 4.5


def chain(lib):
    return lib.chain(
        lib.trace(0.9),
        lib.snapshot("before", optax.tree.norm),
        lib.monitor(
            {
                "norm": optax.tree.norm,
                "large": lib.measure_with_ema(is_large, 0.9),
                "average": lib.measure_with_ema(lambda u: u["b"], 0.5, False, jnp.float32),
            }
        ),
        lib.clip_by_global_norm(0.5),
    )


def test_the_measurements_are_those_of_optax():
    tree, ours, theirs = params(), chain(gx), chain(optax)
    state, their_state = ours.init(tree), theirs.init(tree)
    update = jax.jit(ours.update)
    for i, g in enumerate(gradients(tree, 5)):
        u, state = update(g, state, tree)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            v, their_state = theirs.update(g, their_state, tree)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), u, v)
        if i:  # before that, Optax's average of a boolean is a boolean
            assert gx.from_optax_state(ours, their_state, tree)
        for name in ("before", "norm", "large"):
            got, expected = gx.tree.get(state, name), optax.tree.get(their_state, name)
            np.testing.assert_allclose(got, expected, rtol=1e-5)
        got, expected = state[2].measurements["average"], their_state[2].measurements["average"]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    flat, theirs_flat = (jax.tree_util.tree_flatten_with_path(s)[0] for s in (state, their_state))
    assert [jax.tree_util.keystr(p) for p, _ in flat] == [
        jax.tree_util.keystr(p) for p, _ in theirs_flat
    ]


def test_the_states_of_optax_go_on():
    """Its first state has no measurements yet."""
    tree, ours = params(), gx.monitor({"b": gx.global_norm, "a": gx.global_norm})
    first = optax.monitor({"b": optax.tree.norm, "a": optax.tree.norm}).init(tree)
    _, state = ours.update(tree, first, tree)
    assert set(state.measurements) == {"a", "b"}


def test_a_measurement_keeps_its_dtypes_and_its_own_buffers():
    tree = {"w": jnp.ones(3, jnp.bfloat16)}
    tx = gx.chain(gx.snapshot("all", lambda u: u), gx.monitor({"one": lambda u: 1.0}))
    state = tx.init(tree)
    assert state[0].measurement["all"]["w"] is not tree["w"]
    _, after = tx.update({"w": jnp.ones(3, jnp.float32)}, state, tree)
    assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)
    assert not any(x.weak_type for x in jax.tree.leaves((state, after)))


def test_row_sparse_updates_are_measured():
    rows = {"w": gx.RowSparse([0, 0], jnp.ones((2, 2)), 3)}
    tree = {"w": jnp.ones((3, 2))}
    tx = gx.snapshot("norm", gx.global_norm)
    u, state = tx.update(rows, tx.init(tree), tree)
    assert u["w"] is rows["w"]
    assert float(state.measurement["norm"]) == pytest.approx(8**0.5)


def test_extra_arguments_reach_a_measure():
    def scaled(updates, state, params=None, *, factor=1.0):
        return factor * gx.global_norm(updates), state

    def needy(updates, state, params=None, *, factor):
        return scaled(updates, state, params, factor=factor)

    tree = {"w": jnp.ones(4)}
    measures = [gx.GradientTransformationExtraArgs(lambda p: (), f) for f in (scaled, needy)]
    tx = gx.monitor({"scaled": measures[0]})
    _, state = tx.update(tree, tx.init(tree), tree, factor=3.0)
    assert float(state.measurements["scaled"]) == 6.0
    with pytest.raises(TypeError, match="needs the extra argument 'factor'"):
        gx.monitor({"scaled": measures[1]}).init(tree)

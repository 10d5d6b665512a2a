"""Magma: who moves, by how much, and what goes on inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.testing import random_gradients

pytestmark = pytest.mark.numeric

PARAMS = {f"w{i}": jnp.ones((3, 2)) for i in range(8)}
INNER = gx.adam(0.1)


def run(tx, steps):
    """The updates of some steps, and the last state."""
    state, out = tx.init(PARAMS), []
    for g in random_gradients(PARAMS, steps):
        updates, state = jax.jit(tx.update)(g, state, PARAMS)
        out.append(updates)
    return out, state


def test_an_array_takes_a_share_of_its_step_or_none():
    masked, state = run(gx.magma(INNER, key=1), 30)
    always, _ = run(gx.magma(INNER, 1.0), 30)
    plain, inner = run(INNER, 30)
    jax.tree.map(np.testing.assert_array_equal, state.inner_state, inner)
    moves = np.array([[bool(jnp.any(u[k])) for k in PARAMS] for u in masked])
    for some, full, whole in zip(masked, always, plain, strict=True):
        for k in PARAMS:
            share = np.asarray(full[k] / whole[k])
            np.testing.assert_allclose(share, share[0, 0], rtol=1e-5)
            assert 0.37 < share[0, 0] <= 1
            assert not np.any(some[k]) or np.array_equal(some[k], full[k])
    # 240 draws; five deviations are 39.
    assert 80 < moves.sum() < 160
    assert len({tuple(row) for row in moves}) > 20
    assert len({tuple(column) for column in moves.T}) == 8


def test_the_score_follows_the_agreement():
    tx = gx.magma(INNER, 1.0, 0.5, ema=0.0)
    state = tx.init(PARAMS)
    g = jax.tree.map(jnp.ones_like, PARAMS)
    _, state = tx.update(g, state, PARAMS)
    np.testing.assert_allclose(state.score["w0"], 1 / (1 + np.exp(-2)), rtol=1e-6)
    against = jax.tree.map(lambda x: -0.1 * x, g)
    _, state = tx.update(against, state, PARAMS)
    np.testing.assert_allclose(state.score["w0"], 1 / (1 + np.exp(2)), rtol=1e-6)
    _, state = tx.update(jax.tree.map(jnp.zeros_like, g), state, PARAMS)
    np.testing.assert_allclose(state.score["w0"], 0.5, rtol=1e-6)


def test_another_key_draws_others():
    first, _ = run(gx.magma(INNER, key=1), 3)
    same, _ = run(gx.magma(INNER, key=1), 3)
    other, _ = run(gx.magma(INNER, key=2), 3)
    jax.tree.map(np.testing.assert_array_equal, first, same)
    assert any(
        np.any(a != b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True)
    )

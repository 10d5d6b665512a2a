"""TRAC: the way back to the first parameters, and what bounds the scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

FIRST = {"w": jnp.asarray([1e-3, -2.0, 30.0])}
AWAY = {"w": jnp.asarray([-1.0, 1.0, -1.0])}


def walk(tx, grads, params=FIRST):
    """The parameters and the state after each update."""
    state, update = tx.init(params), jax.jit(tx.update)
    for g in grads:
        updates, state = update(g, state, params)
        params = gx.apply_updates(params, updates)
        yield params, state


def test_gradients_that_turn_around_lead_back_to_the_first_parameters():
    """And there nothing of the way is left, not even its roundings over a scale of 0."""
    back = jax.tree.map(jnp.negative, AWAY)
    path = list(walk(gx.trac(gx.sgd(1.0), s_init=0.1), [AWAY] * 8 + [back] * 6))
    assert np.all(np.abs(path[7][0]["w"] - FIRST["w"]) > 30)
    for params, state in path[-2:]:
        assert gx.metrics(state)["scale"] == 0
        np.testing.assert_allclose(params["w"], FIRST["w"], atol=4e-6)


def test_a_scale_stays_finite_where_erfi_would_not():
    """After 170 gradients of the same product, the argument of erfi is above 9.3."""
    tx = gx.trac(gx.sgd(1.0), s_init=1e-8, num_betas=6)
    state = tx.init(FIRST)
    most = jnp.full(6, 1e12, jnp.float32)
    state = state._replace(sigma=most, v=jnp.full(6, 1e20, jnp.float32), s=jnp.full(6, 1e-8))
    updates, state = tx.update(AWAY, state, FIRST)
    assert np.all(np.isfinite(state.s)) and np.all(state.s > 1e27)
    assert np.all(np.isfinite(updates["w"]))

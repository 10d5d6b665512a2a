"""Matrices that stay orthogonal, and updates in their tangent space."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.testing import random_gradients

pytestmark = pytest.mark.numeric

SHAPES = {"tall": (7, 3), "wide": (3, 7), "square": (5, 5)}


def orthogonal_params():
    init = jax.nn.initializers.orthogonal()
    return {k: init(jax.random.key(i), s) for i, (k, s) in enumerate(SHAPES.items())}


def gram(x):
    return x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x


@pytest.mark.parametrize("tangent", [True, False])
def test_spel_goes_down_among_orthogonal_matrices(tangent):
    params, targets = orthogonal_params(), orthogonal_params()
    targets = jax.tree.map(lambda x: x[::-1], targets)

    def loss(params):
        pairs = jax.tree.map(lambda p, q: jnp.sum((p - q) ** 2), params, targets)
        return sum(jax.tree.leaves(pairs))

    tx = gx.spel(gx.linear_schedule(0.1, 0.0, 60), tangent=tangent)
    state, first = tx.init(params), loss(params)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return gx.apply_updates(params, updates), state

    for _ in range(60):
        params, state = step(params, state)
    assert loss(params) < (0.5 if tangent else 0.9) * first
    for p in params.values():
        np.testing.assert_allclose(gram(p), np.eye(len(gram(p))), atol=1e-5)


def test_what_is_projected_does_not_stretch():
    params = orthogonal_params()
    (g,) = random_gradients(params, 1)
    tx = gx.project_to_tangent()
    updates, state = tx.update(g, tx.init(params), params)
    again, _ = tx.update(updates, state, params)
    for k, p in params.items():
        u = updates[k]
        inner = u @ p.T if p.shape[0] <= p.shape[1] else p.T @ u
        np.testing.assert_allclose(inner, -inner.T, atol=1e-5)
        np.testing.assert_allclose(again[k], u, atol=1e-5)

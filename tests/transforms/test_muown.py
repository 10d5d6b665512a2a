"""Muown: neurons of zeros, and parameters that something else moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.testing import random_gradients

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(0)
PARAMS = {"w": jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)}


def test_a_neuron_of_zeros_gets_a_direction_and_then_a_size():
    params = {"w": PARAMS["w"].at[:, 1].set(0)}
    tx = gx.step_by_muown(0.1)
    state, sizes = tx.init(params), []
    for g in random_gradients(params, 3):
        updates, state = tx.update(g, state, params)
        params = gx.apply_updates(params, updates)
        sizes.append(float(jnp.linalg.norm(params["w"][:, 1])))
    assert 0 < sizes[0] < 2e-12
    assert 0.05 < sizes[1] < 0.2  # a step of Adam


def test_without_a_gradient_only_the_decay_moves():
    tx = gx.step_by_muown(0.1, weight_decay=0.5)
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, PARAMS), tx.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["w"], -0.05 * PARAMS["w"], atol=1e-6)


def test_it_goes_on_from_where_something_else_has_moved_the_parameters():
    tx = gx.step_by_muown(0.0)
    state = tx.init(PARAMS)
    for g in random_gradients(PARAMS, 2):
        updates, state = tx.update(g, state, PARAMS)
    halves = jax.tree.map(lambda p: 0.5 * p, PARAMS)
    updates, _ = tx.update(g, state, halves)
    np.testing.assert_allclose(updates["w"], np.zeros((6, 4)), atol=1e-6)


def test_a_column_is_a_neuron_of_the_output_axes():
    params = {"w": PARAMS["w"].T}
    tx = gx.step_by_muown(0.1, weight_dimension_numbers=gx.MuonDimensionNumbers(1, 0))
    (g,) = random_gradients(PARAMS, 1)
    updates, _ = tx.update({"w": g["w"].T}, tx.init(params), params)
    plain = gx.step_by_muown(0.1)
    expected, _ = plain.update(g, plain.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["w"].T, expected["w"], atol=1e-6)

"""Proximal rules and FTRL reach exact zeros; a regularizer's gradient leaves the slots alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

REGULARIZED = {
    "proximal_sgd": gx.proximal_sgd(0.1, l1=2.0),
    "proximal_adagrad": gx.proximal_adagrad(0.3, l1=2.0),
    "adagrad_da": gx.adagrad_da(0.1, l1=2.0),
    "ftrl": gx.ftrl(0.1, l1=150.0),  # beside the sum of 200 gradients, not their mean
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("tx", REGULARIZED.values(), ids=REGULARIZED)
def test_a_regularized_rule_reaches_exact_zeros_and_keeps_large_entries(tx, dtype):
    """A quadratic with a strong and a weak pull: l1 leaves one, and zeroes the other."""
    params = {"w": jnp.asarray([1.5, -0.3, 0.7, 1e-3], dtype)}
    pull = jnp.asarray([9.0, -0.5, 0.25, 1e-3], dtype)
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        grads = {"w": (params["w"] - pull).astype(dtype)}
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    for _ in range(200):
        params, state = step(params, state)
    w = np.asarray(params["w"], np.float32)
    np.testing.assert_array_equal(w[1:], 0.0)
    assert w[0] > 1


def test_without_regularization_a_proximal_step_is_the_plain_one():
    params = {"w": jnp.linspace(-1.0, 1.0, 5)}
    grads = {"w": jnp.linspace(2.0, -3.0, 5)}
    for proximal, plain in (
        (gx.proximal_sgd(0.1), gx.sgd(0.1)),
        (gx.proximal_adagrad(0.1, 0.2), gx.adagrad(0.1, 0.2, 0.0)),
    ):
        a, _ = proximal.update(grads, proximal.init(params), params)
        b, _ = plain.update(grads, plain.init(params), params)
        np.testing.assert_allclose(a["w"], b["w"], rtol=0, atol=1e-6)


def test_ftrl_with_a_fixed_rate_and_no_regularization_is_descent_from_zero():
    tx = gx.ftrl(0.1, learning_rate_power=0.0)
    params, state = {"w": jnp.zeros(3)}, tx.init({"w": jnp.zeros(3)})
    total = np.zeros(3)
    for g in np.random.default_rng(0).normal(size=(6, 3)):
        updates, state = tx.update({"w": jnp.asarray(g, jnp.float32)}, state, params)
        params = gx.apply_updates(params, updates)
        total += g
        np.testing.assert_allclose(params["w"], -0.1 * total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flag", [False, np.bool_(False), jnp.asarray(False)])
def test_a_regularizers_gradient_leaves_the_slots_alone(flag):
    tx, params = gx.reg_adagrad(0.1), {"w": jnp.ones(3)}
    state = tx.init(params)
    _, after = tx.update(params, state, params)
    updates, kept = tx.update(params, after, params, update_slots=flag)
    sums = gx.tree.get(kept, "sum_of_squares")["w"]
    np.testing.assert_array_equal(sums, gx.tree.get(after, "sum_of_squares")["w"])
    np.testing.assert_allclose(updates["w"], -0.1 / np.sqrt(1.1), rtol=1e-6)
    traced = jax.jit(lambda f: tx.update(params, after, params, update_slots=f)[0])
    np.testing.assert_allclose(traced(True)["w"], -0.1 / np.sqrt(2.1), rtol=1e-6)
    np.testing.assert_allclose(traced(False)["w"], updates["w"], rtol=1e-6)

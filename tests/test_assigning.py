"""Rules that assign reach exact zeros; gradients that leave slots alone; steps that are given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

ASSIGNING = {
    "proximal_sgd": gx.proximal_sgd(0.1, l1=2.0),
    "proximal_adagrad": gx.proximal_adagrad(0.3, l1=2.0),
    "adagrad_da": gx.adagrad_da(0.1, l1=2.0),
    "ftrl": gx.ftrl(0.1, l1=150.0),  # beside the sum of 200 gradients, not their mean
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("tx", ASSIGNING.values(), ids=ASSIGNING)
def test_reaches_exact_zeros_and_keeps_what_matters(tx, dtype):
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


LINE = gx.linear_schedule(1.0, 0.0, 10)


@pytest.mark.parametrize("step", [4, np.int64(4), jnp.asarray(4, jnp.int32), jnp.uint32(4)])
def test_a_given_step_stands_for_the_count_of_every_part_inside(step):
    tx, params = gx.external_step(gx.chain(gx.ema(0.9), gx.scale_by_schedule(LINE))), jnp.ones(2)
    state = tx.init(params)
    updates, after = tx.update(params, state, params, step=step)
    np.testing.assert_allclose(updates, 0.6 * 0.1 / (1 - 0.9**5), rtol=1e-6)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [int(n) for _, n in gx.tree.get_all_with_path(after, "count")] == [5, 5]
    updates, _ = tx.update(params, after, params)  # and goes on from there
    np.testing.assert_allclose(updates, 0.5 * 0.19 / (1 - 0.9**6), rtol=1e-6)


def test_a_given_step_reaches_through_wrappers():
    inner = gx.external_step(gx.scale_by_schedule(LINE))
    params = {"w": jnp.ones(2), "b": jnp.ones(1)}
    for tx in (
        gx.chain(gx.clip(9.0), inner),
        gx.masked(inner, gx.path_matches("w")),
        gx.partition({"a": inner, "z": gx.identity()}, gx.label_by(("a", True))),
        gx.apply_if_finite(inner, 2),
        gx.MultiSteps(inner, 1),
        gx.external_step(gx.named_chain(("here", gx.scale_by_schedule(LINE)))),
    ):
        updates, _ = tx.update(params, tx.init(params), params, step=3)
        np.testing.assert_allclose(updates["w"], 0.7, rtol=1e-6, err_msg=repr(tx))

"""Moments of inputs: entries of branches, steps without them, and what a wrapper hides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(5, 8, 3)) * [0.1, 1.0, 4.0], jnp.float32)
PARAMS = {
    "attention": {"q": jnp.ones((3, 4)), "k": jnp.ones((3, 2)), "bias": jnp.ones(4)},
    "out": {"kernel": jnp.ones((4, 3))},
}


def test_a_moment_is_the_mean_over_all_places():
    x = np.asarray(X, np.float64).reshape(-1, 3)
    np.testing.assert_allclose(gx.input_moment(X), x.T @ x / len(x), rtol=1e-5)
    halves = [gx.input_moment(part) for part in (X[:, :4], X[:, 4:])]
    np.testing.assert_allclose(sum(halves) / 2, gx.input_moment(X), rtol=1e-5)
    assert gx.input_moment(X.astype(jnp.bfloat16)).dtype == jnp.float32


def steps(tx, given):
    """The updates and the moments after a step with each of these arguments."""
    state = tx.init(PARAMS)
    for moments in given:
        updates, state = jax.jit(tx.update)(PARAMS, state, PARAMS, input_moments=moments)
    return updates, state


def matrices_only(every):
    return gx.masked(gx.precondition_by_inputs(0.5, every), gx.ndim_at_least(2))


def test_the_entry_of_a_branch_is_for_all_matrices_in_it():
    moment = gx.input_moment(X)
    whole, _ = steps(matrices_only(1), [{"attention": moment}])
    each, state = steps(matrices_only(1), [{"attention": {"q": moment, "k": moment}}])
    jax.tree.map(np.testing.assert_array_equal, whole, each)
    expected = 0.5 * (1e-3 * np.eye(3) + np.asarray(moment))
    k = state.inner_state.moment["attention"]["q"][0]
    np.testing.assert_allclose(k, expected, rtol=1e-5)
    ridge = 0.2 * np.trace(expected) / 3 + 1e-8
    inverse = np.linalg.inv(expected + ridge * np.eye(3))
    np.testing.assert_allclose(whole["attention"]["q"], inverse @ np.ones((3, 4)), rtol=1e-4)


def test_moments_are_seen_at_their_steps_only():
    moment = {"attention": gx.input_moment(X)}
    all_steps, _ = steps(matrices_only(3), [moment] * 4)
    one_step, _ = steps(matrices_only(3), [None, None, moment, None])
    jax.tree.map(np.testing.assert_array_equal, all_steps, one_step)
    none, _ = steps(matrices_only(3), [None] * 4)
    jax.tree.map(np.testing.assert_array_equal, none, PARAMS)


def test_newton_muon_leaves_other_parameters_to_adamw():
    moments = {"attention": gx.input_moment(X), "out": jnp.eye(4)}
    updates, _ = steps(gx.newton_muon(0.1, update_interval=1), [moments])
    plain = gx.adamw(0.1, 0.9, 0.95, weight_decay=0.0)
    expected, _ = plain.update(PARAMS, plain.init(PARAMS), PARAMS)
    got = updates["attention"]["bias"]
    np.testing.assert_allclose(got, expected["attention"]["bias"], rtol=1e-5)

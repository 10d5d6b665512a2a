"""Gradients too large or too small to be squared: rules of whole matrices do what theirs says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform import linalg

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(0)
# What is squared of "regular" has an inverse, of the others it has none.
G = {
    "w": RNG.normal(size=(4, 3)),
    "b": RNG.normal(size=5),
    "regular": RNG.normal(size=(3, 3)) / 4 + np.eye(3),
}
PARAMS = jax.tree.map(lambda x: jnp.zeros(x.shape), G)

MATRIX_RULES = {
    "shampoo": gx.step_by_shampoo(1.0),
    "shampoo/diagonal": gx.step_by_shampoo(1.0, max_matrix_size=3),
    "shampoo/average": gx.step_by_shampoo(1.0, gbar_decay=0.5),
    "shampoo/iterative": gx.step_by_shampoo(1.0, use_iterative_root=True),
    "ggt": gx.scale_by_ggt(),
    **{
        f"muon/{kind}": gx.masked(
            gx.scale_by_muon(preconditioning=kind, nesterov=False), gx.ndim_at_least(2)
        )
        for kind in linalg.PRECONDITIONINGS
    },
    "galore": gx.scale_by_galore(2, base_optimizer=gx.scale_by_adam()),
}


def scaled(size):
    return jax.tree.map(lambda x: jnp.asarray(x * size, jnp.float32), G)


def first(tx, size):
    u, state = tx.update(scaled(size), tx.init(PARAMS), PARAMS)
    if str(tx).startswith("masked"):
        del u["b"]
    return jax.tree.map(np.asarray, u), state


@pytest.mark.parametrize("name", [n for n in MATRIX_RULES if n != "galore"])
def test_the_first_step_does_not_depend_on_how_large_the_gradient_is(name):
    tx = MATRIX_RULES[name]
    expected, _ = first(tx, 1e9)
    # In float32 the iteration knows roots of singular matrices to one digit, the other to three.
    singular = 0.3 if name.endswith("iterative") else 1e-2
    for size in (1e19, 1e30, 1e38 / 4):
        got, state = first(tx, size)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves((got, state)))
        for k in got:
            tolerance = (1e-4 if k == "regular" else singular) * np.abs(expected[k]).max()
            np.testing.assert_allclose(got[k], expected[k], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["shampoo", "ggt", "muon/frobenius"])
def test_a_compiled_step_is_that_of_single_operations(name):
    """XLA changes the order of divisions and products, and must not make them overflow."""
    tx = MATRIX_RULES[name]
    expected, _ = first(tx, 1e30)
    got, _ = jax.jit(tx.update)(scaled(1e30), tx.init(PARAMS), PARAMS)
    for k in expected:
        atol = 1e-2 * np.abs(expected[k]).max()
        np.testing.assert_allclose(got[k], expected[k], rtol=0, atol=atol)


@pytest.mark.parametrize("name", MATRIX_RULES)
def test_the_step_after_a_huge_gradient_is_finite_and_smaller(name):
    tx = MATRIX_RULES[name]
    _, state = first(tx, 1e30)
    for _ in range(3):
        u, state = tx.update(scaled(1.0), state, PARAMS)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(u))


def test_a_nan_is_not_hidden_by_the_scaling_of_large_gradients():
    for name, bad in (("shampoo", jnp.nan), ("ggt", jnp.nan), ("muon/aol", jnp.nan)):
        g = scaled(1.0)
        g["w"] = g["w"].at[0, 0].set(bad)
        u, _ = MATRIX_RULES[name].update(g, MATRIX_RULES[name].init(PARAMS), PARAMS)
        assert np.isnan(u["w"]).any()


@pytest.mark.parametrize("size", [1e-20, 1e-30])
def test_tiny_gradients_are_divided_by_the_epsilons(size):
    g = scaled(size)
    u, _ = first(gx.step_by_shampoo(1.0, epsilon=1e-4), size)
    # Of k axes each multiplies by epsilon^(-1 / 2k): by 100 in all.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -100 * b, rtol=1e-4), u, g)
    u, _ = first(gx.scale_by_ggt(b1=0.0, svd_eps=1e-6), size)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 1000 * b, rtol=1e-3), u, g)
    u, _ = first(MATRIX_RULES["muon/frobenius"], size)
    assert np.abs(u["w"]).max() < 1e12 * size  # beside an eps of 1e-8, and five turns
    exact = gx.masked(gx.scale_by_muon(eps=0.0, nesterov=False), gx.ndim_at_least(2))
    np.testing.assert_allclose(first(exact, size)[0]["w"], first(exact, 1.0)[0]["w"], rtol=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e19, 1e30])
def test_roots_are_exact_for_matrices_of_any_size(size):
    half = RNG.normal(size=(4, 4))
    a = half @ half.T + np.eye(4)
    x = jnp.asarray(a * size, jnp.float32)
    values, vectors = np.linalg.eigh(a)

    def power(exponent):
        return (vectors * (values * size) ** exponent) @ vectors.T

    for got, exponent in (
        (linalg.square_root(x), 0.5),
        (linalg.inverse_root(x, 4), -0.25),
        (linalg.symmetric_power(x, -0.25), -0.25),
    ):
        expected = power(exponent)
        np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())

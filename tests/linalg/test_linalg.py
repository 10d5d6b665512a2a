"""Functions of whole matrices, against NumPy in float64."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradxform import linalg
from tests import references as ref

pytestmark = pytest.mark.numeric

power = jax.jit(linalg.symmetric_power)
square_root = jax.jit(linalg.square_root)
inverse_root = jax.jit(linalg.inverse_root, static_argnums=1)
orthogonalize = jax.jit(linalg.orthogonalize, static_argnums=2)
eigen = jax.jit(linalg.eigen)


def symmetric(values, seed):
    """A float32 matrix with these eigenvalues, and its power in float64 as a function."""
    rng = np.random.default_rng(seed)
    v, _ = np.linalg.qr(rng.normal(size=(len(values), len(values))))
    a = (v * np.asarray(values)) @ v.T
    a = np.asarray((a + a.T) / 2, np.float32)
    w, v = np.linalg.eigh(a.astype(np.float64))
    return a, lambda e, ridge=0.0: (v * (np.maximum(w, 0) + ridge) ** e) @ v.T


def assert_near(ours, exact, rtol):
    assert np.max(np.abs(ours - exact)) <= rtol * np.max(np.abs(exact))


# Few sizes, so that few programs are compiled.
matrices = st.tuples(
    st.sampled_from([1, 2, 5]).flatmap(
        lambda n: st.lists(st.floats(1e-2, 10.0), min_size=n, max_size=n)
    ),
    st.integers(0, 1000),
)


@hypothesis.given(matrices, st.floats(-2.0, 2.0))
@hypothesis.settings(max_examples=50)
def test_a_matrix_power_has_the_powers_of_the_eigenvalues(made, exponent):
    a, exact = symmetric(*made)
    assert_near(power(a, exponent), exact(exponent), 2e-3)
    assert_near(power(a, exponent, 0.1), exact(exponent, 0.1), 5e-4)


@hypothesis.given(matrices)
@hypothesis.settings(max_examples=25)
def test_iterative_roots_equal_those_of_the_eigenvalues(made):
    a, exact = symmetric(*made)
    assert_near(square_root(a), exact(0.5), 1e-5)
    for p in (1, 3):
        assert_near(inverse_root(a, p), exact(-1 / p), 2e-4)


@pytest.mark.parametrize("seed", [19, 93, 235, 245, 404])
def test_an_iteration_goes_on_where_only_the_largest_entry_grows(seed):
    a, exact = symmetric([1.0, 4.0, 1.0, 3.0, 0.5], seed)
    assert_near(inverse_root(a, 3), exact(-1 / 3), 2e-4)


@pytest.mark.parametrize("n", [3, 60, 150])
def test_singular_matrices_have_powers_with_a_ridge(n):
    """Also where rounding makes eigenvalues negative; on vectors in the matrix they are exact."""
    values = np.zeros(n)
    values[: n // 3] = np.linspace(1.0, 3.0, n // 3)
    a, _ = symmetric(values, 0)
    v = a @ np.linspace(-1.0, 1.0, n, dtype=np.float32)
    w, q = np.linalg.eigh(a.astype(np.float64))
    exact = (q * (np.maximum(w, 0) + 1e-4) ** -0.5) @ q.T
    assert_near(power(a, -0.5, 1e-4), exact, 1e-2)
    assert_near(power(a, -0.5, 1e-4) @ v, exact @ v, 5e-5 if n <= 128 else 2e-4)
    root = inverse_root(square_root(a + 1e-4 * np.eye(n, dtype=np.float32)), 1)
    assert_near(root, exact, 2e-2)


def test_eigenvectors_of_small_matrices_are_as_good_as_float32_allows():
    """Those of LAPACK in float32 mix by ten roundings."""
    worst = 0.0
    for seed in range(20):
        a, _ = symmetric([0.0, 1e-3, 0.1, 5.0, 10.0], seed)
        values, vectors = (np.asarray(x, np.float64) for x in eigen(a))
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(5), atol=1e-6)
        mixed = vectors.T @ a.astype(np.float64) @ vectors - np.diag(values)
        worst = max(worst, np.max(np.abs(mixed)))
    assert worst < 4e-6


@pytest.mark.parametrize("f", [power, square_root, inverse_root, orthogonalize, eigen])
def test_a_batch_of_matrices_equals_the_single_matrices(f):
    """The result does not depend on the other matrices of the batch."""
    f = {
        power: lambda a: power(a, -0.25, 1e-3),
        inverse_root: lambda a: inverse_root(a, 2),
        orthogonalize: lambda a: orthogonalize(a, jnp.asarray(ref.STANDARD), "aol"),
    }.get(f, f)
    batch = np.stack([symmetric(v, 1)[0] for v in ([1.0, 2.0, 3.0], [1e-4, 1.0, 9.0], [1.0] * 3)])
    together = jax.tree.leaves(f(batch[:, None]))
    for i, a in enumerate(batch):
        for x, y in zip(together, jax.tree.leaves(f(a)), strict=True):
            np.testing.assert_allclose(x[i, 0], y, rtol=1e-5, atol=1e-6)


def test_a_nan_is_not_hidden_and_ends_the_iteration():
    a = np.full((3, 3), np.nan, np.float32)
    for found in (power(a, -0.5, 1e-3), square_root(a), inverse_root(a, 2)):
        assert np.isnan(found).all()


def first_division(x, kind):
    """Return `x` after the first division of `orthogonalize`, from the papers."""
    if kind == "aol":  # Boissin et al.: rows by the root of the row sums of |X X^T|
        return x / np.sqrt(np.sum(np.abs(x @ x.T), axis=1, keepdims=True))
    norms = {
        "frobenius": lambda: np.linalg.norm(x),
        "spectral": lambda: np.linalg.norm(x, 2),
        "schatten": lambda: np.sqrt(np.linalg.norm(x @ x.T)),
    }
    return x / norms[kind]()


@pytest.mark.parametrize("kind", linalg.PRECONDITIONINGS)
@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_orthogonalizing_follows_the_newton_schulz_iteration(kind, shape):
    x = np.random.default_rng(0).normal(size=shape)
    exact = first_division(x.T if shape == (5, 3) else x, kind)
    for a, b, c in ref.STANDARD:
        gram = exact @ exact.T
        exact = a * exact + (b * gram + c * gram @ gram) @ exact
    ours = orthogonalize(x.astype(np.float32), jnp.asarray(ref.STANDARD), kind)
    np.testing.assert_allclose(ours.T if shape == (5, 3) else ours, exact, atol=1e-4)
    assert np.all(np.abs(np.linalg.svd(ours)[1] - 1) < 0.4)


@hypothesis.given(st.integers(0, 1000), st.floats(-3.0, 3.0))
@hypothesis.settings(max_examples=20)
def test_orthogonalizing_ignores_size_and_commutes_with_rotation(seed, exponent):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3, 5))
    q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    f = functools.partial(orthogonalize, coefficients=jnp.asarray(ref.STANDARD))
    plain = f(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(f(jnp.asarray(x * 10**exponent, jnp.float32)), plain, atol=5e-4)
    np.testing.assert_allclose(f(jnp.asarray(q @ x, jnp.float32)), q @ plain, atol=5e-4)


def test_complex_matrices_become_unitary():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4)), jnp.complex64)
    for kind in linalg.PRECONDITIONINGS:
        made = orthogonalize(x, jnp.asarray(ref.STANDARD), kind)
        assert np.all(np.abs(np.linalg.svd(made)[1] - 1) < 0.4)

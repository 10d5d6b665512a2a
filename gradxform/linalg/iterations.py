"""Iterations with matrices: the largest eigenvalue, an inverse root, least squares."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform._jax.programs import by_program
from gradxform.errors import must_be, shown
from gradxform.leaves import dtype_of
from gradxform.linalg.powers import inverse_root_within
from gradxform.linalg.products import HIGHEST, matmul
from gradxform.numerics import at_least_float32, cast, over
from gradxform.types import Array, PyTree


def power_iteration(
    matrix: Any,
    *,
    v0: PyTree | None = None,
    num_iters: Any = 100,
    error_tolerance: Any = 1e-6,
    precision: lax.Precision = HIGHEST,
    key: Array | None = None,
) -> tuple[Array, PyTree]:
    """Return the eigenvalue of largest absolute value, and its eigenvector of norm 1.

    The iteration, from a random v:

        v <- A v / |A v|;    eigenvalue = <v, A v>

    It ends when `|A v - eigenvalue v| < error_tolerance |eigenvalue|`. It converges if the matrix
    is diagonalizable and only one eigenvalue has the largest absolute value. A matrix of zeros has
    the eigenvalue 0. 16-bit matrices are widened to float32.

    Args:
      matrix: a square matrix, or a function that returns its product with a vector; the vector may
        be a tree.
      v0: the first vector, like the argument of the function. Defaults to random numbers in [-1, 1]
        for a matrix.
      num_iters: the most products.
      error_tolerance: the relative error of the eigenvalue at which the iteration ends, at least 0.
      precision: of the products with a matrix.
      key: the PRNG key of the first vector. Defaults to `jax.random.PRNGKey(0)`.

    Raises:
      ValueError: if a matrix is not square, or a function comes without `v0`.
    """
    product: Callable[[PyTree], PyTree]
    if callable(matrix):
        product = matrix
        if v0 is None:
            raise ValueError(
                "power_iteration: v0 must be a vector, or a tree, that the function takes; a "
                "function does not say its shape."
            )
    else:
        a = _square_matrix_to_iterate("power_iteration", matrix)
        if v0 is None:
            key = jax.random.PRNGKey(0) if key is None else key
            v0 = jax.random.uniform(key, a.shape[-1:], _real_dtype(a), minval=-1.0, maxval=1.0)
            v0 = cast(v0, a.dtype)
        elif jnp.shape(v0) != a.shape[-1:]:
            raise ValueError(
                f"power_iteration: v0 must have shape {a.shape[-1:]}, got {jnp.shape(v0)}."
            )
        product = functools.partial(jnp.matmul, a, precision=precision)

    v = _normalized_iterate(v0)
    av = product(v)
    # A loop keeps the dtypes of its carry: both vectors have those of a product.
    dtypes = jax.tree.map(dtype_of, av)
    v = jax.tree.map(cast, v, dtypes)

    def goes_on(carry: tuple[Any, ...]) -> Array:
        i, v, av, eigenvalue = carry
        rest = jax.tree.map(
            lambda x, y: (
                _wide_iterate(x) - cast(eigenvalue, _wide_iterate(y).dtype) * _wide_iterate(y)
            ),
            av,
            v,
        )
        rest = engine.global_norm(rest)
        # Before the first turn the eigenvalue is only a placeholder.
        return (i < num_iters) & ((i == 0) | (rest > error_tolerance * jnp.abs(eigenvalue)))

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, _, av, _ = carry
        v = jax.tree.map(cast, _normalized_iterate(av), dtypes)
        av = jax.tree.map(cast, product(v), dtypes)
        return i + 1, v, av, _inner_product_of_iterates(v, av)

    first = jnp.zeros((), jnp.int32), v, av, jnp.zeros_like(_inner_product_of_iterates(v, av))
    # A v is one product nearer to the eigenvector than v.
    _, _, av, eigenvalue = by_program(lambda x: lax.while_loop(goes_on, turn, x), first)
    return eigenvalue, _normalized_iterate(av)


def _normalized_iterate(v: PyTree) -> PyTree:
    """Return a tree divided by its norm; zeros stay."""
    size = engine.global_norm(v)
    per_size = over(jnp.ones_like(size), size)
    return jax.tree.map(lambda x: cast(per_size, _wide_iterate(x).dtype) * _wide_iterate(x), v)


def _inner_product_of_iterates(v: PyTree, w: PyTree) -> Array:
    """Return the real part of <v, w>, in float32 or wider."""
    leaves = jax.tree.leaves(
        jax.tree.map(lambda x, y: jnp.vdot(_wide_iterate(x), _wide_iterate(y)), v, w)
    )
    return jnp.real(functools.reduce(jnp.add, leaves))


def _wide_iterate(x: Any) -> Array:
    return cast(jnp.asarray(x), at_least_float32(dtype_of(x)))


def matrix_inverse_pth_root(
    matrix: Any,
    p: int,
    num_iters: Any = 100,
    ridge_epsilon: Any = 1e-6,
    error_tolerance: Any = 1e-6,
    precision: lax.Precision = HIGHEST,
) -> tuple[Array, Array]:
    """Return `(matrix + ridge I)^(-1/p)`, by a coupled Newton iteration, and its error.

    The ridge is `ridge_epsilon` times the largest eigenvalue. See `linalg.inverse_root` for the
    iteration. In float32, `linalg.symmetric_power` is more accurate where the ridge is below 1e-5.

    Args:
      matrix: a symmetric positive semidefinite matrix; one of 16 bits is widened to float32.
      p: which root, at least 1.
      num_iters: the most turns.
      ridge_epsilon: the ridge over the largest eigenvalue, at least 0.
      error_tolerance: the error at which the iteration ends, at least 0.
      precision: of the matrix products.

    Returns:
      The root, in the dtype of the matrix, and the largest entry of |X^p (matrix + ridge I) - I| as
      the iteration knows it, X being the root.

    Raises:
      ValueError: if the matrix is not square, or `p` is not an integer of at least 1.

    Reference: Guo and Higham, A Schur-Newton Method for the Matrix pth Root and its Inverse, 2006,
    equation (3.2).
    """
    if not isinstance(p, int) or isinstance(p, bool) or p < 1:
        raise ValueError(must_be("matrix_inverse_pth_root", "p", "an integer of at least 1", p))
    a = _square_matrix_to_iterate("matrix_inverse_pth_root", matrix)
    largest, _ = power_iteration(a, precision=precision)
    # At least a small one, so that a matrix of zeros has a root too.
    ridge = cast(jnp.asarray(ridge_epsilon), a.dtype) * jnp.maximum(largest, 1e-16)
    a = a + ridge * jnp.eye(a.shape[-1], dtype=a.dtype)
    if a.shape[-1] == 1:
        root, error = a ** (-1 / p), jnp.zeros((), a.dtype)
    else:
        root, error = inverse_root_within(a, p, num_iters, error_tolerance, precision)
    return cast(root, dtype_of(matrix)), error


def nnls(A: Any, b: Any, iters: int, unroll: int | bool = 1, L: Any = None) -> Array:
    """Return the x >= 0 that minimizes |A x - b|: non-negative least squares.

    The iteration, from x = p = 0 and c = 0:

        x' <- max(p - A^T (A p - b) / L, 0)
        c' <- (1 + sqrt(1 + 4 c^2)) / 2
        p <- x' + (c - 1) / c' (x' - x);    x <- x';    c <- c'

    Args:
      A: a matrix `(M, N)`.
      b: a vector `(M,)`, or a matrix `(M, K)` of K of them.
      iters: how many turns, at least 0; without any, the result is 0, where they start.
      unroll: as in `jax.lax.scan`.
      L: an upper bound on the largest eigenvalue of A^T A, greater than 0. Defaults to the smaller
        of two norms of it.

    Returns:
      A vector `(N,)`, or a matrix `(N, K)`.

    Raises:
      ValueError: if the shapes do not fit, or `iters` is negative.

    Reference: Polyak, Projected gradient method for non-negative least square, 2015; Beck and
    Teboulle, A Fast Iterative Shrinkage-Thresholding Algorithm, 2009, equations (4.1) to (4.3).
    """
    A, b = jnp.asarray(A), jnp.asarray(b)
    if A.ndim != 2 or b.ndim not in (1, 2) or b.shape[0] != A.shape[0]:
        raise ValueError(
            "nnls: A must have shape (M, N), and b (M,) or (M, K) with the same M; got "
            f"{A.shape} and {b.shape}."
        )
    if not isinstance(iters, int) or isinstance(iters, bool) or iters < 0:
        raise ValueError(f"nnls: iters must be an integer of at least 0, got {shown(iters)}.")
    dtype = jnp.promote_types(A.dtype, b.dtype)
    wide = at_least_float32(dtype)
    a, b = cast(A, wide), cast(b, wide)
    square, target = matmul(a.T, a), matmul(a.T, b)
    bound = _spectral_bound(square) if L is None else cast(jnp.asarray(L), wide)
    step = 1 / jnp.where(bound == 0, 1, bound)  # any step will do for a matrix of zeros

    def turn(carry: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        x, p, c = carry
        new_c = (1 + jnp.sqrt(1 + 4 * c * c)) / 2
        new_x = jnp.maximum(p - step * (matmul(square, p) - target), 0)
        return (new_x, new_x + (c - 1) / new_c * (new_x - x), new_c), None

    zeros = jnp.zeros_like(target)
    begun = zeros, zeros, jnp.zeros((), wide)
    (x, _, _), _ = by_program(lambda x: lax.scan(turn, x, length=iters, unroll=unroll), begun)
    return cast(x, dtype) if jnp.issubdtype(dtype, jnp.inexact) else x


def _spectral_bound(a: Array) -> Array:
    """Return an upper bound on the absolute values of the eigenvalues of a matrix."""
    magnitudes = jnp.abs(a)
    columns = jnp.max(jnp.sum(magnitudes, axis=0), initial=0)
    return jnp.minimum(jnp.sqrt(jnp.sum(magnitudes * magnitudes)), columns)


def _square_matrix_to_iterate(part: str, matrix: Any) -> Array:
    """Return a square matrix in float32 or wider."""
    shape = jnp.shape(matrix)
    if len(shape) != 2 or shape[0] != shape[1] or math.prod(shape) == 0:
        raise ValueError(f"{part}: matrix must be square, (n, n), got shape {shape}.")
    a = jnp.asarray(matrix)
    return cast(a, at_least_float32(a.dtype))


def _real_dtype(a: Array) -> Any:
    return jnp.finfo(a.dtype).dtype

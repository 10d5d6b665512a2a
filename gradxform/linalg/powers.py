"""Powers of matrices and batches of matrices: roots, inverse roots, the largest eigenvalue.

Matrices are `(..., n, n)`, in float32 or wider: the caller must widen 16-bit ones. Products that
decide the accuracy of a root are computed in full precision on every backend.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._jax.programs import by_program
from gradxform._jax.versions import settled_carry
from gradxform.linalg.decompositions import eigen
from gradxform.linalg.products import (
    HIGHEST,
    frobenius_norm,
    identity_like,
    largest_entry,
    matmul,
)
from gradxform.numerics import over
from gradxform.types import Array, Scalar

# The most turns of the iterations below; well-conditioned matrices need about 10.
_TURNS = 100


def symmetric_power(a: Array, exponent: Scalar, ridge: Scalar = 0.0) -> Array:
    """Return (a + ridge I)^exponent of symmetric positive semidefinite matrices.

    Uses an eigendecomposition. Rounding can make the eigenvalues of a singular matrix negative;
    they count as 0, so that no eigenvalue of the sum is below `ridge`. In float32 the error of an
    eigenvalue is about 1e-7 of the largest: a negative power is accurate if the ridge is well above
    that.

    Args:
      a: symmetric positive semidefinite matrices `(..., n, n)`, in float32 or wider.
      exponent: any real number; for a negative one the ridge must be greater than 0.
      ridge: added to the diagonal, at least 0.
    """
    if a.shape[-1] <= 1:
        return (jnp.maximum(a, 0) + ridge) ** exponent
    values, vectors = eigen(a)
    powers = (jnp.maximum(values, 0) + ridge) ** exponent
    return matmul(vectors * jnp.expand_dims(powers, -2), jnp.swapaxes(vectors, -1, -2))


def square_root(a: Array) -> Array:
    """Return the square root of symmetric positive definite matrices; see `square_roots`."""
    return square_roots(a)[0]


def square_roots(a: Array) -> tuple[Array, Array]:
    """Return the square root of symmetric positive definite matrices, and its inverse.

    By matrix products only: the coupled Newton-Schulz iteration: from Y = A / |A|, Z = I,

        T = (3 I - Z Y) / 2;    Y <- Y T;    Z <- T Z

    Y converges to the root of A / |A|, Z to its inverse. The number of turns grows with the
    logarithm of the condition number; the error in float32 is about 1e-11 times the condition
    number, and at least 1e-7.

    Args:
      a: symmetric positive definite matrices `(..., n, n)`, in float32 or wider.

    Reference: Higham, Functions of Matrices, 2008, equation (6.35).
    """
    identity, norm = identity_like(a), frobenius_norm(a)

    def turn(y: Array, z: Array) -> tuple[Array, Array, Array]:
        zy = matmul(z, y)
        t = (3 * identity - zy) / 2
        return matmul(y, t), matmul(t, z), zy - identity

    root, inverse = _until_converged(turn, a / norm, jnp.broadcast_to(identity, a.shape))
    size = jnp.sqrt(norm)
    return root * size, inverse / size


def inverse_root(a: Array, p: int) -> Array:
    """Return a^(-1/p) of symmetric positive definite matrices, by matrix products only.

    The coupled Newton iteration: from c = (2 |A| / (p + 1))^(1/p), X = I / c, M = A / c^p,

        T = ((p + 1) I - M) / p;    X <- X T;    M <- T^p M

    M converges to the identity, X to the root. The error in float32 is about 1e-8 times the
    condition number: where that is large, take the p/2-th root of a square root.

    Args:
      a: symmetric positive definite matrices `(..., n, n)`, in float32 or wider.
      p: which root, at least 1.

    Reference: Guo and Higham, A Schur-Newton Method for the Matrix pth Root and its Inverse, 2006,
    equation (3.2).
    """
    return inverse_root_within(a, p)[0]


def inverse_root_within(
    a: Array,
    p: int,
    turns: Scalar = _TURNS,
    tolerance: Scalar | None = None,
    precision: lax.Precision = HIGHEST,
) -> tuple[Array, Array]:
    """Return `inverse_root(a, p)`, and how far M is from the identity: the largest entry.

    Args:
      a: as there.
      p: as there.
      turns: the most turns of the iteration.
      tolerance: the distance at which it ends, at least 0. Defaults to four roundings.
      precision: of the products, as `jax.numpy.matmul` takes it.
    """
    identity = identity_like(a)
    c_to_p = 2 * frobenius_norm(a) / (p + 1)

    def turn(x: Array, m: Array) -> tuple[Array, Array, Array]:
        t = ((p + 1) * identity - m) / p
        power = _integer(t, p, precision)
        new = matmul(x, t, precision), matmul(power, m, precision)
        return *new, m - identity

    x, m = _until_converged(turn, identity * c_to_p ** (-1 / p), a / c_to_p, turns, tolerance)
    return x, jnp.squeeze(largest_entry(m - identity), (-2, -1))


def largest_eigenvalue(a: Array, turns: int = 30) -> Array:
    """Return the largest eigenvalue of symmetric positive semidefinite matrices, from below.

    By power iteration from the row of the largest norm; exact to a few percent, or better where the
    second eigenvalue is not close.

    Args:
      a: symmetric positive semidefinite matrices `(..., n, n)`, in float32 or wider.
      turns: of the iteration.
    """
    size = frobenius_norm(a)
    a = over(a, size)  # so that no power overflows
    largest = jnp.argmax(jnp.sum(jnp.square(a), axis=-1), axis=-1)[..., None, None]
    x = jnp.swapaxes(jnp.take_along_axis(a, largest, axis=-2), -1, -2)
    x = over(x, frobenius_norm(x))

    def turn(_: Any, x: Array) -> Array:
        y = matmul(a, x)
        return over(y, frobenius_norm(y))

    x = by_program(lambda x: lax.fori_loop(0, turns, turn, x), x)
    return jnp.squeeze(size * jnp.sum(x * matmul(a, x), axis=(-2, -1), keepdims=True), (-2, -1))


def rounding(a: Array) -> Array:
    """Return the error of the eigenvalues of symmetric matrices: one rounding of |A|.

    A negative power of a singular matrix needs a ridge of at least that.

    Args:
      a: symmetric matrices `(..., n, n)`, in float32 or wider.
    """
    return float(jnp.finfo(a.dtype).eps) * jnp.squeeze(frobenius_norm(a), (-2, -1))


# ------------------------------------------------------------------------------------------ helpers


def _integer(a: Array, n: int, precision: lax.Precision) -> Array:
    """Return a^n for n >= 1, by squaring."""
    if n == 1:
        return a
    half = _integer(matmul(a, a, precision), n // 2, precision)
    return matmul(half, a, precision) if n % 2 else half


def _until_converged(
    turn: Callable[[Array, Array], tuple[Array, Array, Array]],
    x: Array,
    y: Array,
    turns: Scalar = _TURNS,
    tolerance: Scalar | None = None,
) -> tuple[Array, Array]:
    """Iterate `x, y, residual = turn(x, y)` until the residual is a rounding error.

    Convergence is quadratic once the norm of the residual is below 1/2. From there on a turn that
    does not reduce the norm only adds noise, and the matrix stays as it is. The largest entry would
    not do in place of the norm: it grows where eigenvalues of different signs no longer cancel.
    """
    if tolerance is None:
        tolerance = float(4 * np.finfo(x.dtype).eps)

    def improves(largest: Array, norm: Array, previous: Array) -> Array:
        return (largest > tolerance) & ((norm < previous) | (previous > 0.5))

    def condition(carry: tuple[Array, ...]) -> Array:
        i, _, _, *distances = carry
        return (i < turns) & jnp.any(improves(*distances))

    def body(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        i, x, y, largest, norm, previous = carry
        new_x, new_y, residual = turn(x, y)
        on = improves(largest, norm, previous)
        return (
            i + 1,
            jnp.where(on, new_x, x),
            jnp.where(on, new_y, y),
            jnp.where(on, largest_entry(residual), largest),
            jnp.where(on, frobenius_norm(residual), norm),
            jnp.where(on, norm, previous),
        )

    # As if infinitely far from the end: the first turns are taken whatever they lead to.
    far = jnp.full((*x.shape[:-2], 1, 1), np.inf, x.dtype)
    start = (jnp.zeros((), jnp.int32), x, y, far, far, far)
    start = settled_carry(body, start, None)
    _, x, y, *_ = by_program(lambda start: lax.while_loop(condition, body, start), start)
    return x, y

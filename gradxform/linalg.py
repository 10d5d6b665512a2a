"""Functions of whole matrices: powers, roots, orthogonalization; on batches too.

Matrices are `(..., n, n)` or `(..., m, n)`, in float32 or wider: 16-bit ones are for the caller to
widen. Products that decide the accuracy of a root are formed in full precision on every backend.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import cast, not_zero, over, plus, squarable
from gradxform.types import Array, Scalar

# Accelerators multiply float32 matrices in fewer bits unless told not to. The smallest eigenvalues,
# which an inverse root makes the largest, would be lost.
HIGHEST = lax.Precision.HIGHEST

# Where the iterations below give up; well-conditioned matrices need about 10 turns.
_TURNS = 100


def eigen(a: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of symmetric matrices, and their eigenvectors as columns.

    Matrices of up to 128 rows get a refinement that brings the error of the eigenvectors from about
    ten roundings to two: an inverse root of a singular matrix multiplies what is left of the large
    eigenvalues in the vectors of the small ones by the root of the condition number.

    Args:
      a: symmetric matrices `(..., n, n)`, in float32 or wider; the lower triangle is read.

    Reference: Ogita and Aishima, Iterative refinement for symmetric eigenvalue decomposition, 2018,
    Algorithm 1.
    """
    values, vectors = jnp.linalg.eigh(a, symmetrize_input=False)
    return _refined(a, vectors) if 1 < a.shape[-1] <= _SMALL else (values, vectors)


# How much of one eigenvector a refinement may mix into another. Its square is neglected; and
# eigenvalues so close that it takes more cannot be told apart at this precision.
_MIX = 2.0**-12
# In larger matrices the neglected squares add up.
_SMALL = 128


def _refined(a: Array, v: Array) -> tuple[Array, Array]:
    identity, vt = _identity(a), jnp.swapaxes(v, -1, -2)
    r = identity - matmul(vt, v)
    s = matmul(vt, matmul(a, v))
    s = (s + jnp.swapaxes(s, -1, -2)) / 2  # else the two of a pair are not turned alike
    values = jnp.diagonal(s, axis1=-2, axis2=-1) / (1 - jnp.diagonal(r, axis1=-2, axis2=-1))
    row = jnp.expand_dims(values, -2)
    gap = row - jnp.expand_dims(values, -1)
    change = s + row * r
    clear = jnp.abs(change) < _MIX * jnp.abs(gap)  # never on the diagonal, where the gap is 0
    e = jnp.where(clear, change / jnp.where(clear, gap, 1), r / 2)
    return values, v + matmul(v, e)


def symmetric_power(a: Array, exponent: Scalar, ridge: Scalar = 0.0) -> Array:
    """Return (a + ridge I)^exponent of symmetric positive semidefinite matrices.

    By an eigendecomposition. Rounding can make the eigenvalues of a singular matrix negative; they
    count as 0, so that no eigenvalue of the sum is below `ridge`. An eigenvalue is known to about
    1e-7 of the largest in float32: a negative power is accurate if the ridge is well above that.

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
    """Return the square root of symmetric positive definite matrices, by matrix products only.

    The coupled Newton-Schulz iteration: from Y = A / |A|, Z = I,

        T = (3 I - Z Y) / 2;    Y <- Y T;    Z <- T Z

    Y goes to the root of A / |A|, Z to its inverse. The number of turns grows with the logarithm
    of the condition number; the error in float32 is some 1e-11 of it, and at least 1e-7.

    Args:
      a: symmetric positive definite matrices `(..., n, n)`, in float32 or wider.

    Reference: Higham, Functions of Matrices, 2008, equation (6.35).
    """
    identity, size = _identity(a), _norm(a)

    def turn(y, z):
        zy = matmul(z, y)
        t = (3 * identity - zy) / 2
        return matmul(y, t), matmul(t, z), _distance(zy, identity)

    return _until_still(turn, a / size, jnp.broadcast_to(identity, a.shape)) * jnp.sqrt(size)


def inverse_root(a: Array, p: int) -> Array:
    """Return a^(-1/p) of symmetric positive definite matrices, by matrix products only.

    The coupled Newton iteration: from c = (2 |A| / (p + 1))^(1/p), X = I / c, M = A / c^p,

        T = ((p + 1) I - M) / p;    X <- X T;    M <- T^p M

    M goes to the identity, X to the root. The error in float32 is some 1e-8 of the condition
    number: take the root of a square root, with p / 2, where that is large.

    Args:
      a: symmetric positive definite matrices `(..., n, n)`, in float32 or wider.
      p: which root, at least 1.

    Reference: Guo and Higham, A Schur-Newton Method for the Matrix pth Root and its Inverse, 2006,
    equation (3.2).
    """
    identity = _identity(a)
    below = 2 * _norm(a) / (p + 1)

    def turn(x, m):
        t = ((p + 1) * identity - m) / p
        return matmul(x, t), matmul(_whole_power(t, p), m), _distance(m, identity)

    return _until_still(turn, identity * below ** (-1 / p), a / below)


def rounding(a: Array) -> Array:
    """Return how well the eigenvalues of symmetric matrices are known: to a rounding of |A|.

    A negative power of a singular matrix needs a ridge of at least as much.

    Args:
      a: symmetric matrices `(..., n, n)`, in float32 or wider.
    """
    return float(jnp.finfo(a.dtype).eps) * jnp.squeeze(_norm(a), (-2, -1))


def orthogonalize(
    x: Array,
    coefficients: Array,
    preconditioning: str = "frobenius",
    eps: Scalar = 1e-8,
    turns: Array | None = None,
) -> Array:
    """Return a matrix with the singular vectors of `x` and singular values of about 1.

    The quintic Newton-Schulz iteration: one turn for each row (a, b, c) of coefficients,

        A = X X^H;    X <- a X + (b A + c A A) X

    which applies the odd polynomial a s + b s^3 + c s^5 to every singular value s. It must start
    with none above 1, which is what `preconditioning` sees to. With the usual coefficients the
    values end between 0.7 and 1.2, not at 1; in training that does not matter.

    Products are in the precision that JAX is told to use (`jax.default_matmul_precision`).

    Args:
      x: matrices `(..., m, n)`, real or complex, in float32 or wider.
      coefficients: `(turns, 3)`.
      preconditioning: what `x` is divided by first: "frobenius", its Frobenius norm; "spectral",
        its largest singular value, exact and slow; "aol", every row by the root of its row sum of
        |X X^H|; "schatten", the root of the Frobenius norm of X X^H.
      eps: added to the norm for "frobenius" and "spectral", at least 0; zeros stay zeros.
      turns: how often the one row of coefficients is repeated, where only a run knows it. None: as
        many turns as there are rows.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024;
    Boissin et al., Turbo-Muon: Accelerating Orthogonality-Based Optimization with
    Pre-Conditioning, 2025 (aol); Grishina et al., Accelerating Newton-Schulz Iteration for
    Orthogonalization via Chebyshev-type Polynomials, 2025 (schatten).
    """
    tall = x.shape[-2] > x.shape[-1]
    x = jnp.swapaxes(x, -1, -2) if tall else x  # the smaller A; polynomials do not mind
    divide = PRECONDITIONINGS[preconditioning]
    x, gram = divide(x, eps)

    def turn(x: Array, row: Array, gram: Any = None) -> Array:
        a, b, c = (cast(row[k], x.dtype) for k in range(3))
        gram = _gram(x) if gram is None else gram
        return a * x + jnp.matmul(b * gram + c * jnp.matmul(gram, gram), x)

    if turns is not None:
        x = lax.fori_loop(0, turns, lambda _, x: turn(x, coefficients[0]), x)
    else:
        for i in range(coefficients.shape[0]):
            x, gram = turn(x, coefficients[i], gram), None
    return jnp.swapaxes(x, -1, -2) if tall else x


# What a matrix is divided by before the iteration. Each returns it and, if it came by it, X X^H.


def _frobenius(x: Array, eps: Scalar) -> tuple[Array, Any]:
    eps = not_zero(eps, x.dtype)
    return over(x, cast(plus(_norm(x), eps), x.dtype), eps), None


def _spectral(x: Array, eps: Scalar) -> tuple[Array, Any]:
    largest = jnp.linalg.norm(x, ord=2, axis=(-2, -1), keepdims=True)
    eps = not_zero(eps, x.dtype)
    return over(x, cast(plus(largest, eps), x.dtype), eps), None


# The floor of the two below; Optax has this one, whatever eps is.
_FLOOR = 1e-8


def _aol(x: Array, eps: Scalar) -> tuple[Array, Any]:
    x = squarable(x, (-2, -1))
    gram = _gram(x)
    rows = jnp.maximum(jnp.sum(jnp.abs(gram), axis=-1, keepdims=True), _FLOOR)
    scale = cast(lax.rsqrt(rows), x.dtype)
    return x * scale, gram * scale * jnp.swapaxes(scale, -1, -2)


def _schatten(x: Array, eps: Scalar) -> tuple[Array, Any]:
    x = squarable(x, (-2, -1))
    gram = _gram(x)
    scale = cast(lax.rsqrt(jnp.maximum(_norm(gram), _FLOOR)), x.dtype)
    return x * scale, gram * scale * scale


PRECONDITIONINGS: dict[str, Callable[[Array, Scalar], tuple[Array, Any]]] = {
    "frobenius": _frobenius,
    "spectral": _spectral,
    "aol": _aol,
    "schatten": _schatten,
}


# ------------------------------------------------------------------------------------------ helpers


def matmul(a: Array, b: Array) -> Array:
    """Return the matrix product in full precision on every backend."""
    return jnp.matmul(a, b, precision=HIGHEST)


def _gram(x: Array) -> Array:
    return jnp.matmul(x, jnp.swapaxes(jnp.conj(x), -1, -2))


def _identity(a: Array) -> Array:
    return jnp.expand_dims(jnp.eye(a.shape[-1], dtype=a.dtype), tuple(range(a.ndim - 2)))


def _norm(a: Array) -> Array:
    """The Frobenius norm, real, with two axes of length 1 at the end, for entries of any size."""
    sizes = jnp.abs(a)
    largest = jnp.max(sizes, axis=(-2, -1), keepdims=True, initial=0)
    squares = jnp.square(over(sizes, largest))
    return largest * jnp.sqrt(jnp.sum(squares, axis=(-2, -1), keepdims=True))


def _distance(a: Array, identity: Array) -> Array:
    return jnp.max(jnp.abs(a - identity), axis=(-2, -1), keepdims=True)


def _whole_power(a: Array, n: int) -> Array:
    """Return a^n for n >= 1, by squaring."""
    if n == 1:
        return a
    half = _whole_power(matmul(a, a), n // 2)
    return matmul(half, a) if n % 2 else half


def _until_still(turn: Callable[..., Any], x: Array, y: Array) -> Array:
    """Iterate `x, y, off = turn(x, y)` until `off`, a matrix's distance from its goal, is noise.

    Convergence is quadratic once the distance is below 1/2; from there on a turn that does not
    bring a matrix nearer only adds noise, and that matrix is left as it is.
    """
    enough = 4 * np.finfo(x.dtype).eps

    def moving(near: Array, old: Array) -> Array:
        return (near > enough) & ((near < old) | (old > 0.5))

    def going_on(carry):
        i, _, _, near, old = carry
        return (i < _TURNS) & jnp.any(moving(near, old))

    def body(carry):
        i, x, y, near, old = carry
        new_x, new_y, off = turn(x, y)
        on = moving(near, old)
        keep = [jnp.where(on, n, o) for n, o in ((new_x, x), (new_y, y), (off, near), (near, old))]
        return (i + 1, *keep)

    far = jnp.full((*x.shape[:-2], 1, 1), np.inf, x.dtype)
    return lax.while_loop(going_on, body, (jnp.zeros((), jnp.int32), x, y, far, far))[1]

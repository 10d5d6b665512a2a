"""The orthogonal factor of matrices, by an iteration of matrix products."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import settled_carry
from gradxform.linalg.decompositions import spectral_norm
from gradxform.linalg.products import (
    Columns,
    adjoint,
    frobenius_norm,
    gram_of,
    identity_like,
    largest_entry,
    matmul_in,
    norm_in_parts,
)
from gradxform.numerics import cast, not_zero, over, plus, taming
from gradxform.types import Array, Scalar


def orthogonalize(
    x: Array,
    coefficients: Array,
    preconditioning: str = "frobenius",
    eps: Scalar = 1e-8,
    turns: Array | None = None,
    dtype: Any = None,
    by_gram: bool = False,
    columns: Columns | None = None,
) -> Array:
    """Return a matrix with the singular vectors of `x` and singular values of about 1.

    The quintic Newton-Schulz iteration: one turn for each row (a, b, c) of coefficients,

        A = X X^H;    X <- a X + (b A + c A A) X

    which applies the odd polynomial a s + b s^3 + c s^5 to every singular value s. At the start
    they must not exceed 1; `preconditioning` ensures that. With the usual coefficients the values
    end between 0.7 and 1.2, not at 1; in training that does not matter.

    Products are computed in JAX's default precision (`jax.default_matmul_precision`).

    Args:
      x: matrices `(..., m, n)`, real or complex, in float32 or wider.
      coefficients: `(turns, 3)`.
      preconditioning: the first divisor of `x`: "frobenius", its Frobenius norm; "spectral", its
        largest singular value, exact and slow; "aol", for every row the root of its row sum of
        |X X^H|; "schatten", the root of the Frobenius norm of X X^H.
      eps: added to the norm for "frobenius" and "spectral", at least 0; zeros stay zeros.
      turns: how often to apply the first row of coefficients, if the number is known only at run
        time. Defaults to one turn for each row.
      dtype: a narrower one for matrices between turns and the factors of products, whose sums are
        in that of `x`. Not for complex matrices.
      by_gram: whether to iterate on X X^H where one side is at least `GRAM_RATIO` times the other,
        which takes fewer products and rounds differently. Not with `turns` or a narrower dtype: a
        polynomial of X X^H, rounded to 16 bits, loses small singular values.
      columns: how the columns of `x` are divided over devices; None if `x` is whole. The devices
        together must have at least as many columns as rows. The result is divided alike. Not for
        "spectral".

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024;
    Boissin et al., Turbo-Muon: Accelerating Orthogonality-Based Optimization with
    Pre-Conditioning, 2025 (aol); Grishina et al., Accelerating Newton-Schulz Iteration for
    Orthogonalization via Chebyshev-type Polynomials, 2025 (schatten).
    """
    tall = columns is None and x.shape[-2] > x.shape[-1]
    x = jnp.swapaxes(x, -1, -2) if tall else x  # a smaller A, and the same singular values
    x, gram = PRECONDITIONINGS[preconditioning](x, eps, columns)
    wide = x.dtype
    dtype = _dtype_of_turns(x, dtype)

    m, n = x.shape[-2], x.shape[-1] * (1 if columns is None else columns.devices)
    if turns is not None:
        turn = functools.partial(_turn, wide=wide, dtype=dtype, columns=columns)
        x = lax.fori_loop(0, turns, lambda _, x: turn(x, coefficients[0]), cast(x, dtype))
        x = cast(x, wide)
    elif by_gram and _far_from_square(m, n) and dtype == wide:
        x = _polar_by_gram(x, coefficients, gram, columns)
    else:
        x, _ = _after_turns(x, gram, coefficients, (), dtype, columns)
    return jnp.swapaxes(x, -1, -2) if tall else x


def sums_of_iterates(
    x: Array,
    coefficients: Array,
    weights: Sequence[Array],
    preconditioning: str = "frobenius",
    eps: Scalar = 1e-8,
    dtype: Any = None,
    columns: Columns | None = None,
) -> tuple[Array, tuple[Array, ...]]:
    """Return what `orthogonalize` returns, and sums of the matrices on the way there.

    A sum is w_0 X_0 + w_1 X_1 + ..., where X_0 is the divided `x`, and X_k what `k` turns make of
    it. It has the singular vectors of `x`, and its singular values are the same sums.

    Args:
      x: as in `orthogonalize`, and not higher than wide.
      coefficients: `(turns, 3)`.
      weights: for each sum `(turns + 1,)`.
      preconditioning: as in `orthogonalize`.
      eps: as in `orthogonalize`.
      dtype: as in `orthogonalize`; the sums stay in that of `x`.
      columns: as in `orthogonalize`.
    """
    x, gram = PRECONDITIONINGS[preconditioning](x, eps, columns)
    return _after_turns(x, gram, coefficients, weights, _dtype_of_turns(x, dtype), columns)


def _after_turns(
    x: Array,
    gram: Array | None,
    coefficients: Array,
    weights: Sequence[Array],
    dtype: Any,
    columns: Columns | None,
) -> tuple[Array, tuple[Array, ...]]:
    """Return the last of the iterates X_0, X_1, ..., and for each of `weights` a sum of all."""
    wide = x.dtype
    turn = functools.partial(_turn, wide=wide, dtype=dtype, columns=columns)

    def step(carry: Any, rows: Any, gram: Array | None = None) -> tuple[Any, None]:
        x = turn(carry[0], rows[0], gram)
        pairs = zip(carry[1], rows[1], strict=True)
        return (x, tuple([total + w * cast(x, wide) for total, w in pairs])), None

    weights = tuple([cast(w, wide) for w in weights])
    carry: Any = cast(x, dtype), tuple([w[0] * x for w in weights])
    rows = coefficients, tuple([w[1:] for w in weights])
    first = jax.tree.map(lambda row: row[0], rows)
    if gram is not None:
        carry, _ = step(carry, first, gram)
        rows = jax.tree.map(lambda row: row[1:], rows)
    if rows[0].shape[0]:
        # A loop has one copy of the products, and takes half of the memory.
        carry = settled_carry(lambda carry: step(carry, first)[0], carry, rows)
        carry, _ = lax.scan(step, carry, rows)
    return cast(carry[0], wide), carry[1]


def _dtype_of_turns(x: Array, dtype: Any) -> Any:
    return x.dtype if dtype is None or jnp.iscomplexobj(x) else jnp.dtype(dtype)


def _turn(
    x: Array,
    row: Array,
    gram: Array | None = None,
    *,
    wide: Any,
    dtype: Any,
    columns: Columns | None,
) -> Array:
    """Return the matrices after one turn of the iteration."""
    product = functools.partial(matmul_in, dtype=dtype, wide=wide)
    a, b, c = (cast(row[k], wide) for k in range(3))
    if gram is None:
        gram = product(x, adjoint(x))
        gram = gram if columns is None else columns.total_hermitian(gram)
    return cast(a * cast(x, wide) + product(b * gram + c * product(gram, gram), x), dtype)


# How many times longer than wide a matrix is for the iteration on the Gram matrix to pay, and after
# how many turns that is formed anew. After three, float32 errors are those of the other iteration;
# after five, they would be a hundred times as large for a condition of 1000.
GRAM_RATIO = 2.5
_RENEWAL = 3


def _far_from_square(m: int, n: int) -> bool:
    return n >= GRAM_RATIO * m


def grams_needed(turns: int, by_gram: bool, m: int, n: int) -> int:
    """Return how many products X X^H `orthogonalize` forms for matrices of `m` <= `n` sides."""
    return -(-turns // _RENEWAL) if by_gram and _far_from_square(m, n) else turns


def _polar_by_gram(
    x: Array, coefficients: Array, gram: Array | None, columns: Columns | None
) -> Array:
    """Return `x` after all turns, with products of square matrices in place of most long ones."""
    for start in range(0, coefficients.shape[0], _RENEWAL):
        rows = coefficients[start : start + _RENEWAL]
        gram = gram_of(x, columns) if gram is None else gram
        total = None
        for i in range(rows.shape[0]):
            a, b, c = (cast(rows[i, k], x.dtype) for k in range(3))
            factor = a * identity_like(gram) + b * gram + c * gram_of(gram)
            total = factor if total is None else jnp.matmul(factor, total)
            if i + 1 < rows.shape[0]:
                gram = jnp.matmul(jnp.matmul(factor, gram), factor)
                # Rounded, it is not quite Hermitian, and the next turn takes A A^H for A A.
                gram = (gram + adjoint(gram)) / 2
        assert total is not None
        x, gram = jnp.matmul(total, x), None
    return x


# The preconditionings. Each returns the divided matrix X and, if it has computed it, X X^H.


def _scaling_by_frobenius(
    x: Array, eps: Scalar, columns: Columns | None
) -> tuple[Array, Array | None]:
    eps = not_zero(eps, x.dtype)
    largest, share = norm_in_parts(x, columns)
    factor = taming(largest)  # so that the norm is in the range
    size = cast(plus(largest * factor * share, eps), x.dtype)
    return over(x * cast(factor, x.dtype), size, eps), None


def _scaling_by_spectral(
    x: Array, eps: Scalar, columns: Columns | None
) -> tuple[Array, Array | None]:
    if columns is not None:
        raise ValueError(
            "linalg.orthogonalize: preconditioning 'spectral' needs whole matrices, not columns of "
            "them; use 'frobenius', 'aol' or 'schatten'."
        )
    largest = spectral_norm(x)
    eps = not_zero(eps, x.dtype)
    return over(x, cast(plus(largest, eps), x.dtype), eps), None


# The floor of the next two, whatever eps is, as in Optax.
_FLOOR = 1e-8


def _scaling_by_aol(x: Array, eps: Scalar, columns: Columns | None) -> tuple[Array, Array | None]:
    x, gram = _with_gram(x, columns)
    rows = jnp.maximum(jnp.sum(jnp.abs(gram), axis=-1, keepdims=True), _FLOOR)
    scale = cast(lax.rsqrt(rows), x.dtype)
    return x * scale, gram * scale * jnp.swapaxes(scale, -1, -2)


def _scaling_by_schatten(
    x: Array, eps: Scalar, columns: Columns | None
) -> tuple[Array, Array | None]:
    x, gram = _with_gram(x, columns)
    scale = cast(lax.rsqrt(jnp.maximum(frobenius_norm(gram), _FLOOR)), x.dtype)
    return x * scale, gram * scale * scale


def _with_gram(x: Array, columns: Columns | None) -> tuple[Array, Array]:
    """Return `x`, scaled down if squares overflow, and X X^H."""
    x = x * cast(taming(largest_entry(x, columns)), x.dtype)
    return x, gram_of(x, columns)


PRECONDITIONINGS: dict[str, Callable[..., tuple[Array, Array | None]]] = {
    "frobenius": _scaling_by_frobenius,
    "spectral": _scaling_by_spectral,
    "aol": _scaling_by_aol,
    "schatten": _scaling_by_schatten,
}

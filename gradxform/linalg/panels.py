"""Orthonormal columns by matrix products, a panel of columns after the other.

For TPUs, whose compiler unrolls QR decompositions: 38 seconds for one of 1024 columns, where this
takes 5 for any number of them. It is as accurate.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import platform_of, settled_carry
from gradxform.linalg.products import identity_like, matmul
from gradxform.numerics import over
from gradxform.types import Array

# The columns of a panel, as many as a TPU multiplies at once.
PANEL = 128
# Up to so many columns a QR decomposition compiles in some 10 seconds, and keeps less.
LEAST = 256
# Of each panel: one with a shift, two as of independent columns, and one for those of roundings.
_TURNS = 4
# Some ten times the rounding error of the Gram matrix of a panel: no pivot is negative.
_SHIFT = 1.1e-5
_LEAST_PIVOT = 1e-7


def is_by_panels(a: Array) -> bool:
    """Whether bases of the columns of matrices are found by panels."""
    is_long = a.ndim > 1 and min(a.shape[-2:]) > LEAST
    return is_long and a.dtype == jnp.float32 and platform_of(a) == "tpu"


def orthonormal_by_panels(a: Array) -> Array:
    """Return the Q of the QR decompositions of matrices `(..., m, n)`, with a positive R.

    For each panel W of columns, four times:

        W <- W - Q Q^T W        (Q: the panels before)
        W <- W D, columns of norm 1;    W <- W R^-1 with R^T R = W^T W + s I

    with s = 1.1e-5 at first, then 0. Where Q has n columns, and A fewer independent ones, those of
    the identity stand in: a rounding of it is added to the columns. So Q is one of zeros, too.

    Args:
      a: matrices in float32.

    Reference: Yamamoto et al., Roundoff Error Analysis of the CholeskyQR2 Algorithm, 2015; Fukaya
    et al., Shifted Cholesky QR for Computing the QR Factorization of Ill-Conditioned Matrices,
    2020, for the shift and the third turn; by panels as in Stewart, Block Gram-Schmidt
    Orthogonalization, 2008.
    """
    m, n = a.shape[-2], min(a.shape[-2:])
    a = a[..., :n]
    a = over(a, jnp.max(jnp.abs(a), axis=-2, keepdims=True))
    a = over(a, jnp.sqrt(_squares(a)))
    some = 2 * float(jnp.finfo(a.dtype).eps) * jnp.eye(m, n, dtype=a.dtype)
    a = a + jnp.expand_dims(some, tuple(range(a.ndim - 2)))
    # Columns of zeros stay: they only fill up the last panel.
    q = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -n % PANEL)])
    places = jnp.arange(q.shape[-1])

    # One loop over turns and panels: what is constant in an inner one would be kept in many copies.
    def turn(i: Any, q: Array) -> Array:
        start = i // _TURNS * PANEL
        w = lax.dynamic_slice_in_dim(q, start, PANEL, -1)
        before = _where_rows(places < start, matmul(jnp.swapaxes(q, -1, -2), w), 0)
        w = w - matmul(q, before)
        squares = _squares(w)
        w = over(w, jnp.sqrt(squares))
        shift = jnp.where(squares > 0, jnp.where(i % _TURNS == 0, _SHIFT, 0), 1)
        gram = matmul(jnp.swapaxes(w, -1, -2), w) + shift * identity_like(w[..., :PANEL, :])
        return lax.dynamic_update_slice_in_dim(q, matmul(w, _whitening(gram)), start, -1)

    turns = _TURNS * (q.shape[-1] // PANEL)
    q = lax.fori_loop(0, turns, turn, settled_carry(lambda q: turn(turns, q), q, None))
    return q[..., :n]


def _where_rows(is_chosen: Array, x: Array, other: Any) -> Array:
    return jnp.where(jnp.expand_dims(is_chosen, (*range(x.ndim - 2), -1)), x, other)


def _squares(a: Array) -> Array:
    return jnp.sum(jnp.square(a), axis=-2, keepdims=True)


def _whitening(a: Array) -> Array:
    """Return R^-1 of the Cholesky factors R^T R = a, by elimination in (a, I)."""
    n = a.shape[-1]
    x = jnp.concatenate([a, jnp.broadcast_to(identity_like(a), a.shape)], axis=-1)
    places = jnp.arange(n)

    def eliminated(k: Any, x: Array) -> Array:
        row = lax.dynamic_slice_in_dim(x, k, 1, -2)
        pivot = lax.dynamic_slice_in_dim(row, k, 1, -1)
        row = row * lax.rsqrt(jnp.maximum(pivot, _LEAST_PIVOT))
        column = jnp.swapaxes(row[..., :n], -1, -2)
        x = _where_rows(places > k, x - column * row, x)
        return lax.dynamic_update_slice_in_dim(x, row, k, -2)

    x = lax.fori_loop(0, n, eliminated, settled_carry(lambda x: eliminated(n, x), x, None))
    return jnp.swapaxes(x[..., n:], -1, -2)

"""Decompositions of matrices, in float32 or wider: eigenvectors, QR, the spectral norm."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import is_tracer
from gradxform.linalg.panels import is_by_panels, orthonormal_by_panels
from gradxform.linalg.products import identity_like, matmul
from gradxform.types import Array


def eigen(a: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of symmetric matrices, and their eigenvectors as columns.

    For matrices of up to 128 rows a refinement brings the error of the eigenvectors from about ten
    roundings to two. This matters for an inverse root of a singular matrix, which multiplies the
    error of the small eigenvectors in the direction of the large ones by the root of the condition
    number.

    Args:
      a: symmetric matrices `(..., n, n)`, in float32 or wider; the lower triangle is read.

    Reference: Ogita and Aishima, Iterative refinement for symmetric eigenvalue decomposition, 2018,
    Algorithm 1.
    """
    values, vectors = one_by_one(_eigh, a)
    return _refined(a, vectors) if 1 < a.shape[-1] <= _SMALL else (values, vectors)


def orthonormal(a: Array) -> Array:
    """Return the Q of the QR decompositions of matrices `(..., m, n)`, in float32 or wider.

    On a TPU the columns of long matrices in float32 are decomposed by panels.
    """
    if is_by_panels(a):
        return orthonormal_by_panels(a)
    return one_by_one(_q_of_qr_decomposition, a)


def spectral_norm(a: Array) -> Array:
    """Return the largest singular values of matrices, in axes of length 1."""
    return one_by_one(_spectral_norm, a)


def one_by_one(decompose: Callable[..., Any], *xs: Array) -> Any:
    """Return a decomposition of matrices; on a CPU of each matrix by itself, under `vmap` too.

    XLA:CPU divides a batch over the threads that also run other parts of a program. Two batches at
    once can wait for each other forever.

    Args:
      decompose: a function of arrays, for any number of leading axes; of a module, so that it is
        traced once.
      *xs: the arrays, with the same number of axes.
    """
    if xs[0].ndim == 2 and not any(map(is_tracer, xs)):
        return decompose(*xs)
    return lax.platform_dependent(*xs, cpu=_decompose_in_turn(decompose), default=decompose)


@functools.cache
def _decompose_in_turn(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Return `decompose` as a loop over matrices."""

    @jax.custom_jvp
    def of_one(*xs: Array) -> Any:
        # A function of its own: of `decompose`, JAX would take the defaults for arrays, too.
        return jax.custom_batching.sequential_vmap(lambda *xs: decompose(*xs))(*xs)

    # The function above can only be differentiated forward. Under `vmap` derivatives are of a
    # batch; outside of it they are of one matrix at a time, too.
    @of_one.defjvp
    def _(xs: tuple[Array, ...], tangents: tuple[Array, ...]) -> Any:
        return jax.jvp(decompose, xs, tangents)

    def in_turn(*xs: Array) -> Any:
        if xs[0].ndim == 2:
            return of_one(*xs)
        return lax.map(lambda x: in_turn(*x), xs)

    return in_turn


def _eigh(a: Array) -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(a, symmetrize_input=False)
    return values, vectors


def _spectral_norm(a: Array) -> Array:
    return jnp.linalg.norm(a, ord=2, axis=(-2, -1), keepdims=True)


def _q_of_qr_decomposition(a: Array) -> Array:
    return jnp.linalg.qr(a)[0]


# The most of one eigenvector that a refinement may mix into another. Its square is neglected; and
# eigenvalues that need more are too close to be distinguished at this precision.
_MIX = 2.0**-12
# In larger matrices the neglected squares add up.
_SMALL = 128


def _refined(a: Array, v: Array) -> tuple[Array, Array]:
    """Return the eigenvalues and eigenvectors after one step of the refinement."""
    identity, vt = identity_like(a), jnp.swapaxes(v, -1, -2)
    r = identity - matmul(vt, v)
    s = matmul(vt, matmul(a, v))
    s = (s + jnp.swapaxes(s, -1, -2)) / 2  # else the two vectors of a pair turn differently
    values = jnp.diagonal(s, axis1=-2, axis2=-1) / (1 - jnp.diagonal(r, axis1=-2, axis2=-1))
    row = jnp.expand_dims(values, -2)
    gap = row - jnp.expand_dims(values, -1)
    change = s + row * r
    is_clear = jnp.abs(change) < _MIX * jnp.abs(gap)  # never on the diagonal, where the gap is 0
    e = jnp.where(is_clear, change / jnp.where(is_clear, gap, 1), r / 2)
    return values, v + matmul(v, e)

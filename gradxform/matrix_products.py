"""Products and norms of matrices and batches of matrices."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform.numerics import cast, over
from gradxform.types import Array

# By default accelerators multiply float32 matrices in fewer bits. The smallest eigenvalues, which
# are the largest of an inverse root, would be lost.
HIGHEST = lax.Precision.HIGHEST


def matmul(a: Array, b: Array, precision: lax.Precision = HIGHEST) -> Array:
    """Return the matrix product, by default in full precision on every backend."""
    return jnp.matmul(a, b, precision=precision)


def matmul_in(a: Array, b: Array, dtype: Any, wide: Any = None) -> Array:
    """Return the product of factors in a narrower dtype, summed in a wider one.

    Args:
      a: matrices.
      b: matrices.
      dtype: that of the factors; None for their own, and always for complex ones. Products in their
        own dtype have the precision that JAX is told to use (`jax.default_matmul_precision`).
      wide: the dtype of the sums; None for that of `a`.
    """
    wide = a.dtype if wide is None else wide
    if dtype is None or wide == jnp.dtype(dtype) or jnp.iscomplexobj(a):
        return jnp.matmul(a, b)
    return jnp.matmul(cast(a, dtype), cast(b, dtype), preferred_element_type=wide)


def adjoint(x: Array) -> Array:
    """Return the conjugate transpose."""
    return jnp.swapaxes(jnp.conj(x), -1, -2)


def gram_of(x: Array) -> Array:
    """Return the product of matrices with their conjugate transposes."""
    return jnp.matmul(x, adjoint(x))


def identity_like(a: Array) -> Array:
    """Return the identity, of the dtype and the number of axes of square matrices."""
    return jnp.expand_dims(jnp.eye(a.shape[-1], dtype=a.dtype), tuple(range(a.ndim - 2)))


def frobenius_norm(a: Array) -> Array:
    """Return the Frobenius norm, real, `(..., 1, 1)`, without overflow or underflow of squares."""
    magnitudes = jnp.abs(a)
    largest = jnp.max(magnitudes, axis=(-2, -1), keepdims=True, initial=0)
    squares = jnp.square(over(magnitudes, largest))
    return largest * jnp.sqrt(jnp.sum(squares, axis=(-2, -1), keepdims=True))

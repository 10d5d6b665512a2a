"""Products and norms of matrices and batches of matrices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform.numerics import cast
from gradxform.numerics.overflow import quotient_by_shared
from gradxform.numerics.roots import root
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


class Columns(NamedTuple):
    """Matrices whose columns are divided equally among devices, in any order."""

    devices: int
    total: Callable[[Array], Array]  # the sum of an array over the devices
    largest: Callable[[Array], Array]  # its largest entries on any device

    def total_hermitian(self, x: Array) -> Array:
        """Return the sum of Hermitian matrices over the devices; only about half of it is sent."""
        side = x.shape[-1]
        if hermitian_size(side) == side**2:
            return self.total(x)
        if side % 2:
            wider = [(0, 0)] * (x.ndim - 2) + [(0, 1)] * 2
            return self.total_hermitian(jnp.pad(x, wider))[..., :side, :side]
        half = side // 2
        upper, right, lower = x[..., :half, :half], x[..., :half, half:], x[..., half:, half:]
        # One square has the lower triangle of the upper block, and the upper one of the lower.
        both = jnp.tril(upper) + jnp.triu(lower, 1)
        diagonal = jnp.diagonal(lower, axis1=-2, axis2=-1)[..., None, :]
        packed = self.total(jnp.concatenate([right, both, diagonal], axis=-2))
        right, both, diagonal = jnp.split(packed, (half, 2 * half), axis=-2)
        upper = jnp.tril(both) + adjoint(jnp.tril(both, -1))
        lower = jnp.triu(both, 1) + adjoint(jnp.triu(both, 1)) + identity_like(both) * diagonal
        return jnp.block([[upper, right], [adjoint(right), lower]])


def hermitian_size(side: int) -> int:
    """Return how many entries of a Hermitian matrix `Columns.total_hermitian` sends."""
    half = -(-side // 2)
    return min(side**2, half * (2 * half + 1))


def gram_of(x: Array, columns: Columns | None = None) -> Array:
    """Return the product of matrices with their conjugate transposes.

    Args:
      x: matrices.
      columns: how devices have them; None if they are whole.
    """
    gram = jnp.matmul(x, adjoint(x))
    return gram if columns is None else columns.total_hermitian(gram)


def identity_like(a: Array) -> Array:
    """Return the identity, of the dtype and the number of axes of square matrices."""
    return jnp.expand_dims(jnp.eye(a.shape[-1], dtype=a.dtype), tuple(range(a.ndim - 2)))


def frobenius_norm(a: Array, columns: Columns | None = None) -> Array:
    """Return the Frobenius norm, real, `(..., 1, 1)`, without overflow or underflow of squares."""
    largest, share = norm_in_parts(a, columns)
    return largest * share


def norm_in_parts(a: Array, columns: Columns | None = None) -> tuple[Array, Array]:
    """Return the largest absolute value, and the Frobenius norm over it: two numbers in range."""
    magnitudes, largest = jnp.abs(a), largest_entry(a, columns)
    shares = quotient_by_shared(magnitudes, jnp.where(largest == 0, 1, largest))
    total = jnp.sum(jnp.square(shares), axis=(-2, -1), keepdims=True)
    return largest, root(total if columns is None else columns.total(total))


def largest_entry(a: Array, columns: Columns | None = None) -> Array:
    """Return the largest absolute value of each matrix, real, `(..., 1, 1)`."""
    largest = jnp.max(jnp.abs(a), axis=(-2, -1), keepdims=True, initial=0)
    return largest if columns is None else columns.largest(largest)

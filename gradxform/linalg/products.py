"""Products and norms of matrices and batches of matrices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import platform_of, settled_carry, zeros_of
from gradxform.numerics import cast, over
from gradxform.numerics.overflow import quotient_by_shared
from gradxform.numerics.roots import root
from gradxform.types import Array

# By default accelerators multiply float32 matrices in fewer bits. The smallest eigenvalues, which
# are the largest of an inverse root, would be lost.
HIGHEST = lax.Precision.HIGHEST


def matmul(a: Array, b: Array, precision: lax.Precision = HIGHEST) -> Array:
    """Return the matrix product, by default in full precision on every backend."""
    if precision == HIGHEST and _is_in_parts(a, b):
        return _of_parts(a, b)
    return jnp.matmul(a, b, precision=precision)


# Each side of a product that a TPU's compiler makes of six: fewer are compiled as fast.
_LEAST = 128


def _is_in_parts(a: Array, b: Array) -> bool:
    if min(a.ndim, b.ndim) < 2 or min(*a.shape[-2:], b.shape[-1]) < _LEAST:
        return False
    is_whole = all(axis is None for x in (a, b) for axis in jax.typeof(x).sharding.spec)
    return is_whole and a.dtype == b.dtype == jnp.float32 and platform_of(a) == "tpu"


@jax.custom_jvp
def _of_parts(a: Array, b: Array) -> Array:
    """Return the product in full precision, as a TPU computes it: of three parts of each factor."""
    return _sum_of_parts(lambda x, y, dtype: jnp.matmul(x, y, preferred_element_type=dtype), a, b)


@_of_parts.defjvp
def _(xs: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, b), (da, db) = xs, tangents
    product = lambda x, y: jnp.matmul(x, y, precision=HIGHEST)  # noqa: E731
    return _of_parts(a, b), product(da, b) + product(a, db)


def product_with_itself(x: Array, side: int) -> Array:
    """Return x x^T for side 0, or x^T x for side 1, in full precision, without turning x."""
    if not _is_in_parts(x, x):
        y = jnp.swapaxes(x, -1, -2)
        return matmul(x, y) if side == 0 else matmul(y, x)
    axes = "...ik,...jk->...ij" if side == 0 else "...ki,...kj->...ij"
    product = lambda x, y, dtype: jnp.einsum(axes, x, y, preferred_element_type=dtype)  # noqa: E731
    return _sum_of_parts(product, x)


def _sum_of_parts(product: Callable[..., Array], *factors: Array) -> Array:
    """Return the product of two factors, or of one with itself, from parts of them.

    A number of float32 is the sum of three of bfloat16. Six of their nine products are above a
    rounding. The compiler takes two to three times as long for the six as for a loop over them.
    """
    # The smallest first.
    pairs = jnp.asarray([(2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)], jnp.int32)
    dtype = factors[0].dtype

    def added(i: Array, now: Any) -> Any:
        total, factors = now
        total = total + product(
            _part(factors[0], pairs[i, 0]), _part(factors[-1], pairs[i, 1]), dtype
        )
        # Else the compiler would keep all parts of both factors from turn to turn.
        return lax.optimization_barrier((total, factors))

    of = lambda factors: product(factors[0], factors[-1], dtype)  # noqa: E731
    start = zeros_of(jax.eval_shape(of, factors)), factors
    start = settled_carry(lambda now: added(jnp.int32(0), now), start, ())
    return lax.fori_loop(0, len(pairs), added, start)[0]


def _part(x: Array, number: Array) -> Array:
    """Return one of three arrays of bfloat16 whose sum is an array of float32."""
    # A cast there and back may be left out by XLA.
    for i in range(2):
        x = x - jnp.where(number > i, lax.reduce_precision(x, 8, 7), 0)
    return cast(lax.reduce_precision(x, 8, 7), jnp.bfloat16)


def inner_products(a: Array, b: Array) -> Array:
    """Return the inner products of the arrays along axis 0 of `a` and of `b`, a matrix."""
    axes = tuple(range(1, a.ndim))
    if platform_of(a) == "tpu":  # whose compiler takes 20 seconds for a product of long vectors
        over = tuple(axis + 1 for axis in axes)
        return jnp.sum(jnp.expand_dims(jnp.conj(a), 1) * jnp.expand_dims(b, 0), over)
    return jnp.tensordot(jnp.conj(a), b, axes=(axes, axes), precision=HIGHEST)


def weighted_sum(weights: Array, arrays: Array) -> Array:
    """Return the sum of the arrays along axis 0, each times its weight."""
    weights = cast(weights, arrays.dtype)
    if platform_of(arrays) == "tpu":
        return jnp.sum(jnp.expand_dims(weights, tuple(range(1, arrays.ndim))) * arrays, 0)
    return jnp.tensordot(weights, arrays, axes=1, precision=HIGHEST)


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


def with_largest_one(a: Array) -> Array:
    """Return matrices with a largest entry of 1, whose squares neither overflow nor vanish."""
    return over(a, largest_entry(a), 0)


def norm_in_parts(a: Array, columns: Columns | None = None) -> tuple[Array, Array]:
    """Return the largest absolute value, and the Frobenius norm over it: two numbers in range."""
    magnitudes, largest = jnp.abs(a), largest_entry(a, columns)
    shares = quotient_by_shared(magnitudes, jnp.where(largest == 0, 1, largest))
    total = jnp.sum(jnp.square(shares), axis=(-2, -1), keepdims=True)
    return largest, root(total if columns is None else columns.total(total))


def largest_entry(a: Array, columns: Columns | None = None) -> Array:
    """Return the largest absolute value of each matrix, real, `(..., 1, 1)`, for a constant.

    What is divided by it is multiplied by it again, or has its scale taken away, so that nothing
    depends on its derivative. That is 0 / 0 where XLA computes an entry twice, with two roundings,
    and none is the largest.
    """
    largest = jnp.max(jnp.abs(lax.stop_gradient(a)), axis=(-2, -1), keepdims=True, initial=0)
    return largest if columns is None else columns.largest(largest)

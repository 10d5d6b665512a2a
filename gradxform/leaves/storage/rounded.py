"""Arrays in 16 bits, rounded at random so that small changes count on average."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.leaves.storage.stored import StoredArray, stored_array
from gradxform.numerics import cast
from gradxform.types import Array


@stored_array()
class Rounded(StoredArray):
    """An array in bfloat16, to which a new value is rounded at random.

    A number between two neighbors in bfloat16 becomes the upper one with the probability of its
    place between them, so that its mean is the number. The key moves on with every store.
    """

    array: Array  # (...) bfloat16
    key: Array  # (2,) uint32; a seed, and the number of stores so far
    _dtype: Any

    @classmethod
    def of(cls, x: Array, key: Array, dtype: Any = None) -> "Rounded":
        """Return an array in 16 bits, rounded to nearest the first time."""
        seed = jax.random.bits(key, (), jnp.uint32)
        key = jnp.stack([seed, jnp.zeros_like(seed)])
        return cls(cast(x, jnp.bfloat16), key, jnp.dtype(dtype or x.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
        """The dtype in which a rule sees it."""
        return self._dtype

    @property
    def kept_as(self) -> str:
        """The dtype."""
        return "bfloat16, rounded by chance"

    def load(self) -> Array:
        """Return the array."""
        return cast(self.array, self._dtype)

    def store(self, new: Array) -> "Rounded":
        """Return another array, rounded at random."""
        later = self.key + jnp.asarray([0, 1], jnp.uint32)
        return Rounded(rounded_by_chance(new, self.key), later, self._dtype)

    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return the array; the key is for all rows."""
        return ((self.array, 1),)

    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> "Rounded":
        """Return the same form of another array, with the same key."""
        (array,) = arrays
        return Rounded(array, self.key, self._dtype)

    def placed(self, place: Any, replicated: Any) -> "Rounded":
        """Return the shardings of the array and of the key, which is the same everywhere."""
        return Rounded(place, replicated, self._dtype)


# How many rows of a larger array come before those that are computed here.
_BEFORE: contextvars.ContextVar[Any] = contextvars.ContextVar("before", default=None)


@contextlib.contextmanager
def rows_before(count: Any) -> Iterator[None]:
    """Let arrays be rows of larger ones, so many after their first; None for the first."""
    token = _BEFORE.set(count)
    try:
        yield
    finally:
        _BEFORE.reset(token)


def rounded_by_chance(
    x: Array, key: Array, dtype: Any = jnp.bfloat16, rows: Array | None = None
) -> Array:
    """Return an array in a narrow dtype, each entry rounded up or down by chance, to the same mean.

    A bfloat16 is the upper half of a float32: 16 random bits are added below it and dropped. For
    other dtypes, the place of an entry between two neighbors is compared to 16 random bits. What is
    not finite stays as it is, and what exceeds the largest number becomes that.

    Args:
      x: the array.
      key: two numbers of uint32. The bits follow from them and from the place of the entry.
      dtype: a real one of 16 bits or fewer.
      rows: where the rows of `x` are in a larger array; None where it is all.
    """
    x = cast(x, jnp.float32)
    noise = (
        _chance_bits(_chance_seeds(x.shape, rows) ^ _chance_bits(key[0] ^ _chance_bits(key[1])))
        >> 16
    )
    if jnp.dtype(dtype) != jnp.bfloat16:
        limits = jnp.finfo(dtype)
        # The power of two below |x|, and from it the distance of its two neighbors.
        power = jax.lax.bitcast_convert_type(
            jax.lax.bitcast_convert_type(x, jnp.uint32) & np.uint32(0x7F800000), jnp.float32
        )
        apart = jnp.maximum(power * float(limits.eps), float(limits.smallest_subnormal))
        below = jnp.floor(x / apart)
        is_up = (x / apart - below) * 65536 > cast(noise, jnp.float32)
        near = (below + cast(is_up, jnp.float32)) * apart
        near = jnp.clip(near, -float(limits.max), float(limits.max))
        return cast(jnp.where(jnp.isfinite(x), near, x), dtype)
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + noise
    upper = jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    largest = jnp.finfo(jnp.bfloat16).max  # above which the bits carry into an infinity
    return jnp.where(jnp.isfinite(x), jnp.clip(upper, -largest, largest), cast(x, jnp.bfloat16))


def _chance_seeds(shape: tuple[int, ...], rows: Array | None) -> Array:
    """Return a different uint32 for each entry of an array, made without a sum over its axes."""
    place = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        index = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        if axis == 0 and rows is not None:
            index = jax.lax.broadcast_in_dim(rows, shape, (0,))
        if axis == 0 and _BEFORE.get() is not None:
            index = index + jax.lax.convert_element_type(_BEFORE.get(), jnp.uint32)
        # These numbers wrap, so that only entries 2**32 apart have the same.
        place = place + index * np.uint32(stride % 2**32)
        stride *= shape[axis]
    return place


def _chance_bits(x: Array) -> Array:
    """Return the bits of uint32 numbers, mixed: each depends on all of them.

    These few operations compile in no time for every leaf; those of `jax.random` take minutes.

    Reference: Wellons, Prospecting for Hash Functions, 2018, `lowbias32`.
    """
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)

"""Compressing what replicas send: fewer bits, fewer entries, or factors of low rank.

What a form rounds away is not lost: the state keeps it, and the next exchange sends it too.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform.errors import name_of, require_one_of
from gradxform.numerics import cast
from gradxform.types import Array, Choice, PositiveInt, PositiveShare, UnitInterval
from gradxform.values import Value, replace
from gradxform.values.fields import value

__all__ = [
    "Compression",
    "dct_top_k",
    "float8",
    "int8",
    "sign",
    "top_k",
]

_FEWEST = 64  # entries that are worth a code
FLOAT8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


class Compression(Value, abc.ABC):
    """How to make smaller what replicas send, for the field `compress` of what exchanges."""

    never_schedule = True


class Blocks(Compression):
    """A compression that codes blocks of entries, each by itself.

    The entries of an array are taken in order, without regard to its dimensions, and filled up with
    zeros. Arrays with less than a block for each replica have shorter blocks; those with less than
    64 entries for each travel in bfloat16.
    """

    block: PositiveInt
    decay = 1.0  # what is still to be sent is multiplied by it at every exchange

    def fitting(self, length: int) -> "Blocks | None":
        """Return the compression for so many entries a replica; None where they are too few."""
        if length < _FEWEST:
            return None
        return self if length >= self.block else replace(self, block=-(-length // 8) * 8)

    @property
    def unit(self) -> int:
        """The number of entries of a block."""
        return self.block

    @abc.abstractmethod
    def coded(self, x: Array) -> Sequence[Array]:
        """Return arrays for blocks of numbers (..., block), with the same leading axes."""

    @abc.abstractmethod
    def numbers(self, message: Sequence[Array]) -> Array:
        """Return the numbers (..., block) of such arrays, in float32."""

    @property
    @abc.abstractmethod
    def layout(self) -> Sequence[tuple[int, Any]]:
        """For each array its length along the last axis, and its dtype."""

    def encode(self, x: Array) -> Array:
        """Return bytes (n, ...) for numbers (n, length)."""
        blocks = self.coded(x.reshape(len(x), -1, self.block))
        parts = [lax.bitcast_convert_type(a, jnp.uint8).reshape(len(x), -1) for a in blocks]
        return jnp.concatenate(parts, axis=1)

    def decode(self, message: Array, length: int) -> Array:
        """Return the numbers (n, length) of bytes (n, ...)."""
        n, start, arrays = len(message), 0, []
        for entries, dtype in self.layout:
            width = jnp.dtype(dtype).itemsize
            end = start + length // self.block * entries * width
            part = message[:, start:end].reshape(n, -1, entries, *([width] if width > 1 else []))
            arrays.append(lax.bitcast_convert_type(part, dtype))
            start = end
        return self.numbers(arrays).reshape(n, length)


def _blocks_scaled(x: Array, largest: float) -> tuple[Array, Array]:
    """Return blocks divided by their scales, with the largest magnitude at `largest`."""
    scales = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / largest
    # XLA for CPUs may leave NaN out of a maximum, and an integer cannot be NaN.
    scales = jnp.where(jnp.any(jnp.isnan(x), axis=-1, keepdims=True), jnp.nan, scales)
    return x / jnp.where(scales == 0, jnp.ones_like(scales), scales), scales


@value
class int8(Blocks):
    """Send integers from -127 to 127 and a scale for each block: a quarter of float32's bytes.

    The scale is the largest magnitude in the block, divided by 127.

    Args:
      block: the number of entries that share a scale, at least 1.

    Reference: Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, 2016, section 3, for
    gradients in 8 bits; Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes, 2019, Algorithm 2, for the feedback.
    """

    block: PositiveInt = 256

    @property
    def layout(self) -> Sequence[tuple[int, Any]]:
        """Codes, and a scale."""
        return (self.block, jnp.int8), (1, jnp.float32)

    def coded(self, x: Array) -> Sequence[Array]:
        """Return integers, and scales."""
        codes, scales = _blocks_scaled(x, 127)
        return jnp.round(codes).astype(jnp.int8), scales

    def numbers(self, message: Sequence[Array]) -> Array:
        """Return the multiples of the scales."""
        codes, scales = message
        return cast(codes, jnp.float32) * scales


@value
class float8(Blocks):
    """Send float8 numbers and a scale for each block: a quarter of float32's bytes.

    The largest magnitude in the block becomes the largest number of the dtype. Small entries of a
    block keep more digits than in `int8`, large ones fewer.

    Args:
      kind: "e4m3", with three binary digits after the first, or "e5m2", with two.
      block: the number of entries that share a scale, at least 1.

    Reference: Micikevicius et al., FP8 Formats for Deep Learning, 2022, section 3, for the dtypes;
    Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, 2019,
    Algorithm 2, for the feedback.
    """

    kind: Choice = "e4m3"
    block: PositiveInt = 256

    def __post_init__(self) -> None:
        require_one_of(self, "kind", tuple(FLOAT8))

    @property
    def layout(self) -> Sequence[tuple[int, Any]]:
        """Codes, and a scale."""
        return (self.block, jnp.dtype(FLOAT8[self.kind])), (1, jnp.float32)

    def coded(self, x: Array) -> Sequence[Array]:
        """Return float8 numbers, and scales."""
        dtype = jnp.dtype(FLOAT8[self.kind])
        codes, scales = _blocks_scaled(x, float(jnp.finfo(dtype).max))
        return cast(codes, dtype), scales

    def numbers(self, message: Sequence[Array]) -> Array:
        """Return the multiples of the scales."""
        codes, scales = message
        return cast(codes, jnp.float32) * scales


@value
class sign(Blocks):
    """Send the sign of every entry and the mean magnitude of each block: one bit an entry.

    Args:
      block: the number of entries that share a magnitude, a multiple of 8.

    Reference: Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes, 2019, Algorithm 1; Tang et al., 1-bit Adam, 2021, section 4.3, for the two exchanges,
    each with its own feedback.
    """

    block: PositiveInt = 512

    def __post_init__(self) -> None:
        if self.block % 8:
            raise ValueError(f"{name_of(self)}: block must be a multiple of 8, got {self.block}.")

    @property
    def layout(self) -> Sequence[tuple[int, Any]]:
        """Signs, eight to a byte, and a magnitude."""
        return (self.block // 8, jnp.uint8), (1, jnp.bfloat16)

    def coded(self, x: Array) -> Sequence[Array]:
        """Return signs, and magnitudes."""
        # The zeros with which arrays are filled up do not count.
        count = jnp.maximum(jnp.sum(x != 0, axis=-1, keepdims=True), 1)
        magnitude = jnp.sum(jnp.abs(x), axis=-1, keepdims=True) / count.astype(x.dtype)
        return jnp.packbits(x >= 0, axis=-1), magnitude.astype(jnp.bfloat16)

    def numbers(self, message: Sequence[Array]) -> Array:
        """Return the magnitudes with the signs."""
        bits, magnitude = message
        signs = 2 * jnp.unpackbits(bits, axis=-1).astype(jnp.float32) - 1
        return signs * cast(magnitude, jnp.float32)


@value
class top_k(Blocks):
    """Send the largest entries of each block, in bfloat16, with their places.

    A block sends round(fraction * block) of its entries, at least one: those of the largest
    magnitude. Each takes 4 bytes. Whoever adds them up chooses again which sums to send.

    Args:
      fraction: how many of the entries to send, in (0, 1].
      block: the number of entries among which the largest are chosen, at most 65536.

    Reference: Stich et al., Sparsified SGD with Memory, 2018, Algorithm 1 and Definition 2.1; Lin
    et al., Deep Gradient Compression, 2018, section 3.1, for the feedback.
    """

    fraction: PositiveShare = 0.01
    block: PositiveInt = 512

    def __post_init__(self) -> None:
        if self.block > 1 << 16:  # a place travels in 16 bits
            raise ValueError(f"{name_of(self)}: block must be at most 65536, got {self.block}.")

    @property
    def k(self) -> int:
        """The number of entries of a block that are sent."""
        return max(1, math.floor(self.fraction * self.block + 0.5))

    @property
    def layout(self) -> Sequence[tuple[int, Any]]:
        """Entries, and their places."""
        return (self.k, jnp.bfloat16), (self.k, jnp.uint16)

    def coded(self, x: Array) -> Sequence[Array]:
        """Return the largest entries, and their places."""
        # NaN counts as the largest, so that it is seen.
        size = jnp.where(jnp.isnan(x), jnp.full_like(x, jnp.inf), jnp.abs(x))
        places = lax.top_k(size, self.k)[1]
        chosen = jnp.take_along_axis(x, places, axis=-1)
        return chosen.astype(jnp.bfloat16), places.astype(jnp.uint16)

    def numbers(self, message: Sequence[Array]) -> Array:
        """Return the entries in their places, and zeros elsewhere."""
        chosen, places = message
        zeros = jnp.zeros((*chosen.shape[:-1], self.block), jnp.float32)
        spots = places.astype(jnp.int32)
        return jnp.put_along_axis(zeros, spots, cast(chosen, jnp.float32), axis=-1, inplace=False)


@value
class dct_top_k(top_k):
    """Send the largest cosine coefficients of each block, in bfloat16, with their places.

    A block is replaced by its discrete cosine transform, an orthogonal one, of which `top_k` sends
    the largest entries. What runs smoothly along a block takes few of them.

    With a decay below 1, what is not sent fades: it is then a momentum that each replica keeps for
    itself, and what travels are its fastest components, m <- decay m + g - sent. Such a momentum is
    that of DeMo; see `demo`. A NaN or an infinity makes its block NaN.

    Differs from the paper in that blocks are runs of entries, not squares of matrices, and that
    whoever adds them up chooses again which sums to send, and keeps the others for the next time.

    Args:
      fraction: how many of the coefficients to send, in (0, 1].
      block: the number of entries that are transformed together, at most 65536.
      decay: the decay of what a replica has not sent, in [0, 1].

    Reference: Peng et al., DeMo: Decoupled Momentum Optimization, 2024, Algorithm 1.
    """

    decay: UnitInterval = 1.0

    def coded(self, x: Array) -> Sequence[Array]:
        """Return the largest coefficients, and their places."""
        from jax.scipy.fft import dct

        return super().coded(dct(x, norm="ortho"))

    def numbers(self, message: Sequence[Array]) -> Array:
        """Return the blocks of these coefficients."""
        from jax.scipy.fft import idct

        return idct(super().numbers(message), norm="ortho")

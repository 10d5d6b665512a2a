"""Cutting the last axis of arrays into blocks of one scale, and the largest magnitude of each."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.types import Array

# XLA for CPUs splits a longer axis of a reduction in two, and keeps what it reduces in memory.
LONGEST = 32


class Folds(NamedTuple):
    """How the last axis of an array is cut into equal parts of blocks, each of several short axes.

    A part is a whole block, unless the last block is shorter.
    """

    lengths: tuple[int, ...]  # of the axes of a part
    parts: int  # of a block, but for the last one
    count: int  # of all parts

    @classmethod
    def into(cls, block: int, length: int) -> "Folds | None":
        """Return how an axis of that length is cut; None if its parts would be many and short."""
        part = math.gcd(block, length)
        if part < min(block, LONGEST):
            return None
        lengths: list[int] = []
        rest = part
        while rest > LONGEST:
            divisor = max(n for n in range(1, LONGEST + 1) if rest % n == 0)
            if divisor == 1:
                return None
            lengths.insert(0, divisor)
            rest //= divisor
        return cls((rest, *lengths), block // part, length // part)

    def of(self, x: Array) -> Array:
        """Return the array as (..., parts, *lengths)."""
        return x.reshape(*x.shape[:-1], self.count, *self.lengths)

    def scales(self, of_blocks: Array) -> Array:
        """Return the scale of each part, as (..., parts), from those of the blocks."""
        if self.parts == 1:
            return of_blocks
        *above, blocks = of_blocks.shape
        of_parts = jnp.broadcast_to(of_blocks[..., None], (*above, blocks, self.parts))
        return of_parts.reshape(*above, blocks * self.parts)[..., : self.count]

    def peaks(self, arrays: Sequence[Array]) -> list[Array]:
        """Return for each of several arrays that are cut its largest magnitude in each block."""
        last = len(self.lengths)
        axes = tuple(range(arrays[0].ndim - last, arrays[0].ndim))
        # The bits of magnitudes, as integers, have the order of the magnitudes. XLA computes what
        # it reduces on the way, in one loop; a maximum of floats would go to a library, which needs
        # the arrays in memory. And it knows how devices compute a maximum together.
        bits = [_bits_of_magnitudes(x) for x in arrays]
        zeros = tuple(np.zeros((), x.dtype) for x in bits)
        largest = jax.lax.reduce(tuple(bits), zeros, _larger, axes)
        pairs = zip(largest, arrays, strict=True)
        return [self._of_blocks(jax.lax.bitcast_convert_type(x, a.dtype)) for x, a in pairs]

    def _of_blocks(self, of_parts: Array) -> Array:
        """Return the largest number of the parts of each block."""
        if self.parts == 1:
            return of_parts
        blocks = -(-self.count // self.parts)
        missing = blocks * self.parts - self.count
        padded = jnp.pad(of_parts, [(0, 0)] * (of_parts.ndim - 1) + [(0, missing)])
        return jnp.max(padded.reshape(*of_parts.shape[:-1], blocks, self.parts), axis=-1)


def _bits_of_magnitudes(x: Array) -> Array:
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(jnp.abs(x), unsigned)


def _larger(some: Sequence[Array], others: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(map(jax.lax.max, some, others))

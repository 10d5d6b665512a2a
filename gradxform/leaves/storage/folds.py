"""Cutting the last axis of arrays into blocks, and the largest magnitude of each."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.types import Array

# XLA for CPUs splits a longer axis of a reduction in two, and keeps what it reduces in memory.
# Others reduce blocks as they are; on a TPU, an axis as short would leave most of a register empty.
LONGEST = 32


class Folds(NamedTuple):
    """How the last axis of an array is cut into blocks, each of several short axes."""

    lengths: tuple[int, ...]

    @classmethod
    def into(cls, block: int, length: int) -> "Folds | None":
        """Return how an axis of that length is cut into blocks; None if it is not, evenly."""
        lengths: list[int] = []
        rest, is_on_cpu = block, jax.default_backend() == "cpu"
        while is_on_cpu and rest > LONGEST:
            divisor = max(n for n in range(1, LONGEST + 1) if rest % n == 0)
            if divisor == 1:
                return None
            lengths.insert(0, divisor)
            rest //= divisor
        return None if length % block else cls((rest, *lengths))

    def of(self, x: Array) -> Array:
        """Return the array as (..., blocks, *lengths)."""
        return x.reshape(*x.shape[:-1], -1, *self.lengths)

    def peaks(self, arrays: Sequence[Array]) -> list[Array]:
        """Return for each of several arrays that are cut its largest magnitude in each block."""
        last = len(self.lengths)
        axes = tuple(range(arrays[0].ndim - last, arrays[0].ndim))
        zeros = tuple(np.zeros((), x.dtype) for x in arrays)
        # With an operation of its own, XLA computes what it reduces on the way, in one loop. A
        # maximum would go to a library, which needs the arrays in memory.
        largest = jax.lax.reduce(tuple(arrays), zeros, _larger, axes)
        return [jnp.abs(x) for x in largest]  # a block of one entry is not reduced


def _larger(some: Sequence[Array], others: Sequence[Array]) -> tuple[Array, ...]:
    pairs = zip(some, others, strict=True)
    return tuple(jax.lax.max(jax.lax.abs(a), jax.lax.abs(b)) for a, b in pairs)

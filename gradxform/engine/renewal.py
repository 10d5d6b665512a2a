"""Spread a costly renewal of the matrices of a batch over the steps of a period."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from gradxform.types import Array


def renewed(
    renew: Callable[..., Sequence[Array]],
    given: Sequence[Array],
    old: Sequence[Array],
    count: Array,
    every: int,
    start: Any = 0,
) -> tuple[Array, ...]:
    """Return arrays of a batch, of which the matrices that are due at this step are renewed.

    Matrix i is due where count = i (mod every). Of a batch of B matrices, ceil(B / every) go
    through `renew` at each step, some of them for nothing at the end of a batch that the period
    does not divide: so no step costs more than another, and the program does not branch. Which
    matrices are due follows from the count, so that a resumed run goes on exactly.

    Args:
      renew: a function of `(*given, *old)`, with b matrices in place of B, that returns new arrays
        in place of the old ones. It sees each matrix by itself.
      given: arrays `(B, ...)` that it reads.
      old: arrays `(B, ...)` that it reads and renews.
      count: the number of earlier steps, an integer scalar.
      every: the period, an integer of at least 1.
      start: the index of the first matrix, for a device that holds a part of the batch.
    """
    if every == 1:
        return tuple(renew(*given, *old))
    size = old[0].shape[0]
    phase = jnp.mod(count - start, every)
    due = phase + every * jnp.arange(-(-size // every), dtype=phase.dtype)
    # Past the end the last matrix stands in, and what becomes of it is dropped.
    parts = [jnp.take(x, due, axis=0, mode="clip") for x in (*given, *old)]
    return tuple(
        x.at[due].set(new, mode="drop", unique_indices=True, indices_are_sorted=True)
        for x, new in zip(old, renew(*parts), strict=True)
    )

"""Spread a costly renewal of the matrices of a batch over the steps of a period."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import cast
from gradxform.types import Array


class _Share(NamedTuple):
    """Which matrices of all devices this device has."""

    numbers: Any  # (devices, B); those of every device, an array of NumPy unless both are 1
    device: Any  # the number of this device


_SHARE: contextvars.ContextVar[_Share | None] = contextvars.ContextVar("share", default=None)


@contextlib.contextmanager
def as_share(numbers: Any, device: Any) -> Iterator[None]:
    """Tell the rule inside which matrices its batch holds.

    Args:
      numbers: for every device the numbers of its matrices, (devices, B), among those that make one
        batch where nothing is divided. That of one matrix on one device may be traced.
      device: the number of this device, an integer scalar.
    """
    token = _SHARE.set(_Share(numbers, device))
    try:
        yield
    finally:
        _SHARE.reset(token)


def part_of_share(start: int, size: int, count: int) -> contextlib.AbstractContextManager[None]:
    """Return a context for `size` of the `count` matrices of a batch, from `start` on."""
    if size == count:
        return contextlib.nullcontext()
    share = _share_of(count)
    return as_share(share.numbers[:, start : start + size], share.device)


def turn_of_share(
    i: Any, turns: int, size: int, count: int
) -> contextlib.AbstractContextManager[None]:
    """Return a context for the turn `i`, which may be traced, of a loop over `count` matrices.

    Each of the turns has a batch of `size`.
    """
    share = _share_of(count)
    numbers = share.numbers[:, : turns * size].reshape(-1, size)
    return as_share(numbers, share.device * turns + i)


def _share_of(count: int) -> _Share:
    return _SHARE.get() or _Share(np.arange(count)[None], 0)


def matrix_numbers(count: int) -> Array:
    """Return the number of each of the `count` matrices of a batch, the same on any mesh.

    Where a rule has cut its matrices into blocks, `count` is that of the blocks.
    """
    share = _SHARE.get()
    if share is None:
        return jnp.arange(count, dtype=jnp.int32)
    return jnp.asarray(_numbers_of_blocks(share, count), jnp.int32)[share.device]


def _numbers_of_blocks(share: _Share, count: int) -> Any:
    """Return the numbers of every device's matrices, or of `count` blocks of them."""
    blocks = count // max(1, share.numbers.shape[1])
    if blocks == 1:
        return share.numbers
    numbers = blocks * share.numbers[:, :, None] + np.arange(blocks)
    return numbers.reshape(len(numbers), -1)


def renewed(
    renew: Callable[..., Sequence[Array]],
    given: Sequence[Array],
    old: Sequence[Array],
    count: Array,
    every: int,
) -> tuple[Array, ...]:
    """Return the arrays of a batch, with the matrices renewed that are due at this step.

    Matrix i is due where count = i (mod every). Of a batch of B, B // every go through `renew` at
    each step, and one more under a condition, at B mod every steps of a period: no step costs much
    more than another, and none renews a matrix for nothing. Which matrices are due follows from the
    count, so that a resumed run goes on exactly, and from the number of the matrix, so that a mesh
    changes nothing.

    Args:
      renew: a function of `(*given, *old)`, with b matrices in place of B, that returns new arrays
        in place of the old ones. It sees each matrix by itself.
      given: arrays `(B, ...)` that it reads.
      old: arrays `(B, ...)` that it reads and renews.
      count: the number of earlier steps, an integer scalar.
      every: the period, an integer of at least 1.
    """
    if every == 1:
        return tuple(renew(*given, *old))
    if old[0].shape[0] == 1:  # no places to look up
        is_due = jnp.mod(count - matrix_numbers(1)[0], every) == 0
        return tuple(
            lax.cond(is_due, lambda: _renewed_as_kept(old, renew(*given, *old)), lambda: [*old])
        )
    due = _due(old[0].shape[0], count, every)

    def those(places: Array) -> list[Array]:
        # Past the end the last matrix stands in, and what becomes of it is dropped.
        return [jnp.take(x, places, axis=0, mode="clip") for x in (*given, *old)]

    def with_new(places: Array, new: Sequence[Array]) -> list[Array]:
        return [
            x.at[places].set(y, mode="drop", indices_are_sorted=True)
            for x, y in zip(old, new, strict=True)
        ]

    if due.always:
        places = due.places[: due.always]
        old = with_new(places, renew(*those(places)))
    if due.always < len(due.places):
        places = due.places[due.always :]
        parts = those(places)
        # Only these few come out of the branches: the others need not be copied.
        kept = parts[len(given) :]
        old = with_new(
            places, lax.cond(due.more, lambda: _renewed_as_kept(kept, renew(*parts)), lambda: kept)
        )
    return tuple(old)


def _renewed_as_kept(kept: Sequence[Array], new: Sequence[Array]) -> list[Array]:
    return [cast(x, old.dtype) for x, old in zip(new, kept, strict=True)]


class _Due(NamedTuple):
    """The matrices that are due at a step."""

    places: Array  # as many as are due at any step; some are past the end
    always: int  # how many of them are due at every step
    more: Array  # whether more are due at this one


def _due(size: int, count: Array, every: int) -> _Due:
    """Return the matrices that are due, by their places in the batch, in order."""
    share, phase = _SHARE.get(), jnp.mod(count, every)
    if share is None:
        places = phase + every * jnp.arange(-(-size // every), dtype=phase.dtype)
        return _Due(places, size // every, phase < size % every)
    # One program serves all devices and steps: room for the most that are due anywhere.
    phases = np.mod(_numbers_of_blocks(share, size), every)
    most = [int(np.sum(phases == k, axis=1).max()) for k in range(every)]
    is_due = jnp.mod(matrix_numbers(size), every) == phase
    places = jnp.nonzero(is_due, size=max(most), fill_value=size)[0]
    return _Due(places, min(most), jnp.asarray(most, jnp.int32)[phase] > min(most))

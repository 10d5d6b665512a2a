"""Putting shards together again, in the updates that are steps only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._compat import varying_like
from gradxform.base import GradientTransformation, unwrapped
from gradxform.distributed.axis import widen
from gradxform.distributed.division import Division
from gradxform.numerics import cast
from gradxform.types import Array, OptState


class Leaf(NamedTuple):
    """One parameter after a step, on this device."""

    division: Division
    p: Array  # this device's shard of the parameter
    new: Array  # the shard after the step, at least float32
    u: Array  # the inner update of the shard, at least float32


def change(leaf: Leaf) -> Array:
    """Return by how much a shard moves to its new value, rounded to the parameter's dtype."""
    return widen(cast(leaf.new, leaf.p.dtype)) - widen(leaf.p)


def taken(tx: Any, state: OptState) -> Array | None:
    """Return whether the last update of a transform may be other than zeros; None if any may be.

    Args:
      tx: the transform.
      state: its state after the update.
    """
    tx = unwrapped(tx)
    field = tx.zeros_unless if isinstance(tx, GradientTransformation) else None
    return None if field is None else getattr(state, field) == 0


def gathered(
    divisions: Sequence[Division],
    shards: Sequence[Array],
    known: bool,
    takes_step: Array | None = None,
    others: Sequence[Any] | None = None,
) -> list[Array]:
    """Return whole arrays from this device's shards.

    Args:
      divisions: how each is divided.
      shards: the shards.
      known: whether JAX tracks what varies.
      takes_step: whether to gather, the same on all devices; None for always.
      others: what to return where they are not gathered; zeros for None.
    """

    def gather(shards: list[Array]) -> list[Array]:
        return [d.gather(x, known) for d, x in zip(divisions, shards, strict=True)]

    if takes_step is None:
        return gather([*shards])
    # Traced here once: its shapes and marks are those of what is returned instead.
    shapes = jax.eval_shape(gather, [*shards])
    given = [None] * len(shapes) if others is None else others
    instead = [
        jnp.zeros(x.shape, x.dtype) if other is None else other
        for x, other in zip(shapes, given, strict=True)
    ]
    instead = varying_like(instead, shapes)
    return lax.cond(
        takes_step,
        lambda shards: varying_like(gather(shards), instead),
        lambda shards: instead,
        [*shards],
    )

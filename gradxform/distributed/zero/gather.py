"""Putting shards together again, in the updates that are steps only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import varying_like
from gradxform.base import GradientTransformation, unwrapped
from gradxform.distributed.shares.division import Division
from gradxform.distributed.wire import Codec, still_to_send
from gradxform.distributed.wire.axis import widen
from gradxform.distributed.zero.wire import Parcel, to_all
from gradxform.errors import name_of
from gradxform.leaves import path_at
from gradxform.numerics import cast, promote
from gradxform.types import Array, OptState, Params


class StepLeaf(NamedTuple):
    """One parameter after a step, on this device."""

    index: int  # among the parameters
    division: Division
    p: Array  # this device's shard of the parameter
    new: Array  # the shard after the step, at least float32
    u: Any  # the inner update of the shard; None where only the parameter is asked for
    has_copy: bool  # whether the inner transform moves a wider copy
    codec: Codec | None  # the form in which the step travels; None for plain numbers


def change_of_shard(leaf: StepLeaf) -> Array:
    """Return by how much a shard moves, in float32 or wider.

    A parameter with a copy moves to the copy: rounded, unless the step travels in some form.
    """
    if not leaf.has_copy:
        return widen(leaf.u)
    new = leaf.new if leaf.codec is not None else cast(leaf.new, leaf.p.dtype)
    return widen(new) - widen(leaf.p)


def last_step_taken(tx: Any, state: OptState) -> Array | None:
    """Return whether the last update of a transform may be other than zeros; None if any may be.

    Args:
      tx: the transform.
      state: its state after the update.
    """
    tx = unwrapped(tx)
    field = tx.zeros_unless if isinstance(tx, GradientTransformation) else None
    return None if field is None else getattr(state, field) == 0


def dtype_to_gather(part: Any, dtype: Any) -> Any:
    """Return the dtype in which `zero1` gathers an array of `dtype`."""
    if part.gather_dtype is None or jnp.issubdtype(dtype, jnp.complexfloating):
        return dtype
    narrow = jnp.dtype(part.gather_dtype)
    return narrow if promote(dtype, narrow) == dtype else dtype


def copy_of(part: Any, params: Params, index: int, shard: Array, master: Any) -> Array:
    """Return the wider copy of a shard, or the shard where something else has moved it.

    A sum of a parameter and an update is within a unit in the last place of the copy. Where steps
    travel in another form, parameters stay behind their copies by more, and nothing is known.
    """
    if jnp.shape(master) != shard.shape:
        raise ValueError(
            f"{name_of(part)}: the state's master of {path_at(params, index)} has shape "
            f"{jnp.shape(master)}, this device's shard needs {shard.shape}. Was this state "
            "made for other parameters, other devices or another master_dtype?"
        )
    if part.compress is not None or dtype_to_gather(part, shard.dtype) != shard.dtype:
        return master
    kind, wide = jnp.finfo(shard.dtype), cast(shard, master.dtype)
    size = jnp.maximum(jnp.maximum(jnp.abs(wide), jnp.abs(master)), float(kind.tiny))
    is_there = jnp.abs(wide - master) <= 2 * float(kind.eps) * size
    return jnp.where(is_there | jnp.isnan(wide - master), master, wide)


class Shard(NamedTuple):
    """A device's contribution to an array that all devices get."""

    division: Division
    x: Array
    codec: Codec | None = None  # the form in which it travels; None for plain numbers
    rest: Array | None = None  # what was still to be sent before; None if nothing remembers it
    other: Any = None  # what all get while no step is taken; zeros for None


def of_step(leaf: StepLeaf, memory: Sequence[Any], dtype: Any) -> Shard:
    """Return this device's part of a step, in a dtype unless it has another form.

    Args:
      leaf: the parameter after the step.
      memory: for every parameter what is still to be sent.
      dtype: the dtype.
    """
    if leaf.codec is None:
        return Shard(leaf.division, cast(change_of_shard(leaf), dtype))
    return Shard(leaf.division, change_of_shard(leaf), leaf.codec, memory[leaf.index].mean)


def gathered_shards(
    shards: Sequence[Shard], is_tracked: bool, takes_step: Array | None = None
) -> tuple[list[Array], list[Array | None]]:
    """Return whole arrays from this device's shards, and what is still to be sent of each.

    Args:
      shards: the shards.
      is_tracked: whether JAX tracks what varies.
      takes_step: whether to gather, the same on all devices; None for always.
    """

    def gather(xs: list[Array], rests: list[Any]) -> tuple[list[Array], list[Any]]:
        wholes, rests = [*xs], [*rests]
        coded: dict[int, Parcel] = {}
        for i, (shard, x) in enumerate(zip(shards, xs, strict=True)):
            if shard.codec is None:
                wholes[i] = shard.division.gather(x, is_tracked)
            else:
                x = widen(x) if rests[i] is None else widen(x) + rests[i]
                coded[i] = Parcel(x[None], shard.codec, shard.division)
        for i, (pieces, rest) in zip(coded, to_all([*coded.values()]), strict=True):
            wholes[i] = shards[i].division.assembled(pieces)
            rests[i] = None if rests[i] is None else still_to_send(rest, rests[i])
        return wholes, rests

    arguments = [shard.x for shard in shards], [shard.rest for shard in shards]
    if takes_step is None:
        return gather(*arguments)
    # Traced here once: its shapes and marks are those of what is returned instead.
    shapes = jax.eval_shape(gather, *arguments)
    others = [
        jnp.zeros(x.shape, x.dtype) if shard.other is None else shard.other
        for x, shard in zip(shapes[0], shards, strict=True)
    ]
    instead = varying_like((others, arguments[1]), shapes)
    return lax.cond(
        takes_step,
        lambda xs, rests: varying_like(gather(xs, rests), instead),
        lambda xs, rests: instead,
        *arguments,
    )

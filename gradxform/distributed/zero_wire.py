"""What `zero1` sends: gradients to the devices that own their shards, and coded steps to all."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.distributed.axis import as_varying, axis_names, size_of, widen
from gradxform.distributed.compression import Blocks
from gradxform.distributed.division import Division
from gradxform.distributed.feedback import check_sending, check_wire, codec_of
from gradxform.distributed.powersgd import LowRank, powersgd
from gradxform.distributed.wire import (
    SMALL,
    Codec,
    joined,
    parted,
    put_together,
    scattered,
    still_to_send,
)
from gradxform.errors import name_of, shown
from gradxform.leaves import align, is_hole, path_at, with_paths
from gradxform.types import Array, Params, PerDevice, Slot

__all__ = [
    "ZeroFeedbackState",
    "ZeroLowRankState",
]


class ZeroFeedbackState(NamedTuple):
    """What a compression of blocks has rounded away in `zero1` and is still to be sent."""

    own: PerDevice  # float32; of this device's gradients, whole
    mean: Slot  # float32; of the steps of this device's shards; of length 0 where masters tell


class ZeroLowRankState(NamedTuple):
    """What `powersgd` remembers in `zero1`."""

    own: PerDevice  # float32; what the factors of this device's gradients leave out
    right: Slot  # (..., n, rank) float32; the right factors, the same on all devices


def check_forms(part: Any) -> None:
    """Require the fields of `zero1` that say in which form numbers travel or are kept."""
    for name in ("gather_dtype", "reduce_dtype", "master_dtype"):
        dtype = getattr(part, name)
        if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"{name_of(part)}: {name} must be a floating dtype, got {dtype}.")
    if part.reduce_dtype is not None:
        _replace_reduce_dtype(part)
    check_sending(part)
    if part.compress is not None and part.gather_dtype is not None:
        raise ValueError(
            f"{name_of(part)}: give gather_dtype or compress, not both: a compression has a form "
            f"of its own. Got {part.gather_dtype} and {shown(part.compress)}."
        )


def _replace_reduce_dtype(part: Any) -> None:
    """Take `reduce_dtype` for `wire_dtype`, with a warning."""
    dtype = jnp.dtype(part.reduce_dtype)
    is_narrow = dtype.itemsize < 4  # all others are what sums are formed in without it
    instead = f"use wire_dtype={dtype.name!r}" if is_narrow else "leave it out"
    message = f"{name_of(part)}: reduce_dtype is deprecated; {instead}"
    if part.wire_dtype is not None:
        raise ValueError(f"{message}. Got wire_dtype={part.wire_dtype!r} too.")
    warnings.warn(f"{message}.", DeprecationWarning, stacklevel=5)
    object.__setattr__(part, "wire_dtype", dtype.name if is_narrow else None)
    object.__setattr__(part, "reduce_dtype", None)


class Memory(NamedTuple):
    """What is still to be sent of one parameter in blocks."""

    own: Array
    mean: Array | None  # None where a master tells


def first_memory(
    part: Any, params: Params, shards: Sequence[Any]
) -> ZeroFeedbackState | ZeroLowRankState | None:
    """Return what `zero1` remembers before anything is sent; None without a compression.

    Args:
      part: the transform.
      params: the parameters.
      shards: for each this device's shard; None where its master tells what is still to be sent.
    """
    check_wire(part, params)
    if part.compress is None:
        return None
    nothing = jnp.zeros((0,), jnp.float32)
    owns, others = [], []
    for (path, p), shard in zip(_whole_arrays(params), shards, strict=True):
        own, other = jnp.zeros((1, 0), jnp.float32), nothing
        # Shapes do not depend on the lengths of axes. What no axis divides has nothing to remember.
        if not jnp.issubdtype(p.dtype, jnp.floating) or not p.size:
            pass
        elif isinstance(part.compress, powersgd):
            first = part.compress.first(path, p.shape)
            own, other = (own, other) if first is None else (first.own[None], first.right)
        else:
            own = jnp.zeros((1, *p.shape), jnp.float32)
            other = nothing if shard is None else jnp.zeros(shard.shape, jnp.float32)
        owns.append(own)
        others.append(other)
    treedef = jax.tree.structure(params)
    owns = as_varying(treedef.unflatten(owns), axis_names(part.axes))
    kind = ZeroLowRankState if isinstance(part.compress, powersgd) else ZeroFeedbackState
    return kind(owns, treedef.unflatten(others))


def _whole_arrays(params: Params) -> list[tuple[Any, Any]]:
    return [(path, jnp.asarray(p)) for path, p in with_paths(params) if not is_hole(p)]


def memory_of(part: Any, params: Params, feedback: Any) -> list[Any]:
    """Return for every parameter a `Memory`, a `LowRank`, or None where it travels as it is.

    Raises:
      ValueError: if it was made for other parameters.
    """
    leaves, treedef = jax.tree.flatten(params)
    if part.compress is None:
        return [None] * len(leaves)
    columns = [
        align(part, params, treedef, column, "the state's feedback has").leaves
        for column in feedback
    ]
    out: list[Any] = []
    for i, (p, own, other) in enumerate(zip(leaves, *columns, strict=True)):
        if not own.size:
            out.append(None)
            continue
        if jnp.shape(own) != (1, *jnp.shape(p)):
            raise ValueError(
                f"{name_of(part)}: the state's feedback of {path_at(params, i)} has shape "
                f"{jnp.shape(own)}, this device needs {(1, *jnp.shape(p))}. Was it made for other "
                "parameters or another compression?"
            )
        if isinstance(part.compress, powersgd):
            out.append(LowRank(own[0], other))
        else:
            out.append(Memory(own[0], other if other.size else None))
    return out


def as_feedback(params: Params, feedback: Any, memory: Sequence[Any]) -> Any:
    """Return the state's feedback with what is still to be sent after a step."""
    if feedback is None:
        return None
    treedef = jax.tree.structure(params)
    owns, others = (treedef.flatten_up_to(column) for column in feedback)
    for i, one in enumerate(memory):
        if one is not None:
            owns[i] = one.own[None]
            others[i] = others[i] if one[1] is None else one[1]
    return type(feedback)(treedef.unflatten(owns), treedef.unflatten(others))


# ------------------------------------------------------------------------------------- gradients


def mean_shards(
    part: Any, gs: Sequence[Array], divisions: Sequence[Division], memory: Sequence[Any]
) -> tuple[list[Array], list[Any]]:
    """Return this device's shards of the mean gradients, in float32, and what is still to be sent.

    Args:
      part: the transform.
      gs: this device's own gradients.
      divisions: how each is divided.
      memory: what is still to be sent of each.
    """
    n = size_of(part.axes)
    means, left = [jnp.zeros(())] * len(gs), list(memory)
    coded: dict[int, Parcel] = {}
    for i, (g, division, before) in enumerate(zip(gs, divisions, memory, strict=True)):
        if isinstance(before, LowRank):
            mean, left[i] = part.compress.sum(g, before, part.axes, (), True, n)
            means[i] = division.cut(mean)
            continue
        codec = gradient_codec(part, g, division)
        if codec is None:
            total = division.reduce(widen(g))
            means[i] = total / jnp.asarray(n, total.dtype)
        else:
            wide = widen(g) if before is None else widen(g) + before.own
            coded[i] = Parcel(division.pieces(wide), codec, division)
    for i, (total, rest) in zip(coded, to_owners([*coded.values()]), strict=True):
        division, before = divisions[i], memory[i]
        total = lax.psum(total, division.whole) if division.whole else total
        means[i] = total / jnp.asarray(n, total.dtype)
        if before is not None:
            left[i] = before._replace(own=still_to_send(division.assembled(rest), before.own))
    return means, left


def gradient_codec(part: Any, g: Array, division: Division) -> Codec | None:
    """Return the form in which a gradient travels; None for float32 or wider, and powersgd."""
    if not division.cuts or isinstance(part.compress, powersgd):
        return None
    return codec_of(part, g.shape, g.dtype, g.dtype, division.axes)


def step_codec(part: Any, p: Array, division: Division) -> Codec | None:
    """Return the form in which the step of a parameter travels; None for plain numbers."""
    if not division.cuts or not isinstance(part.compress, Blocks):
        return None
    return codec_of(part, p.shape, p.dtype, p.dtype, division.axes)


# --------------------------------------------------------------------------------------- parcels


class Parcel(NamedTuple):
    """An array that travels in some form."""

    x: Array  # float32; (n, *shard) to the owners of shards, or (1, *shard) of this one to all
    codec: Codec
    division: Division


def to_owners(parcels: Sequence[Parcel]) -> list[tuple[Array, Array]]:
    """Return for each the sum of what this device is sent, and what its messages leave out.

    The sums have the shape of a shard, and what is left out has that of `x`.
    """
    return _sent(parcels, scattered)


def to_all(parcels: Sequence[Parcel]) -> list[tuple[Array, Array]]:
    """Return for each the shards of all devices, (n, *shard), and what is left out of this one."""
    return _sent(parcels, lambda x, codec, axes: put_together(x[0], codec, axes))


def _sent(
    parcels: Sequence[Parcel], send: Callable[[Array, Codec, Any], tuple[Array, Array]]
) -> list[tuple[Array, Array]]:
    """Return the two results of `send` for each parcel; small ones travel together."""
    results: list[Any] = [None] * len(parcels)
    groups: dict[Any, list[int]] = {}
    for i, (x, codec, division) in enumerate(parcels):
        alone = x.size >= SMALL
        groups.setdefault(i if alone else (codec, division.axes, len(x)), []).append(i)
    for group in groups.values():
        mine = [parcels[i] for i in group]
        _, codec, division = mine[0]
        keeps_shape = len(mine) == 1 and codec.unit == 1
        xs = [one.x if keeps_shape else _flat(one) for one in mine]
        lengths = [x.shape[-1] for x in xs]
        arrays = send(joined(xs), codec, division.axes)
        for i, *pair in zip(group, *(parted(x, lengths) for x in arrays), strict=True):
            shape = parcels[i].x.shape[1:]
            results[i] = tuple(pair if keeps_shape else (_unflat(x, shape) for x in pair))
    return results


def _flat(parcel: Parcel) -> Array:
    """Return the pieces as rows, filled up to a multiple of the numbers that are coded together."""
    rows = jnp.reshape(parcel.x, (len(parcel.x), -1))
    missing = -rows.shape[1] % parcel.codec.unit
    return jnp.pad(rows, ((0, 0), (0, missing))) if missing else rows


def _unflat(x: Array, shape: tuple[int, ...]) -> Array:
    """Return arrays of that shape from filled-up rows, or from a single row."""
    return jnp.reshape(x[..., : math.prod(shape)], (*x.shape[:-1], *shape))

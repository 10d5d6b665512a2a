"""The messages of `zero1`: gradients to the owners of their shards, and coded steps to all."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.distributed.shares.division import Division
from gradxform.distributed.wire import (
    SMALL,
    Codec,
    joined,
    owed,
    parted,
    put_together,
    scattered,
    still_to_send,
)
from gradxform.distributed.wire.axis import as_varying, axis_names, size_of, widen
from gradxform.distributed.wire.compression import Blocks
from gradxform.distributed.wire.feedback import (
    check_sending,
    check_wire,
    codec_of,
    is_nothing,
    nothing_remembered,
)
from gradxform.distributed.wire.order import ordered_after
from gradxform.distributed.wire.powersgd import LowRank, powersgd
from gradxform.errors import name_of, shown
from gradxform.leaves import align, is_hole, path_at, with_paths
from gradxform.numerics import cast
from gradxform.types import Array, Params, PerDevice, Slot
from gradxform.values.export_names import announce_named_tuples


class ZeroFeedbackState(NamedTuple):
    """The rounding errors of a compression of blocks in `zero1`, still to be sent."""

    own: PerDevice  # by axis, float32; of what this device sends along it of the gradients
    mean: Slot  # float32; of the steps of this device's shards; an integer where masters tell


class ZeroLowRankState(NamedTuple):
    """The memory of `powersgd` in `zero1`."""

    own: PerDevice  # float32; what the factors of this device's gradients leave out
    right: Slot  # (..., n, rank) float32; the right factors, the same on all devices


def check_forms(part: Any) -> None:
    """Require the fields of `zero1` that say in which form numbers travel or are kept."""
    for name in ("gather_dtype", "reduce_dtype", "master_dtype"):
        dtype = getattr(part, name)
        if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"{name_of(part)}: {name} must be a floating dtype, got {dtype}.")
    check_sending(part)
    if part.reduce_dtype is not None and part.wire_dtype is not None:
        raise ValueError(
            f"{name_of(part)}: give reduce_dtype or wire_dtype, not both: gradients are summed in "
            f"the first, or travel in the second. Got {part.reduce_dtype} and {part.wire_dtype}."
        )
    for name in ("gather_dtype", "reduce_dtype"):
        dtype = getattr(part, name)
        if part.compress is not None and dtype is not None:
            raise ValueError(
                f"{name_of(part)}: give {name} or compress, not both: a compression has a form of "
                f"its own. Got {dtype} and {shown(part.compress)}."
            )


class Memory(NamedTuple):
    """The rounding errors of one parameter in blocks, still to be sent."""

    own: dict[str, Array]  # by axis
    mean: Array | None  # None where a master tells


def first_memory(
    part: Any, params: Params, divisions: Sequence[Division], shards: Sequence[Any]
) -> ZeroFeedbackState | ZeroLowRankState | None:
    """Return what `zero1` remembers before anything is sent; None without a compression.

    Args:
      part: the transform.
      params: the parameters.
      divisions: how each is divided.
      shards: for each this device's shard; None where its master tells what is still to be sent.
    """
    check_wire(part, params)
    if part.compress is None:
        return None
    treedef, names = jax.tree.structure(params), axis_names(part.axes)
    arrays = [(path, jnp.asarray(p)) for path, p in with_paths(params) if not is_hole(p)]
    if isinstance(part.compress, powersgd):
        firsts = [
            part.compress.first(path, p.shape) if _is_sent_by_zero1(p) else None
            for path, p in arrays
        ]
        owns = [nothing_remembered(2) if x is None else x.own[None] for x in firsts]
        rights = [nothing_remembered() if x is None else x.right for x in firsts]
        residuals = as_varying(treedef.unflatten(owns), names)
        return ZeroLowRankState(residuals, treedef.unflatten(rights))
    # Shapes have as many dimensions for axes of any length: what an axis does not divide, too.
    columns: dict[str, list[Array]] = {name: [] for name in names}
    means = []
    for (_, p), division, shard in zip(arrays, divisions, shards, strict=True):
        stages = _stages_of_zero1_wire(division, p.shape)
        for name in names:
            shape = stages.get(name, p.shape)
            columns[name].append(
                _zeros_for_zero1_feedback(1, *shape)
                if _is_sent_by_zero1(p)
                else nothing_remembered(2)
            )
        means.append(
            _zeros_for_zero1_feedback(*shard.shape)
            if shard is not None and _is_sent_by_zero1(p)
            else nothing_remembered()
        )
    residuals = {name: treedef.unflatten(column) for name, column in columns.items()}
    return ZeroFeedbackState(as_varying(residuals, names), treedef.unflatten(means))


def _zeros_for_zero1_feedback(*shape: int) -> Array:
    return jnp.zeros(shape, jnp.float32)


def _is_sent_by_zero1(p: Array) -> bool:
    """Whether a compression takes the gradients of a parameter."""
    return jnp.issubdtype(p.dtype, jnp.floating) and p.size > 0


def _stages_of_zero1_wire(division: Division, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of what a device cuts along each axis that cuts an array."""
    rest, out = list(shape), {}
    for axis, dim in division.cuts:
        out[axis] = tuple(rest)
        rest[dim] //= lax.axis_size(axis)
    return out


def memory_of(part: Any, params: Params, divisions: Sequence[Division], feedback: Any) -> list[Any]:
    """Return for every parameter a `Memory`, a `LowRank`, or None where it travels as it is.

    Raises:
      ValueError: if it was made for other parameters.
    """
    leaves, treedef = jax.tree.flatten(params)
    if part.compress is None:
        return [None] * len(leaves)

    def column(tree: Any) -> Any:
        return align(part, params, treedef, tree, "the state's feedback has").leaves

    low_rank = isinstance(part.compress, powersgd)
    names = () if low_rank else axis_names(part.axes)
    owns = [column(feedback.own)] if low_rank else [column(feedback.own[name]) for name in names]
    others = column(feedback[1])
    out: list[Any] = []
    for i, (p, division, other) in enumerate(zip(leaves, divisions, others, strict=True)):
        residuals = [x[i] for x in owns]
        if is_nothing(residuals[0]):
            out.append(None)
            continue
        stages = _stages_of_zero1_wire(division, jnp.shape(p))
        wanted = [stages.get(name, jnp.shape(p)) for name in names or ("",)]
        for x, shape in zip(residuals, wanted, strict=True):
            if jnp.shape(x) != (1, *shape):
                raise ValueError(
                    f"{name_of(part)}: the state's feedback of {path_at(params, i)} has shape "
                    f"{jnp.shape(x)}, this device needs {(1, *shape)}. Was it made for other "
                    "parameters, other devices or another compression?"
                )
        if low_rank:
            out.append(LowRank(residuals[0][0], other))
        else:
            by_axis = {name: x[0] for name, x in zip(names, residuals, strict=True)}
            out.append(Memory(by_axis, None if is_nothing(other) else other))
    return out


def as_feedback(params: Params, feedback: Any, memory: Sequence[Any]) -> Any:
    """Return the state's feedback with what is still to be sent after a step."""
    if feedback is None:
        return None
    treedef = jax.tree.structure(params)

    def column(tree: Any, new: Callable[[Any], Array | None]) -> Any:
        pairs = zip(treedef.flatten_up_to(tree), memory, strict=True)
        leaves = [(old, None if one is None else new(one)) for old, one in pairs]
        return treedef.unflatten([old if x is None else x for old, x in leaves])

    other = column(feedback[1], lambda one: one[1])
    if isinstance(feedback, ZeroLowRankState):
        return ZeroLowRankState(column(feedback.own, lambda one: one.own[None]), other)
    residuals = {
        name: column(tree, lambda one, name=name: one.own[name][None])
        for name, tree in feedback.own.items()
    }
    return ZeroFeedbackState(residuals, other)


# ------------------------------------------------------------------------------------- gradients


def mean_shards(
    part: Any, gs: Sequence[Array], divisions: Sequence[Division], memory: Sequence[Any]
) -> tuple[list[Array], list[Any]]:
    """Return this device's shards of the mean gradients, in float32, and what is still to be sent.

    One axis after the other, each device sends a piece of what it has to every other one along it,
    and adds up in float32 what it gets. So an axis sends only what those before it leave over.

    Args:
      part: the transform.
      gs: this device's own gradients.
      divisions: how each is divided.
      memory: what is still to be sent of each.
    """
    n, left = size_of(part.axes), list(memory)
    codecs = [
        None
        if isinstance(before, LowRank)
        else _zero1_gradient_codec(part, g.shape, g.dtype, division)
        for g, division, before in zip(gs, divisions, memory, strict=True)
    ]
    coded = [i for i, codec in enumerate(codecs) if codec is not None]
    sums: list[Array] = []
    earlier: list[Array] = []  # what was summed last, where all-to-alls wait for it
    for i, (g, division, before) in enumerate(zip(gs, divisions, memory, strict=True)):
        if isinstance(before, LowRank):
            total, left[i] = part.compress.sum(g, before, part.axes, (), True, 1)
            sums.append(division.cut(total))
        elif codecs[i] is None:
            sums.append(division.reduce(ordered_after(_as_summed_by_zero1(part, g), *earlier)))
            earlier = sums[-1:] if coded else []
        else:
            sums.append(widen(g))
    for name in axis_names(part.axes):
        parcels: dict[int, Parcel] = {}
        for i in coded:
            cuts = tuple(cut for cut in divisions[i].cuts if cut[0] == name)
            if cuts:
                stage = Division(cuts, ())
                codec = _zero1_gradient_codec(part, sums[i].shape, gs[i].dtype, stage)
                x = sums[i] if left[i] is None else sums[i] + owed(left[i].own[name], codec)
                parcels[i] = Parcel(stage.pieces(x), codec, stage)
        for i, (total, rest) in zip(parcels, to_owners([*parcels.values()], earlier), strict=True):
            sums[i] = total
            if left[i] is not None:
                residual = still_to_send(parcels[i].division.assembled(rest), left[i].own[name])
                left[i] = left[i]._replace(own={**left[i].own, name: residual})
    for i in coded:
        sums[i] = ordered_after(sums[i], *earlier)
        if divisions[i].whole:
            sums[i] = lax.psum(sums[i], divisions[i].whole)
    return [x / jnp.asarray(n, x.dtype) for x in map(widen, sums)], left


def _as_summed_by_zero1(part: Any, g: Array) -> Array:
    """Return a gradient that travels as plain numbers in the dtype in which it is summed."""
    if part.reduce_dtype is None or jnp.iscomplexobj(g):
        return widen(g)
    return cast(g, jnp.dtype(part.reduce_dtype))


def _zero1_gradient_codec(part: Any, shape: tuple[int, ...], dtype: Any, division: Division) -> Any:
    """Return the form in which gradients travel along the axes that cut; None for plain numbers."""
    if not division.cuts or part.reduce_dtype is not None:
        return None
    return codec_of(part, shape, dtype, dtype, division.axes)


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


def to_owners(parcels: Sequence[Parcel], earlier: list[Array]) -> list[tuple[Array, Array]]:
    """Return for each the sum of what this device is sent, and what its messages leave out.

    The sums have the shape of a shard, and what is left out has that of `x`.

    Args:
      parcels: the arrays.
      earlier: what must be known before anything is sent (see `ordered_after`); then holds the last
        sum.
    """

    def send(x: Array, codec: Codec, axes: Any) -> tuple[Array, Array]:
        total, rest = scattered(ordered_after(x, *earlier), codec, axes)
        earlier[:] = [total]
        return total, rest

    return _sent_zero1_parcels(parcels, send)


def to_all(parcels: Sequence[Parcel]) -> list[tuple[Array, Array]]:
    """Return for each the shards of all devices, (n, *shard), and what is left out of this one."""
    return _sent_zero1_parcels(parcels, lambda x, codec, axes: put_together(x[0], codec, axes))


def _sent_zero1_parcels(
    parcels: Sequence[Parcel], send: Callable[[Array, Codec, Any], tuple[Array, Array]]
) -> list[tuple[Array, Array]]:
    """Return the two results of `send` for each parcel; small ones travel together."""
    results: list[Any] = [None] * len(parcels)
    groups: dict[Any, list[int]] = {}
    for i, (x, codec, division) in enumerate(parcels):
        alone = x.size >= SMALL
        groups.setdefault(i if alone else (codec, division.axes, len(x)), []).append(i)
    for group in groups.values():
        batch = [parcels[i] for i in group]
        _, codec, division = batch[0]
        keeps_shape = len(batch) == 1 and codec.unit == 1
        xs = [one.x if keeps_shape else _flat_zero1_parcel(one) for one in batch]
        lengths = [x.shape[-1] for x in xs]
        arrays = send(joined(xs), codec, division.axes)
        for i, *pair in zip(group, *(parted(x, lengths) for x in arrays), strict=True):
            shape = parcels[i].x.shape[1:]
            results[i] = tuple(
                pair if keeps_shape else (_unflat_zero1_parcel(x, shape) for x in pair)
            )
    return results


def _flat_zero1_parcel(parcel: Parcel) -> Array:
    """Return the pieces as rows, filled up to a multiple of the numbers that are coded together."""
    rows = jnp.reshape(parcel.x, (len(parcel.x), -1))
    missing = -rows.shape[1] % parcel.codec.unit
    return jnp.pad(rows, ((0, 0), (0, missing))) if missing else rows


def _unflat_zero1_parcel(x: Array, shape: tuple[int, ...]) -> Array:
    """Return arrays of that shape from filled-up rows, or from a single row."""
    return jnp.reshape(x[..., : math.prod(shape)], (*x.shape[:-1], *shape))


announce_named_tuples(__name__)

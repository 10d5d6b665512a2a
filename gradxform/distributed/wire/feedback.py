"""The form in which wrappers send arrays: a dtype or a compression, and what error feedback."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._jax.versions import marked_as_varying, varying_axes
from gradxform.distributed.wire.axis import Axes, as_varying, axis_names, check_bound, size_of
from gradxform.distributed.wire.compression import Blocks, Compression
from gradxform.distributed.wire.powersgd import LowRank, powersgd
from gradxform.distributed.wire.wire import Cast, Codec, Error, Sent, new_error, sums
from gradxform.errors import must_be, name_of, shown
from gradxform.leaves import Path, align_slot, dtype_of, is_hole, path_at, structure_of, with_paths
from gradxform.numerics import at_least_float32
from gradxform.types import Array, PyTree, Slot
from gradxform.values.export_names import announce_named_tuples

_BFLOAT16 = Cast(jnp.dtype(jnp.bfloat16))


def check_sending(part: Any) -> None:
    """Require the fields `wire_dtype` and `compress` of a wrapper to be valid."""
    dtype, compress = part.wire_dtype, part.compress
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{name_of(part)}: wire_dtype must be a floating dtype, got {dtype}.")
    if compress is None:
        return
    if not isinstance(compress, Compression):
        raise TypeError(
            must_be(part, "compress", "a compression such as int8() or top_k(0.01)", compress)
        )
    if dtype is not None:
        raise ValueError(
            f"{name_of(part)}: give wire_dtype or compress, not both: a compression has a form of "
            f"its own. Got {dtype} and {shown(compress)}."
        )


def check_wire(part: Any, params: PyTree) -> None:
    """Require the array sent for each parameter to be at most as wide as the parameter.

    Raises:
      ValueError: if `wire_dtype` is wider.
    """
    if part.wire_dtype is None:
        return
    wire = jnp.dtype(part.wire_dtype)
    for i, p in enumerate(jax.tree.leaves(params)):
        dtype = dtype_of(p)
        if jnp.issubdtype(dtype, jnp.floating) and wire.itemsize > dtype.itemsize:
            raise ValueError(
                f"{name_of(part)}: wire_dtype {wire} is wider than the parameter "
                f"{path_at(params, i)} of dtype {dtype}; leave it out, or give a narrower one."
            )


class FeedbackState(NamedTuple):
    """The rounding errors of a compression of blocks, still to be sent. Per replica.

    For a parameter that it does not take, both are one integer.
    """

    own: Slot  # float32; of this replica's messages
    mean: Slot  # (length,) float32; of the sums in this replica's piece


class LowRankState(NamedTuple):
    """The memory of `powersgd`. Per replica. For a parameter that travels whole, one integer."""

    own: Slot  # float32; what this replica's factors leave out and is still to be sent
    right: Slot  # (..., n, rank) float32; the right factors, the same on all replicas


def first_feedback(
    part: Any,
    params: PyTree,
    axis: Axes,
    inner_axes: tuple[str, ...] = (),
    slices: Sequence[tuple[str, ...]] | None = None,
) -> FeedbackState | LowRankState | None:
    """Return what a wrapper remembers before anything is sent; None without a compression.

    Where nothing is remembered stands `nothing_remembered`.

    Args:
      part: the wrapper.
      params: the parameters, as they are sent.
      axis: the axis of replicas, or several.
      inner_axes: axes along which the devices of a replica have what they still owe.
      slices: for every parameter, the axes along which devices send slices of it, where these
        differ; what is remembered is then flat. Defaults to `inner_axes` for all.
    """
    check_wire(part, params)
    if part.compress is None:
        return None
    check_bound(part, (*axis_names(axis), *inner_axes))
    pairs, flat = [], slices is not None
    sliced = iter([inner_axes] * len(jax.tree.leaves(params)) if slices is None else slices)
    for path, p in with_paths(params):
        if not is_hole(p):
            first = _first(part, path, p, axis, next(sliced), flat) or (
                nothing_remembered(),
                nothing_remembered(),
            )
            pairs.append(
                [marked_as_varying(x, varying_axes(p)) for x in first]
            )  # each device has its own
    treedef = jax.tree.structure(params)
    residuals, other = (treedef.unflatten(column) for column in zip(*pairs, strict=True))
    if isinstance(part.compress, powersgd):
        return as_varying(LowRankState(residuals, other), axis)
    # Inside a replica, each device remembers what its slices still owe.
    return as_varying(FeedbackState(residuals, other), (*axis_names(axis), *inner_axes))


def nothing_remembered(dims: int = 1) -> Array:
    """Return what stands in a state where nothing is remembered: an integer, which Orbax saves."""
    return jnp.zeros((1,) * dims, jnp.int8)


def is_nothing(x: Any) -> bool:
    """Whether nothing is remembered; states of before have an array without entries there."""
    return not x.size or not jnp.issubdtype(x.dtype, jnp.floating)


def _first(
    part: Any, path: Path, p: Any, axis: Axes, inner_axes: tuple[str, ...], flat: bool
) -> Any:
    shape, dtype = jnp.shape(p), dtype_of(p)
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    if isinstance(part.compress, powersgd):
        return part.compress.first(path, shape)
    codec = codec_of(part, shape, dtype, dtype, axis, inner_axes)
    return None if codec is None else new_error(shape, codec, axis, inner_axes, flat)


def codec_of(
    part: Any,
    shape: tuple[int, ...],
    own_dtype: Any,
    default: Any,
    axis: Axes,
    inner: tuple[str, ...] = (),
) -> Codec | None:
    """Return the form in which an array travels; None for float32 or wider.

    Args:
      part: the wrapper.
      shape: the shape of the array.
      own_dtype: its dtype, or that of the parameter that it belongs to.
      default: the dtype in which it travels where none is given.
      axis: the axis of replicas.
      inner: axes along which devices send slices.
    """
    size = math.prod(shape)
    if not size or not jnp.issubdtype(own_dtype, jnp.floating):
        return None
    if isinstance(part.compress, Blocks):
        pieces = size_of(axis) * (size_of(inner) if inner else 1)
        return part.compress.fitting(size // pieces) or _BFLOAT16  # too few for blocks
    dtype = jnp.dtype(default if part.wire_dtype is None else part.wire_dtype)
    return Cast(dtype) if dtype.itemsize < at_least_float32(own_dtype).itemsize else None


def summed_with_feedback(
    part: Any,
    updates: PyTree,
    xs: Sequence[Array | None],
    dtypes: Sequence[Any],
    feedback: Any,
    *,
    ok: Array | bool = True,
    divisor: Array | int = 1,
    slices: Sequence[tuple[str, ...]] | None = None,
) -> tuple[list[Any], Any]:
    """Return the sums of arrays over the replicas, and what the wrapper remembers after that.

    Args:
      part: the wrapper, with the fields `axis`, `wire_dtype` and `compress`.
      updates: a tree with the structure of the arrays.
      xs: this replica's arrays, in its order; None for one that is not sent.
      dtypes: for each the dtype in which it travels where the wrapper does not say.
      feedback: what the wrapper remembers; None without a compression.
      ok: whether this replica's arrays count.
      divisor: the sums are divided by it.
      slices: for each the axes along which devices send slices of it, as for `first_feedback`.
    """
    axis, flat = part.axis, slices is not None
    inner_axes = tuple(getattr(part, "inner_axes", ()))
    slices = [inner_axes] * len(xs) if slices is None else slices
    treedef = structure_of(updates)
    slots = (
        []
        if feedback is None
        else [align_slot(part, updates, treedef, feedback, name) for name in feedback._fields]
    )
    memory: list[Any] = [None] * len(xs)
    if slots:
        form = LowRank if isinstance(part.compress, powersgd) else Error
        columns = zip(*(slot.leaves for slot in slots), strict=True)
        memory = [None if is_nothing(pair[1]) else form(*pair) for pair in columns]
    totals: list[Any] = [None] * len(xs)
    outgoing: dict[int, Sent] = {}
    for i, (x, dtype, inner) in enumerate(zip(xs, dtypes, slices, strict=True)):
        if x is None:
            memory[i] = None
        elif isinstance(memory[i], LowRank):
            totals[i], memory[i] = part.compress.sum(x, memory[i], axis, inner, ok, divisor)
        elif isinstance(part.compress, powersgd):  # its factors would not be smaller
            outgoing[i] = Sent(x, None, inner=inner)
        else:
            codec = codec_of(part, jnp.shape(x), x.dtype, dtype, axis, inner)
            if codec is not None and memory[i] is not None:
                needed = new_error(x.shape, codec, axis, inner, flat)
                _check_error(part, updates, i, memory[i], needed)
            outgoing[i] = Sent(x, codec, memory[i], inner)
    results, rests = sums(list(outgoing.values()), axis, ok, divisor)
    for i, total, rest in zip(outgoing, results, rests, strict=True):
        totals[i], memory[i] = total, rest
    if feedback is None:
        return totals, None
    new = []
    for k, slot in enumerate(slots):
        leaves = [
            old if pair is None else pair[k] for old, pair in zip(slot.leaves, memory, strict=True)
        ]
        new.append(slot.rebuilt(leaves))
    return totals, type(feedback)(*new)


def _check_error(part: Any, updates: PyTree, i: int, error: Error, needed: Error) -> None:
    shapes, wanted = (tuple(jnp.shape(x) for x in pair) for pair in (error, needed))
    if shapes != wanted:
        raise ValueError(
            f"{name_of(part)}: the state's feedback of {path_at(updates, i)} has the shapes "
            f"{shapes[0]} and {shapes[1]}, this exchange needs {wanted[0]} and {wanted[1]}. Was it "
            "made for other parameters, another compression or another number of replicas? "
            "resize_replicas changes the number, with a fresh state of the new one."
        )


announce_named_tuples(__name__)

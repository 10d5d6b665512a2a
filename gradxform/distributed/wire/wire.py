"""How replicas add arrays up: in float32, or in fewer bits with the sums formed in float32.

A sum in fewer bits takes two exchanges. Each replica first gets its piece of all arrays, and adds
it up in float32; then all replicas get all sums. So nothing is added in the narrow form, whatever
the compiler would do with a sum of it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.distributed.wire.axis import (
    Axes,
    as_varying,
    axis_names,
    knows_what_varies,
    size_of,
    varies_along,
    widen,
)
from gradxform.distributed.wire.bits import from_bits, to_bits
from gradxform.numerics import cast, real_dtype
from gradxform.types import Array, PyTree

# Arrays with fewer entries travel together.
SMALL = 1 << 14


class Codec(Protocol):
    """A form in which numbers travel."""

    @property
    def unit(self) -> int:
        """The number of entries that are coded together."""
        ...

    def encode(self, x: Array) -> PyTree:
        """Return the message for float32 numbers (n, length), arrays with a leading axis n."""
        ...

    def decode(self, message: PyTree, length: int) -> Array:
        """Return the numbers (n, length), in float32."""
        ...


class Cast(NamedTuple):
    """A floating dtype of at most 16 bits."""

    dtype: Any
    unit: int = 1

    def encode(self, x: Array) -> Array:
        """Return the numbers in the dtype, as integers."""
        return to_bits(cast(x, self.dtype))

    def decode(self, message: Array, length: int) -> Array:
        """Return the numbers."""
        return cast(from_bits(message, self.dtype), jnp.float32)


class Error(NamedTuple):
    """The rounding errors of coding, still to be sent: one leaf's error feedback."""

    own: Array  # of this replica's messages, in float32; the shape of what it sends
    mean: Array  # (length,) float32; of the sums in this replica's piece


class Sent(NamedTuple):
    """An array that replicas add up."""

    x: Array
    codec: Codec | None  # None for float32
    error: Error | None = None  # None where what is rounded away is not sent later
    inner: tuple[str, ...] = ()  # axes along which all devices have the array; each sends a slice


def new_error(
    shape: tuple[int, ...], codec: Codec, axis: Axes, inner: tuple[str, ...], flat: bool = False
) -> Error:
    """Return the error feedback of an array of that shape before anything is sent.

    Args:
      shape: the shape of the array.
      codec: the form in which it travels.
      axis: the axis of replicas, or several.
      inner: axes along which devices send slices of it.
      flat: whether what is remembered is a vector also without such axes.
    """
    if inner or flat:
        shape = (_slice_length(shape, inner),)
    length = _cut(shape, size_of(axis), codec.unit).length
    return Error(jnp.zeros(shape, jnp.float32), jnp.zeros((length,), jnp.float32))


def sums(
    sent: Sequence[Sent],
    axis: Axes,
    ok: Array | bool = True,
    divisor: Array | int = 1,
) -> tuple[list[Array], list[Error | None]]:
    """Return the sums of arrays over the replicas, the same on all, and what is still to be sent.

    Sums are in float32 or wider.

    Args:
      sent: the arrays of this replica.
      axis: the axis of replicas, or several.
      ok: whether this replica's arrays count, a boolean scalar.
      divisor: the sums are divided by it, before they are rounded.
    """
    slices = [_slice(one) for one in sent]
    totals: list[Any] = [None] * len(sent)
    errors: list[Error | None] = [None] * len(sent)
    for group in _groups(slices, sent):
        codec = sent[group[0]].codec if slices[group[0]].size else None
        xs, old = [slices[i] for i in group], [sent[i].error for i in group]
        if codec is None:
            results = [
                (_sum_over_divisor(_replica_sum(x, axis, ok), divisor), error)
                for x, error in zip(xs, old, strict=True)
            ]
        else:
            results = _coded_sums(xs, old, codec, axis, ok, divisor)
        for i, (total, error) in zip(group, results, strict=True):
            totals[i], errors[i] = total, error
    for i, one in enumerate(sent):
        if isinstance(one.codec, Cast):  # exact: the sum has been rounded to this dtype
            totals[i] = cast(totals[i], one.codec.dtype)
        totals[i] = widen(_unslice(totals[i], one.x, one.inner))
    return totals, errors


def _sum_over_divisor(total: Array, divisor: Array | int) -> Array:
    return total / jnp.asarray(divisor, real_dtype(total.dtype))


def tree_mean(
    tree: PyTree,
    axis: Axes,
    inner_axes: tuple[str, ...] = (),
    ok: Array | bool = True,
    count: Array | int | None = None,
) -> PyTree:
    """Return the mean over the replicas of every floating leaf; all other leaves stay.

    Leaves of at most 16 bits travel as they are, which loses nothing.

    Args:
      tree: this replica's tree.
      axis: the axis of replicas, or several.
      inner_axes: axes along which all devices have the same tree.
      ok: whether this replica's tree counts.
      count: the number of replicas whose trees count, by default all.
    """
    leaves, treedef = jax.tree.flatten(tree)
    where = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]
    outgoing = [Sent(leaves[i], narrow(leaves[i].dtype), inner=inner_axes) for i in where]
    totals, _ = sums(outgoing, axis, ok, size_of(axis) if count is None else count)
    for i, total in zip(where, totals, strict=True):
        leaves[i] = cast(total, leaves[i].dtype)
    return treedef.unflatten(leaves)


def narrow(dtype: Any) -> Cast | None:
    """Return the form of numbers that travel in a dtype; None for float32 or wider."""
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return Cast(jnp.dtype(dtype)) if is_narrow else None


def _groups(xs: Sequence[Array], sent: Sequence[Sent]) -> list[list[int]]:
    """Return which arrays travel together: the small ones of a codec, and each other one alone."""
    groups: dict[Any, list[int]] = {}
    for i, (x, one) in enumerate(zip(xs, sent, strict=True)):
        alone = one.codec is None or x.size >= SMALL or not x.size
        groups.setdefault(i if alone else one.codec, []).append(i)
    return list(groups.values())


def _replica_sum(x: Array, axis: Axes, ok: Array | bool) -> Array:
    """Return the sum of an array over the replicas, in float32 or wider."""
    return lax.psum(as_varying(_counted(widen(x), ok), axis), axis_names(axis))


def _counted(x: Array, ok: Array | bool) -> Array:
    return x if ok is True else jnp.where(ok, x, jnp.zeros_like(x))


# ----------------------------------------------------------------------- sums in two exchanges


def _coded_sums(
    xs: Sequence[Array],
    errors: Sequence[Error | None],
    codec: Codec,
    axis: Axes,
    ok: Array | bool,
    divisor: Array | int,
) -> list[tuple[Array, Error | None]]:
    """Return the sums of arrays that travel together, and what is still to be sent."""
    n = size_of(axis)
    before = [error for error in errors if error is not None]  # of all of them, or of none
    keeps_shape = len(xs) == 1 and not before and codec.unit == 1
    cuts = [_cut(x.shape, n, codec.unit, keeps_shape) for x in xs]
    ys = [
        _counted(widen(x) if error is None else widen(x) + owed(error.own, codec), ok)
        for x, error in zip(xs, errors, strict=True)
    ]
    pieces = as_varying(joined([cut.pieces(y) for cut, y in zip(cuts, ys, strict=True)]), axis)
    length = _length_of_pieces(pieces)
    total, left_out = scattered(pieces, codec, axis)
    total = _sum_over_divisor(total, divisor)
    if before:
        total = total + joined([error.mean for error in before])
        if len(cuts) == 1:  # what codes make of the zeros that fill an array up is not part of it
            place = lax.axis_index(axis_names(axis)) * length + jnp.arange(length)
            total = jnp.where(place < xs[0].size, total, jnp.zeros_like(total))
    whole, left_out_of_mean = put_together(total, codec, axis)
    lengths = [cut.length for cut in cuts]
    results = [cut.whole(x) for cut, x in zip(cuts, parted(whole, lengths), strict=True)]
    if not before:
        return [(x, None) for x in results]
    owns = [cut.whole(x) for cut, x in zip(cuts, parted(left_out, lengths), strict=True)]
    means = parted(left_out_of_mean, lengths)
    return [
        (x, Error(still_to_send(residual, old.own, ok), still_to_send(mean, old.mean)))
        for x, residual, mean, old in zip(results, owns, means, before, strict=True)
    ]


def owed(rest: Array, codec: Codec) -> Array:
    """Return what a replica adds to its next message, of what it has not sent."""
    decay = getattr(codec, "decay", 1.0)
    return rest if decay == 1 else decay * rest


def still_to_send(rest: Array, before: Array, ok: Array | bool = True) -> Array:
    """Return what messages left out; where they did not count or were not finite, what was before.

    NaN and infinities have been seen by all, and are not sent again.
    """
    return jnp.where(jnp.isfinite(rest) & ok, rest, before)


def scattered(pieces: Array, codec: Codec, axis: Axes) -> tuple[Array, Array]:
    """Return the sum of what all replicas send to this one, and what its own messages leave out.

    Args:
      pieces: float32, a piece for each replica, (n, length); of any shape after n for a `Cast`.
      codec: the form in which they travel.
      axis: the axis of replicas, or several.
    """
    length, message = _length_of_pieces(pieces), codec.encode(pieces)
    received = codec.decode(jax.tree.map(_exchanging(axis), message), length)
    return jnp.sum(received, axis=0), pieces - codec.decode(message, length)


def put_together(piece: Array, codec: Codec, axis: Axes) -> tuple[Array, Array]:
    """Return the pieces of all replicas, (n, length), and what this one's message leaves out.

    Args:
      piece: float32, (length,); of any shape for a `Cast`.
      codec: the form in which they travel.
      axis: the axis of replicas, or several.
    """
    length, message = _length_of_pieces(piece[None]), codec.encode(piece[None])
    whole = codec.decode(jax.tree.map(_gathering(axis), message), length)
    return whole, piece - codec.decode(message, length)[0]


def _length_of_pieces(pieces: Array) -> int:
    return pieces.shape[1] if pieces.ndim > 1 else 1


def _exchanging(axis: Axes) -> Callable[[Array], Array]:
    """Return the function that gives each replica its pieces of all messages."""
    names = axis_names(axis)
    if _is_alone(axis):
        return lambda x: x
    if len(names) > 1 or size_of(axis) != 2:
        return lambda x: lax.all_to_all(x, names, 0, 0, tiled=True)

    def with_the_other(x: Array) -> Array:
        # Between two slices, compilers for TPUs make an all-to-all send a replica's own piece too.
        index = lax.axis_index(names)
        own_piece, others = (lax.dynamic_slice_in_dim(x, k, 1) for k in (index, 1 - index))
        return jnp.concatenate([own_piece, lax.ppermute(others, names, [(0, 1), (1, 0)])])

    return with_the_other


def _is_alone(axis: Axes) -> bool:
    """Whether there is one replica, and JAX does not ask for a sum to see that it is the same."""
    return size_of(axis) == 1 and not knows_what_varies(axis)


def _gathering(axis: Axes) -> Callable[[Array], Array]:
    if _is_alone(axis):
        return lambda x: x
    to: Any = {"to": "invarying"} if knows_what_varies(axis) else {}

    def gather(x: Array) -> Array:
        # One axis at a time: compilers for TPUs send twice the bytes over several.
        for name in reversed(axis_names(axis)):
            x = lax.all_gather(as_varying(x, name), name, tiled=True, **to)
        return x

    return gather


def joined(xs: Sequence[Array]) -> Array:
    """Return arrays put together along their last axis; a single one as it is."""
    return xs[0] if len(xs) == 1 else jnp.concatenate(xs, axis=-1)


def parted(x: Array, lengths: Sequence[int]) -> list[Array]:
    """Undo `joined`."""
    if len(lengths) == 1:
        return [x]
    ends = list(itertools.accumulate(lengths))
    return jnp.split(x, ends[:-1], axis=-1)


class _Cut(NamedTuple):
    """How an array is cut into pieces, one for each replica."""

    shape: tuple[int, ...]
    n: int
    dim: int | None  # the dimension that is cut; None for an array that is flat, and padded
    length: int  # of a flat piece

    def pieces(self, x: Array) -> Array:
        """Return the pieces along a new first axis."""
        if self.dim is None:
            flat = x.reshape(-1)
            return jnp.pad(flat, (0, self.n * self.length - flat.size)).reshape(self.n, -1)
        before, size, after = (
            self.shape[: self.dim],
            self.shape[self.dim],
            self.shape[self.dim + 1 :],
        )
        return jnp.moveaxis(x.reshape(*before, self.n, size // self.n, *after), self.dim, 0)

    def whole(self, pieces: Array) -> Array:
        """Undo `pieces`."""
        if self.dim is None:
            return pieces.reshape(-1)[: math.prod(self.shape)].reshape(self.shape)
        return jnp.moveaxis(pieces, 0, self.dim).reshape(self.shape)


def _cut(shape: tuple[int, ...], n: int, unit: int, keeps_shape: bool = False) -> _Cut:
    """Return how an array is cut: one dimension if possible and wanted, or else all flat."""
    length = -(-math.prod(shape) // (n * unit)) * unit
    dims = [d for d, size in enumerate(shape) if size and size % n == 0] if keeps_shape else []
    return _Cut(shape, n, dims[0] if dims else None, length)


# ------------------------------------------------------------------------ slices of inner devices


def _slice_length(shape: tuple[int, ...], inner: tuple[str, ...]) -> int:
    """Return the length of the slice of an array that a device along inner axes sends."""
    return -(-math.prod(shape) // size_of(inner))


def _slice(sent: Sent) -> Array:
    """Return the slice of an array that this device sends, in the form of what is remembered."""
    x, inner = sent.x, sent.inner
    if not inner:
        return x if sent.error is None else x.reshape(sent.error.own.shape)
    flat = x.reshape(-1)
    flat = jnp.pad(flat, (0, _slice_length(x.shape, inner) * size_of(inner) - flat.size))
    for name in inner:
        size = flat.size // size_of(name)
        start = lax.axis_index(name) * size
        flat = lax.dynamic_slice_in_dim(as_varying(flat, name), start, size)
    return flat


def _unslice(total: Array, x: Array, inner: tuple[str, ...]) -> Array:
    """Return the array from the slices that the devices along the inner axes have."""
    if not inner:
        return total.reshape(x.shape)
    same = not any(varies_along(x, name) for name in inner if knows_what_varies(name))
    for name in reversed(inner):
        to = "invarying" if same and knows_what_varies(name) else "varying"
        total = lax.all_gather(total, name, tiled=True, to=to)
    return total[: x.size].reshape(x.shape)

"""Which equations of a jaxpr look rows up in a table, and which rows those are."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode

from gradxform import _compat
from gradxform.types import Array

MAX_INT32 = 2**31 - 1


class Source(NamedTuple):
    """Where a variable comes from: it holds the whole of a table."""

    table: int  # which of the tables
    dtypes: tuple[Any, ...]  # those it has had on its way here, the table's own first
    axes: tuple[str, ...] = ()  # the mesh axes over which it was spread on its way here


class Lookup(NamedTuple):
    """One lookup of rows: what it reads, and the shape of what it finds."""

    source: Source
    found: Any  # the type of the result
    rows: Callable[..., Array]  # the other operands -> the rows, int32 [n]; padding: num_rows
    row_shape: tuple[int, ...]
    order: tuple[int, ...]  # the result's axes, those that count rows first
    lengths: tuple[int, ...] = ()  # of the scans around the lookup, the outermost first

    def probe(self) -> Array:
        """Return zeros for what all runs of the lookup find."""
        return _compat.zeros_of(self.found, self.lengths)

    def gradient(self, rows: Array, cotangent: Array) -> tuple[Array, Array]:
        """Return the rows of the table that have a gradient, [n], and theirs, [n, ...]."""
        before = len(self.lengths)
        axes = (*range(before), *(before + axis for axis in self.order))
        total = rows.size
        values = cotangent.transpose(axes).reshape(total, *self.row_shape)
        for dtype in reversed(self.source.dtypes[:-1]):
            values = values.astype(dtype)
        rows = rows.reshape(total)
        if axes := self.source.axes:  # each device has looked up rows of its own in one table
            rows, values = _compat.gathered(rows, axes), _compat.gathered(values, axes)
        return rows, values


def find(eqn: Any, source: Source) -> Lookup | None:
    """Return the lookup that `eqn` is, of rows of its first operand; None if it is none."""
    finder = _FINDERS.get(eqn.primitive.name)
    if finder is None or len(eqn.outvars) != 1:
        return None
    return finder(eqn.params, eqn.invars[0].aval.shape, source, eqn.outvars[0].aval)


def _slice(params: Any, shape: Any, source: Source, found: Any) -> Lookup | None:
    start, stop = params["start_indices"], params["limit_indices"]
    step = params["strides"] or (1,) * len(shape)
    if any(start[1:]) or stop[1:] != shape[1:] or any(s != 1 for s in step[1:]):
        return None

    def rows():
        return jnp.arange(start[0], stop[0], step[0], dtype=jnp.int32)

    return Lookup(source, found, rows, shape[1:], tuple(range(len(shape))))


def _dynamic_slice(params: Any, shape: Any, source: Source, found: Any) -> Lookup | None:
    width, *others = params["slice_sizes"]
    if tuple(others) != shape[1:]:
        return None

    def rows(first, *_):  # where all of an axis is taken, its start is clamped to 0
        first = jnp.clip(_int32(first, shape[0]), 0, shape[0] - width)
        return first + jnp.arange(width, dtype=jnp.int32)

    return Lookup(source, found, rows, shape[1:], tuple(range(len(shape))))


def _gather(params: Any, shape: Any, source: Source, found: Any) -> Lookup | None:
    numbers, (width, *others) = params["dimension_numbers"], params["slice_sizes"]
    mode = GatherScatterMode.from_any(params["mode"])
    if tuple(others) != shape[1:] or numbers.operand_batching_dims or mode not in _MODES:
        return None
    columns = numbers.start_index_map  # the axis that each column of the indices is for
    batch = [axis for axis in range(found.ndim) if axis not in numbers.offset_dims]

    def rows(starts):
        last = shape[0] - width
        good = jnp.ones(starts.shape[:-1], jnp.bool_)
        first = jnp.zeros(starts.shape[:-1], jnp.int32)
        for column, axis in enumerate(columns):
            start = jax.lax.index_in_dim(starts, column, -1, keepdims=False)
            if axis == 0:
                first = _int32(start, shape[0])
                good &= (first >= 0) & (first <= last)
            else:
                good &= start == 0
        if mode is GatherScatterMode.CLIP:
            first, good = jnp.clip(first, 0, last), jnp.ones_like(good)
        beside = jax.lax.broadcasted_iota(jnp.int32, (*first.shape, width), first.ndim)
        all_rows = jnp.where(good[..., None], first[..., None] + beside, shape[0])
        return all_rows.reshape(all_rows.size)

    return Lookup(source, found, rows, shape[1:], (*batch, *numbers.offset_dims))


# Out of bounds, a gather that promises otherwise has no gradient either.
_MODES = {
    GatherScatterMode.CLIP,
    GatherScatterMode.FILL_OR_DROP,
    GatherScatterMode.PROMISE_IN_BOUNDS,
}
_FINDERS = {"slice": _slice, "dynamic_slice": _dynamic_slice, "gather": _gather}


def _int32(x: Array, num_rows: int) -> Array:
    """Return indices of any integer dtype as int32, in which `num_rows` has room."""
    x = jnp.asarray(x)
    info = jnp.iinfo(x.dtype)
    if info.max > MAX_INT32:  # what is out of range stays so
        x = jnp.clip(x, max(int(info.min), -1), num_rows)
    return x.astype(jnp.int32)

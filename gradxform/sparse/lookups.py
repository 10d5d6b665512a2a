"""Finding the equations of a jaxpr that look up rows of a table, and the rows that they read."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode

from gradxform._jax import versions as _compat
from gradxform.types import Array

MAX_INT32 = 2**31 - 1


class Source(NamedTuple):
    """The table that a variable holds, whole."""

    table: int  # the index of the table
    dtypes: tuple[Any, ...]  # the dtypes to which it was cast so far, the table's own first
    axes: tuple[str, ...] = ()  # the mesh axes over which it was made varying so far


class Lookup(NamedTuple):
    """One lookup of rows: where they come from, and the layout of the result."""

    source: Source
    result: Any  # the type of the result
    rows: Callable[..., Array]  # the other operands -> the rows, int32 [n]; padding: num_rows
    row_shape: tuple[int, ...]
    order: tuple[int, ...]  # the result's axes, those that count rows first
    lengths: tuple[int, ...] = ()  # of the scans around the lookup, the outermost first

    def probe(self) -> Array:
        """Return zeros in the shape of the results of all runs of the lookup."""
        return _compat.zeros_of(self.result, self.lengths)

    def gradient(self, rows: Array, cotangent: Array) -> tuple[Array, Array]:
        """Return the touched rows of the table, [n], and their gradients, [n, ...]."""
        scans = len(self.lengths)
        order = (*range(scans), *(scans + axis for axis in self.order))
        n = rows.size
        values = cotangent.transpose(order).reshape(n, *self.row_shape)
        for dtype in reversed(self.source.dtypes[:-1]):
            values = values.astype(dtype)
        rows = rows.reshape(n)
        if axes := self.source.axes:  # each device has looked up its own rows of the same table
            rows, values = _compat.gathered(rows, axes), _compat.gathered(values, axes)
        return rows, values


def find(eqn: Any, source: Source) -> Lookup | None:
    """Return `eqn` as a lookup of rows of its first operand, or None if it is not one."""
    finder = _FINDERS.get(eqn.primitive.name)
    if finder is None or len(eqn.outvars) != 1:
        return None
    return finder(eqn.params, eqn.invars[0].aval.shape, source, eqn.outvars[0].aval)


def _slice(params: Any, shape: Any, source: Source, result: Any) -> Lookup | None:
    start, stop = params["start_indices"], params["limit_indices"]
    step = params["strides"] or (1,) * len(shape)
    if any(start[1:]) or stop[1:] != shape[1:] or any(s != 1 for s in step[1:]):
        return None

    def rows() -> Array:
        return jnp.arange(start[0], stop[0], step[0], dtype=jnp.int32)

    return Lookup(source, result, rows, shape[1:], tuple(range(len(shape))))


def _dynamic_slice_lookup(params: Any, shape: Any, source: Source, result: Any) -> Lookup | None:
    width, *others = params["slice_sizes"]
    if tuple(others) != shape[1:]:
        return None

    def rows(first: Array, *_: Array) -> Array:  # the other axes are whole: their starts clip to 0
        first = jnp.clip(_indices_as_int32(first, shape[0]), 0, shape[0] - width)
        return first + jnp.arange(width, dtype=jnp.int32)

    return Lookup(source, result, rows, shape[1:], tuple(range(len(shape))))


def _gather(params: Any, shape: Any, source: Source, result: Any) -> Lookup | None:
    numbers, (width, *others) = params["dimension_numbers"], params["slice_sizes"]
    mode = GatherScatterMode.from_any(params["mode"])
    if tuple(others) != shape[1:] or numbers.operand_batching_dims or mode not in _MODES:
        return None
    columns = numbers.start_index_map  # the table's axis for each column of the indices
    batch = [axis for axis in range(result.ndim) if axis not in numbers.offset_dims]

    def rows(starts: Array) -> Array:
        last = shape[0] - width
        in_bounds = jnp.ones(starts.shape[:-1], jnp.bool_)
        first = jnp.zeros(starts.shape[:-1], jnp.int32)
        for column, axis in enumerate(columns):
            start = jax.lax.index_in_dim(starts, column, -1, keepdims=False)
            if axis == 0:
                first = _indices_as_int32(start, shape[0])
                in_bounds &= (first >= 0) & (first <= last)
            else:
                in_bounds &= start == 0
        if mode is GatherScatterMode.CLIP:
            first, in_bounds = jnp.clip(first, 0, last), jnp.ones_like(in_bounds)
        offsets = jax.lax.broadcasted_iota(jnp.int32, (*first.shape, width), first.ndim)
        all_rows = jnp.where(in_bounds[..., None], first[..., None] + offsets, shape[0])
        return all_rows.reshape(all_rows.size)

    return Lookup(source, result, rows, shape[1:], (*batch, *numbers.offset_dims))


# PROMISE_IN_BOUNDS is like FILL_OR_DROP: an index out of bounds does not have a gradient.
_MODES = {
    GatherScatterMode.CLIP,
    GatherScatterMode.FILL_OR_DROP,
    GatherScatterMode.PROMISE_IN_BOUNDS,
}
_FINDERS = {
    "slice": _slice,
    "dynamic_slice": _dynamic_slice_lookup,
    "gather": _gather,
}


def _indices_as_int32(x: Array, num_rows: int) -> Array:
    """Return indices of any integer dtype as int32; those out of range stay out of range."""
    x = jnp.asarray(x)
    info = jnp.iinfo(x.dtype)
    if info.max > MAX_INT32:
        x = jnp.clip(x, max(int(info.min), -1), num_rows)
    return x.astype(jnp.int32)

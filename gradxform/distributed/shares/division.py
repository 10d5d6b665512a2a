"""Dividing an array over mesh axes: which dimension each axis cuts, and the collectives for it.

Collectives work on one axis at a time, because compilers for TPUs turn a reduce-scatter over
several axes into an all-reduce, which sends twice the bytes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from gradxform.distributed.shares.sources import note_shards, source_of
from gradxform.distributed.wire.axis import as_varying
from gradxform.distributed.wire.bits import from_bits, to_bits
from gradxform.types import Array

# A tile of a TPU's memory: rows and columns of the last two dimensions that are stored together.
_TILE = (8, 128)

# Muon forms five products by default; devices send half of each, twice.
LONG = 5


class Division(NamedTuple):
    """How one array is divided over mesh axes."""

    cuts: tuple[tuple[str, int], ...]  # in order: a mesh axis, and the dimension that it cuts
    whole: tuple[str, ...]  # the axes along which all devices have the same part

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that cut."""
        return tuple(axis for axis, _ in self.cuts)

    def spec(self) -> PartitionSpec:
        """Return the division as a `PartitionSpec` of the array of all devices."""
        last = max((dim for _, dim in self.cuts), default=-1)
        names = [tuple(a for a, dim in self.cuts if dim == d) for d in range(last + 1)]
        return PartitionSpec(*(n[0] if len(n) == 1 else n or None for n in names))

    def cut(self, x: Array) -> Array:
        """Return this device's shard of an array that all devices have."""
        source = source_of(x)
        if source is not None and source.division == self:
            return source.shard
        for axis, dim in self.cuts:
            length = x.shape[dim] // lax.axis_size(axis)
            start = lax.axis_index(axis) * length
            x = lax.dynamic_slice_in_dim(x, start, length, dim)
        return x

    def reduce(self, x: Array) -> Array:
        """Return this device's shard of the sum of all devices' arrays, in the dtype of `x`.

        An array that is known not to vary along the axes must be marked by `as_varying` first.
        """
        for axis, dim in self.cuts:
            x = _psum_scatter_division(x, axis, dim)
        return lax.psum(x, self.whole) if self.whole else x

    def gather(self, x: Array, is_tracked: bool) -> Array:
        """Return the whole array from this device's shard: undo `cut`.

        Args:
          x: the shard.
          is_tracked: whether JAX tracks what varies; the result is then marked as not varying.
        """
        to: Any = {"to": "invarying"} if is_tracked else {}
        shard, x = x, to_bits(x)
        for axis, dim in reversed(self.cuts):
            x = as_varying(x, axis) if is_tracked else x
            x = lax.all_gather(x, axis, axis=dim, tiled=True, **to)
        whole = from_bits(x, shard.dtype)
        note_shards(whole, self, shard, is_tracked)
        return whole

    def pieces(self, x: Array) -> Array:
        """Return the shards of all devices along a new first axis, of an array that each has."""
        shape = list(x.shape)
        for i, (axis, dim) in enumerate(self.cuts):
            n, at = lax.axis_size(axis), i + dim
            x = jnp.reshape(x, (*x.shape[:at], n, x.shape[at] // n, *x.shape[at + 1 :]))
            x = jnp.moveaxis(x, at, i)
            shape[dim] //= n
        return jnp.reshape(x, (-1, *shape))

    def assembled(self, pieces: Array) -> Array:
        """Undo `pieces`."""
        sizes = [lax.axis_size(axis) for axis in self.axes]
        x = jnp.reshape(pieces, (*sizes, *pieces.shape[1:]))
        for i, (_, dim) in reversed([*enumerate(self.cuts)]):
            x = jnp.moveaxis(x, i, i + dim)
            at = i + dim
            x = jnp.reshape(x, (*x.shape[:at], -1, *x.shape[at + 2 :]))
        return x


def _psum_scatter_division(x: Array, axis: str, dim: int) -> Array:
    """Return this device's piece, along one dimension, of the sum over one axis.

    Pieces of the first or last dimension are moved to a new leading axis first. Compilers for TPUs
    then emit a reduce-scatter of exactly these bytes. If the array were cut in place, they would
    pad rows (2048 of them by a tenth), and sum columns or a vector whole.
    """
    if 0 < dim < x.ndim - 1:
        return lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
    n = lax.axis_size(axis)
    length = x.shape[dim] // n
    pieces = jnp.reshape(x, (*x.shape[:dim], n, length, *x.shape[dim + 1 :]))
    pieces = jnp.moveaxis(pieces, dim, 0)
    shape = pieces.shape[1:]
    rows, columns = _TILE
    if len(shape) == 1 and length % (rows * columns) == 0:
        pieces = jnp.reshape(pieces, (n, length // columns, columns))
    return jnp.reshape(lax.psum_scatter(pieces, axis, scatter_dimension=0), shape)


def division_of_shape(
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    rows: bool = False,
    kept: int | None = None,
    long: bool = False,
) -> Division:
    """Return how an array is divided over mesh axes.

    Each axis in turn cuts a dimension that its size divides: the first one whose pieces fill whole
    tiles of 8 by 128 in the last two dimensions, or else the longest one; with `long`, the longer
    side of a matrix that is `LONG` times as long as wide. An axis whose size divides no dimension
    does not cut.

    Args:
      shape: the shape of the array.
      sizes: the mesh axes in order, with their sizes.
      rows: whether only the first dimension may be cut.
      kept: a dimension that must not be cut.
      long: whether pieces of long matrices are to be columns, or rows, of the full length of the
        shorter side.
    """
    far = len(shape) == 2 and max(shape) > LONG * min(shape)
    favorite = shape.index(max(shape)) if long and far else None
    shard, cuts, whole = list(shape), [], []
    for axis, size in sizes.items():
        dims = [d for d in range(min(len(shard), 1) if rows else len(shard)) if d != kept]
        divisible = [d for d in dims if size > 1 and shard[d] and shard[d] % size == 0]
        if not divisible or 0 in shard:
            whole.append(axis)
            continue
        tiled = [d for d in divisible if _fills_tiles(shard, d, size)]
        best = tiled[0] if tiled else max(divisible, key=lambda d: shard[d])
        best = favorite if favorite in divisible else best
        shard[best] //= size
        cuts.append((axis, best))
    return Division(tuple(cuts), tuple(whole))


def _fills_tiles(shape: list[int], d: int, size: int) -> bool:
    from_end = len(shape) - d
    return from_end > len(_TILE) or (shape[d] // size) % _TILE[-from_end] == 0

"""Matrices that are divided over devices: which piece of each array a device holds.

A rule for whole matrices runs on pieces inside `as_pieces`. The lift then knows the shape of the
array of all devices, and calls an exchange that brings whole matrices together. Only the exchange
names a device.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.engine.shards import held_anew, layer_axes
from gradxform.errors import did_you_mean
from gradxform.leaves import (
    Path,
    dtype_of,
    is_hole,
    leaves_of,
    map_with_paths,
    path_str,
    shape_of,
    with_paths,
)
from gradxform.types import Array, PyTree


class Cut(NamedTuple):
    """How one array is divided: the mesh axes that cut it, in order, each with its dimension."""

    cuts: tuple[tuple[str, int], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()  # of every axis along which some array is divided

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that cut the array."""
        return tuple(axis for axis, _ in self.cuts)

    def along(self, dim: int) -> "Cut":
        """Return how a vector is divided that has an entry for each index of a dimension."""
        return Cut(tuple((axis, 0) for axis, d in self.cuts if d == dim), self.sizes)

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the array of all devices, from that of a piece."""
        sizes, out = dict(self.sizes), list(shape)
        for axis, dim in self.cuts:
            out[dim] *= sizes[axis]
        return tuple(out)

    def place(self, axes: Any, shape: tuple[int, ...]) -> str:
        """Return how the matrices of a piece of that shape lie on the devices.

        "here": every device has whole matrices of its own. "cut": every device has an equal piece
        of each. "all": every device has all of them. "scattered": anything else.
        """
        if not self.cuts:
            return "all" if self.sizes else "here"
        dims = {dim for _, dim in self.cuts}
        targets = {axes.moved(dim) for dim in dims}
        if None in targets:  # the axis along which parts lie
            dim = axes.axis
            return "here" if dims == {dim} and shape[dim] % axes.size == 0 else "scattered"
        if targets <= set(axes.expanded(shape)[0].batch):
            return "here"
        every = tuple(axis for axis, _ in self.sizes)
        return "cut" if len(dims) == 1 and self.axes == every else "scattered"


UNCUT = Cut()


class _Pieces(NamedTuple):
    """How the leaves of the current tree are divided."""

    cuts: Mapping[Path, tuple[tuple[str, int], ...]]
    sizes: tuple[tuple[str, int], ...]
    exchange: Any
    by_rows: bool  # whether something looks at rows, so that only first dimensions are cut


_PIECES: contextvars.ContextVar[_Pieces | None] = contextvars.ContextVar("pieces", default=None)


@contextlib.contextmanager
def as_pieces(
    cuts: Mapping[Path, tuple[tuple[str, int], ...]],
    sizes: Mapping[str, int],
    exchange: Any,
    by_rows: bool = False,
) -> Iterator[None]:
    """Treat leaves as pieces of arrays: rules for matrices inside this context see whole ones.

    Args:
      cuts: for each leaf, by its path, the mesh axes that cut it, in order, with their dimensions.
      sizes: the mesh axes, and the number of devices along each.
      exchange: brings matrices together; see `gradxform.distributed.matrices.exchange`.
      by_rows: whether something looks at rows, so that only first dimensions may be cut.
    """
    token = _PIECES.set(_Pieces(cuts, tuple(sizes.items()), exchange, by_rows))
    try:
        yield
    finally:
        _PIECES.reset(token)


@contextlib.contextmanager
def cut_anew(cuts: Mapping[Path, tuple[tuple[str, int], ...]]) -> Iterator[None]:
    """Within `as_pieces`, treat leaves as pieces of other arrays, on the same devices."""
    now = _PIECES.get()
    if now is None:
        yield
        return
    axes = {path: tuple(axis for axis, _ in pairs) for path, pairs in cuts.items()}
    with as_pieces(cuts, dict(now.sizes), now.exchange, now.by_rows), held_anew(axes):
        yield


def exchange_now() -> Any:
    """Return the exchange of the context; None outside of one."""
    now = _PIECES.get()
    return None if now is None else now.exchange


def cuts_rows_only() -> bool:
    """Return whether only first dimensions may be cut in the context."""
    now = _PIECES.get()
    return now is not None and now.by_rows


def cuts_of(tree: PyTree) -> list[Cut]:
    """Return how each leaf of a tree is divided.

    Raises:
      ValueError: if `as_pieces` was not told about a leaf.
    """
    if _PIECES.get() is None:
        return [UNCUT] * len(leaves_of(tree))
    return [cut_at(path) for path, leaf in with_paths(tree) if not is_hole(leaf)]


def cut_at(path: Path) -> Cut:
    """Return how the leaf at a path is divided."""
    now = _PIECES.get()
    if now is None:
        return UNCUT
    if path not in now.cuts:
        raise ValueError(
            f"pieces of matrices: leaf {path_str(path)} is not one of the "
            f"parameters.{did_you_mean(path_str(path), map(path_str, now.cuts))}"
        )
    return Cut(now.cuts[path], now.sizes)


def whole_shapes(tree: PyTree) -> PyTree:
    """Return the tree itself, or within `as_pieces` the shapes and dtypes of the whole arrays."""
    if _PIECES.get() is None:
        return tree
    return map_with_paths(
        lambda path, x: jax.ShapeDtypeStruct(cut_at(path).whole(shape_of(x)), dtype_of(x)), tree
    )


def places_of(tree: PyTree) -> tuple[PyTree, list[Cut], list[tuple[str, ...]]]:
    """Return what `whole_shapes`, `cuts_of` and `layer_axes` do; the last is empty without stacks.

    One call, since outside of jit a step asks for it once a rule.
    """
    if _PIECES.get() is None:
        return tree, [UNCUT] * len(leaves_of(tree)), layer_axes(tree)
    return whole_shapes(tree), cuts_of(tree), layer_axes(tree)


def mean_over_pieces(shape: tuple[int, ...], cut: Cut) -> Callable[[Array, int], Array]:
    """Return a function for means along an axis of arrays that are divided, over all devices.

    The axis stays, with length 1. A rule calls `array_sums` instead.

    Args:
      shape: the shape of this device's piece; arrays may have length 1 along some axes.
      cut: how the array is divided.
    """
    whole = cut.whole(shape)

    def mean(x: Array, axis: int) -> Array:
        # Divided first, because a sum of the largest numbers would overflow.
        total = jnp.sum(x / whole[axis], axis=axis, keepdims=True)
        names = cut.along(axis).axes
        return exchange_now().psum(total, names) if names else total

    return mean


_WHOLE_SLOTS: contextvars.ContextVar[bool] = contextvars.ContextVar("whole_slots", default=False)


@contextlib.contextmanager
def whole_slots() -> Iterator[None]:
    """Let `slot_piece` return whole slots."""
    token = _WHOLE_SLOTS.set(True)
    try:
        yield
    finally:
        _WHOLE_SLOTS.reset(token)


def slot_dim(shape: tuple[int, ...], cut: Cut) -> int | None:
    """Return along which axis devices divide a slot for arrays that are cut, (B, ...).

    It is the first axis after the batch whose length they divide; None if there is none.
    """
    count = math.prod(size for _, size in cut.sizes)
    dims = [d for d in range(1, len(shape)) if shape[d] and shape[d] % count == 0]
    return None if count == 1 or not dims or _WHOLE_SLOTS.get() else dims[0]


def slot_piece(x: Array, cut: Cut) -> Array:
    """Return this device's piece of a slot for arrays that are cut, (B, ...)."""
    dim = slot_dim(x.shape, cut)
    return x if dim is None else exchange_now().cut(x, tuple((axis, dim) for axis in cut.axes))


def own_piece(x: Array, cut: Cut) -> Array:
    """Return this device's piece of an array that every device has."""
    return exchange_now().cut(x, cut.cuts) if cut.cuts else x


def among_zeros(x: Array, cut: Cut) -> Array:
    """Return an array of zeros with `x` in the place of this device's piece."""
    return exchange_now().among_zeros(x, cut.cuts) if cut.cuts else x


# ---------------------------------------------------------------------- sums over a whole array

_SUM: contextvars.ContextVar[tuple[tuple[str, ...], Any] | None] = contextvars.ContextVar(
    "sum", default=None
)


@contextlib.contextmanager
def summing_over(axes: tuple[str, ...], psum: Callable[..., Any] | None) -> Iterator[None]:
    """Let `array_sum` cover the devices along these axes."""
    token = _SUM.set((axes, psum) if axes else None)
    try:
        yield
    finally:
        _SUM.reset(token)


def array_sum(x: Array) -> Array:
    """Return the sum of the entries of an array, of all its pieces."""
    now, total = _SUM.get(), jnp.sum(x)
    if now is None:
        return total
    axes, psum = now
    assert psum is not None
    return psum(total, axes)


# ------------------------------------------------------------------- matrices by their columns

_COLUMNS: contextvars.ContextVar[Any] = contextvars.ContextVar("columns", default=None)


@contextlib.contextmanager
def by_columns(columns: Any) -> Iterator[None]:
    """Let a rule for matrices know that it gets this device's columns of them.

    Args:
      columns: how devices have them (`matrix_products.Columns`).
    """
    token = _COLUMNS.set(columns)
    try:
        yield
    finally:
        _COLUMNS.reset(token)


def columns_now() -> Any:
    """Return how devices have the columns of the matrices; None for whole matrices."""
    return _COLUMNS.get()

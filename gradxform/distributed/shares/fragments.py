"""Cutting a tree into fragments of about equal bytes, which are exchanged one at a time."""

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from gradxform.leaves import dtype_of, shape_of
from gradxform.types import Array, PyTree

# A leaf is cut along its first axis whose slices are at most this part of a fragment.
_FINE = 1 / 10


class _Piece(NamedTuple):
    """A slice of a leaf along one axis; all of a leaf that is not cut."""

    start: int
    stop: int
    fragment: int


class Fragments:
    """How the leaves of a tree are divided into fragments.

    A leaf that is too large for one fragment is cut along its first axis, or, where that is too
    coarse, along a later one. Trees of pieces have a tuple of pieces in its place, and None for
    pieces of other fragments.

    Args:
      leaves: the leaves, or their shapes and dtypes.
      count: the number of fragments.
      within: what of a leaf may be cut apart: "entry" anything, "row" only its first axis, any
        other locality nothing.
    """

    def __init__(self, leaves: Sequence[Any], count: int, within: str = "entry") -> None:
        self.count = count
        sizes = [_nbytes(x) for x in leaves]
        room = -(-sum(sizes) // count)
        last = {"entry": None, "row": 1}.get(within, 0)
        shapes = [shape_of(x)[:last] for x in leaves]
        self.axes = [_axis(*row, room) for row in zip(shapes, sizes, strict=True)]
        lengths = [
            shape[axis] if shape else 1 for shape, axis in zip(shapes, self.axes, strict=True)
        ]
        self.pieces = _pieces_of_leaves(lengths, sizes, room, count)

    def split(self, tree: PyTree, fragment: int | None = None) -> PyTree:
        """Return the pieces of a tree, or those of one fragment."""
        leaves, treedef = jax.tree.flatten(tree)
        return treedef.unflatten(
            _cut_pieces(*row, fragment) for row in zip(leaves, self.axes, self.pieces, strict=True)
        )

    def dtypes(self, dtypes: Sequence[Any], fragment: int) -> list[Any]:
        """Return for every piece of a fragment the dtype of its leaf."""
        pairs = zip(dtypes, self.pieces, strict=True)
        return [dtype for dtype, pieces in pairs for p in pieces if p.fragment == fragment]

    def merged(self, tree: PyTree, pieces: PyTree, fragment: int) -> PyTree:
        """Return a tree with the pieces of one fragment in their places."""
        leaves, treedef = jax.tree.flatten(tree)
        news = treedef.flatten_up_to(pieces)
        rows = zip(leaves, news, self.axes, self.pieces, strict=True)
        return treedef.unflatten(_with_pieces(*row, fragment) for row in rows)


def _axis(shape: tuple[int, ...], size: int, room: int) -> int:
    """Return along which axis to cut a leaf, of the axes whose lengths are given."""
    fine = [axis for axis, length in enumerate(shape) if size <= _FINE * room * length]
    longest = max(range(len(shape)), key=lambda axis: shape[axis], default=0)
    return fine[0] if fine else longest


def _cut_pieces(x: Array, axis: int, pieces: Sequence[_Piece], fragment: int | None) -> Any:
    if len(pieces) == 1:
        return None if fragment not in (None, pieces[0].fragment) else x
    return tuple(
        None
        if fragment not in (None, p.fragment)
        else lax.slice_in_dim(x, p.start, p.stop, axis=axis)
        for p in pieces
    )


def _with_pieces(x: Array, new: Any, axis: int, pieces: Sequence[_Piece], fragment: int) -> Array:
    if len(pieces) == 1:
        return new if pieces[0].fragment == fragment else x
    for piece, part in zip(pieces, new, strict=True):
        if piece.fragment == fragment:
            x = lax.dynamic_update_slice_in_dim(x, part, piece.start, axis)
    return x


def _nbytes(x: Any) -> int:
    size = 1
    for n in shape_of(x):
        size *= n
    return size * dtype_of(x).itemsize


def _pieces_of_leaves(
    lengths: Sequence[int], sizes: Sequence[int], room: int, count: int
) -> list[list[_Piece]]:
    """Return the pieces of every leaf, the largest leaves placed first.

    Each goes whole into the least full fragment if there is room for it; otherwise its rows fill
    the fragments one after the other, the least full first.

    Args:
      lengths: for every leaf how many rows it has, slices along the axis that may be cut.
      sizes: its bytes.
      room: the bytes of a fragment, if all are alike.
      count: the number of fragments.
    """
    fragments = [(0, i) for i in range(count)]  # bytes so far, and the number: a heap
    out: list[list[_Piece]] = [[] for _ in lengths]
    for leaf in sorted(range(len(lengths)), key=lambda i: -sizes[i]):
        rows = lengths[leaf]
        row = sizes[leaf] / max(rows, 1)
        start = 0
        while start < rows or not out[leaf]:
            load, fragment = heapq.heappop(fragments)
            fit = max(1, round((room - load) / row)) if row else rows
            fits_whole = not start and load + sizes[leaf] <= room
            stop = rows if fits_whole or rows <= 1 else min(rows, start + fit)
            heapq.heappush(fragments, (load + round(row * (stop - start)), fragment))
            out[leaf].append(_Piece(start, max(stop, start), fragment))
            start = max(stop, start + 1)
    return out

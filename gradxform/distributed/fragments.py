"""Cutting a tree into fragments of about equal bytes, of which one at a time is exchanged."""

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from gradxform.leaves import dtype_of, shape_of
from gradxform.types import Array, PyTree


class _Piece(NamedTuple):
    """Some rows of a leaf, in the first axis; all of a leaf that is not cut."""

    start: int
    stop: int
    fragment: int


class Fragments:
    """How the leaves of a tree are divided into fragments.

    A leaf that is too large for one fragment is cut along its first axis. Trees of pieces have a
    tuple of pieces in its place, and None for pieces of other fragments.

    Args:
      leaves: the leaves, or their shapes and dtypes.
      count: the number of fragments.
      cuts: whether leaves may be cut.
    """

    def __init__(self, leaves: Sequence[Any], count: int, cuts: bool = True) -> None:
        self.count = count
        rows = [shape_of(x)[0] if cuts and shape_of(x) else 1 for x in leaves]
        self.pieces = _divided(rows, [_bytes(x) for x in leaves], count)

    def split(self, tree: PyTree, fragment: int | None = None) -> PyTree:
        """Return the pieces of a tree, or those of one fragment."""
        leaves, treedef = jax.tree.flatten(tree)
        return treedef.unflatten(
            self._split(x, pieces, fragment) for x, pieces in zip(leaves, self.pieces, strict=True)
        )

    def dtypes(self, dtypes: Sequence[Any], fragment: int) -> list[Any]:
        """Return for every piece of a fragment the dtype of its leaf."""
        pairs = zip(dtypes, self.pieces, strict=True)
        return [dtype for dtype, pieces in pairs for p in pieces if p.fragment == fragment]

    def merged(self, tree: PyTree, pieces: PyTree, fragment: int) -> PyTree:
        """Return a tree with the pieces of one fragment in their places."""
        leaves, treedef = jax.tree.flatten(tree)
        news = treedef.flatten_up_to(pieces)
        rows = zip(leaves, news, self.pieces, strict=True)
        return treedef.unflatten(_merged(x, new, mine, fragment) for x, new, mine in rows)

    def _split(self, x: Array, pieces: Sequence[_Piece], fragment: int | None) -> Any:
        parts = tuple(
            None if fragment not in (None, p.fragment) else _rows(x, p, len(pieces)) for p in pieces
        )
        return parts if len(pieces) > 1 else parts[0]


def _rows(x: Array, piece: _Piece, pieces: int) -> Array:
    return x if pieces == 1 else lax.slice_in_dim(x, piece.start, piece.stop)


def _merged(x: Array, new: Any, pieces: Sequence[_Piece], fragment: int) -> Array:
    if len(pieces) == 1:
        return new if pieces[0].fragment == fragment else x
    for piece, part in zip(pieces, new, strict=True):
        if piece.fragment == fragment:
            x = lax.dynamic_update_slice_in_dim(x, part, piece.start, 0)
    return x


def _bytes(x: Any) -> int:
    size = 1
    for n in shape_of(x):
        size *= n
    return size * dtype_of(x).itemsize


def _divided(lengths: Sequence[int], sizes: Sequence[int], count: int) -> list[list[_Piece]]:
    """Return the pieces of every leaf, the largest leaves placed first.

    Each goes whole into the least full fragment if there is room for it; otherwise its rows fill
    the fragments one after the other, the least full first.

    Args:
      lengths: for every leaf how many rows it has.
      sizes: its bytes.
      count: the number of fragments.
    """
    room = -(-sum(sizes) // count)
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

"""One layer of arrays that hold all layers of a scan, in place."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from gradxform.leaves.storage.stored import StoredArray, is_stored
from gradxform.numerics.overflow import cast_slot
from gradxform.types import Array


def rows_of(x: Any) -> Sequence[tuple[Array, int]]:
    """Return the arrays of a leaf, and how many of its rows an entry of each spans."""
    return x.by_rows() if is_stored(x) else ((x, 1),)


def with_rows(like: Any, arrays: Sequence[Array], shape: tuple[int, ...]) -> Any:
    """Return a leaf of that shape in the form of another, of what `rows_of` returns."""
    return like.with_rows(arrays, shape) if is_stored(like) else arrays[0]


class StackedLayer(StoredArray):
    """One layer of a stack (L, ...), which is cut and filled where it is.

    To a rule it is an array (1, ...), or without that first axis. What it is made of is the stack:
    rows of a layer are rows of all layers, from `first_row` on.
    """

    part_names = ("stack", "index")

    def __init__(self, stack: Any, index: Any, is_bare: bool = False) -> None:
        self.stack, self.index, self.is_bare = stack, index, is_bare

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the layer."""
        return tuple(self.stack.shape[1:] if self.is_bare else (1, *self.stack.shape[1:]))

    @property
    def dtype(self) -> Any:
        """The dtype in which a rule sees it."""
        return self.stack.dtype

    @property
    def kept_as(self) -> str:
        """The form of the stack."""
        return "a layer of a stack"

    @property
    def first_row(self) -> Any:
        """Where its rows begin among those of all layers."""
        return self.index * self.stack.shape[1] if self.is_bare else self.index

    def bare(self) -> "StackedLayer":
        """Return it as an array without the first axis."""
        return StackedLayer(self.stack, self.index, True)

    def layered(self) -> "StackedLayer":
        """Return it as an array (1, ...)."""
        return StackedLayer(self.stack, self.index)

    def layer(self) -> Any:
        """Return the layer by itself, (1, ...), in the form of the stack."""
        arrays = [lax.dynamic_slice_in_dim(x, self.index, 1, 0) for x, _ in rows_of(self.stack)]
        return with_rows(self.stack, arrays, (1, *self.stack.shape[1:]))

    def load(self) -> Array:
        """Return the array of the layer."""
        one = self.layer()
        x = one.load() if is_stored(one) else one
        return x[0] if self.is_bare else x

    def store(self, new: Array) -> "StackedLayer":
        """Return the stack with another layer."""
        new, one = new[None] if self.is_bare else new, self.layer()
        new = one.store(new) if is_stored(one) else cast_slot(new, one)
        arrays = [
            lax.dynamic_update_slice_in_dim(old, x, self.index, 0)
            for (old, _), (x, _) in zip(rows_of(self.stack), rows_of(new), strict=True)
        ]
        stack = with_rows(new, arrays, self.stack.shape)
        return StackedLayer(stack, self.index, self.is_bare)

    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return the arrays of all layers."""
        rows = rows_of(self.stack)
        if not self.is_bare:
            return tuple(rows)
        return tuple((x.reshape(-1, *x.shape[2:]), 1) for x, _ in rows)

    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> Any:
        """Return some rows by themselves."""
        return with_rows(self.stack, arrays, shape)

    def with_all_rows(self, arrays: Sequence[Array], tile: Any) -> "StackedLayer":
        """Return the same layer of other arrays of all layers, in the form of a tile."""
        shaped = [
            x.reshape(old.shape) for x, (old, _) in zip(arrays, rows_of(self.stack), strict=True)
        ]
        stack = with_rows(tile, shaped, self.stack.shape)
        return StackedLayer(stack, self.index, self.is_bare)

    def placed(self, place: Any, replicated: Any) -> "StackedLayer":
        """Return the shardings of what it consists of; no state keeps it."""
        raise NotImplementedError


jax.tree_util.register_pytree_node(
    StackedLayer,
    lambda x: ((x.stack, x.index), x.is_bare),
    lambda is_bare, children: StackedLayer(*children, is_bare),
)

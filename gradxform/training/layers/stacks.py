"""Trees whose leaves are stacks of layers: in references, and one layer of them."""

from typing import Any

import jax
from jax import lax

from gradxform.leaves.storage import StackedLayer, StoredArray, is_stored, rows_of, with_rows
from gradxform.types import Array

__all__ = []


def layer_of(x: Array, i: Any) -> Array:
    """Return one layer of a stack; the first axis stays, so that shards can be read."""
    return lax.dynamic_slice_in_dim(x, i, 1, 0)


def is_cut_by_rows(leaf: StoredArray) -> bool:
    """Whether a stored array of layers has an index for each of them in its arrays."""
    return bool(leaf.is_by_rows) and all(n == 1 for _, n in leaf.by_rows())


class Stack:
    """A leaf of the parameters or of the state, of all layers, in references."""

    def __init__(self, leaf: Any) -> None:
        by_rows = isinstance(leaf, StoredArray) and is_cut_by_rows(leaf)
        self.leaf = leaf.opened(1) if by_rows else leaf
        # Of another form, a layer is a layer of each of its arrays.
        self.is_whole = isinstance(leaf, StoredArray) and not by_rows
        self.refs = [jax.new_ref(x) for x in self._stacks(self.leaf)]
        self.shared = [jax.new_ref(x) for x in self._shared(self.leaf)]

    def _stacks(self, leaf: Any) -> list[Array]:
        return jax.tree.leaves(leaf) if self.is_whole else [x for x, _ in rows_of(leaf)]

    def _shared(self, leaf: Any) -> list[Array]:
        """Return what all layers share, such as a key: each finds it as it was, and sets it."""
        stacks = self._stacks(leaf)
        return [x for x in jax.tree.leaves(leaf) if not any(x is stack for stack in stacks)]

    def _of(self, arrays: list[Array], shape: tuple[int, ...]) -> Any:
        if self.is_whole:
            return jax.tree.unflatten(jax.tree.structure(self.leaf), arrays)
        return with_rows(self.leaf, arrays, shape)

    def in_place(self, i: Any) -> Any:
        """Return a layer where it is, if its form allows it."""
        if self.is_whole:
            return self.layer(i)
        return StackedLayer(self._of([ref[...] for ref in self.refs], self.leaf.shape), i)

    def layer(self, i: Any) -> Any:
        """Return a layer by itself, with a first axis of length 1."""
        arrays = [layer_of(ref[...], i) for ref in self.refs]
        return self._of(arrays, (1, *self.leaf.shape[1:]))

    def set(self, i: Any, new: Any) -> None:
        """Put a layer in its place."""
        is_in_place = isinstance(new, StackedLayer)
        leaf = new.stack if is_in_place else new
        for ref, x in zip(self.refs, self._stacks(leaf), strict=True):
            ref[...] = x if is_in_place else lax.dynamic_update_slice_in_dim(ref[...], x, i, 0)
        for ref, x in zip(self.shared, self._shared(leaf), strict=True):
            ref[...] = x

    def end(self) -> Any:
        """Return the leaf of all layers; nothing else may be done with it."""
        leaf = self._of([jax.freeze(ref) for ref in self.refs], self.leaf.shape)
        if self.shared:
            new = iter([jax.freeze(ref) for ref in self.shared])
            shared, (leaves, treedef) = self._shared(leaf), jax.tree.flatten(leaf)
            leaf = treedef.unflatten(
                [next(new) if any(x is one for one in shared) else x for x in leaves]
            )
        return leaf.closed() if isinstance(leaf, StoredArray) and not self.is_whole else leaf


def leaves_of_state(state: Any) -> list[Any]:
    """Return the leaves of a state; stored arrays are leaves."""
    return jax.tree.leaves(state, is_leaf=is_stored)

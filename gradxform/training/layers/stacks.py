"""Trees whose leaves are stacks of layers: in references, and one layer of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.leaves.storage import StackedLayer, StoredArray, is_stored, rows_of, with_rows
from gradxform.types import Array


def layer_of(x: Array, i: Any) -> Array:
    """Return one layer of a stack; the first axis stays, so that shards can be read."""
    return lax.dynamic_slice_in_dim(x, i, 1, 0)


class Stack:
    """A leaf of the parameters or of the state, of all layers, in references."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf.opened(1) if isinstance(leaf, StoredArray) else jnp.asarray(leaf)
        self.refs = [jax.new_ref(x) for x, _ in rows_of(self.leaf)]

    def now(self) -> Any:
        """Return the leaf of all layers as it is now."""
        return with_rows(self.leaf, [ref[...] for ref in self.refs], self.leaf.shape)

    def in_place(self, i: Any) -> StackedLayer:
        """Return a layer where it is."""
        return StackedLayer(self.now(), i)

    def layer(self, i: Any) -> Any:
        """Return a layer by itself, with a first axis of length 1."""
        return self.in_place(i).layer()

    def set(self, i: Any, new: Any) -> None:
        """Put a layer in its place."""
        if isinstance(new, StackedLayer):
            for ref, (x, _) in zip(self.refs, rows_of(new.stack), strict=True):
                ref[...] = x
            return
        for ref, (x, _) in zip(self.refs, rows_of(new), strict=True):
            ref[...] = lax.dynamic_update_slice_in_dim(ref[...], x, i, 0)

    def end(self) -> Any:
        """Return the leaf of all layers; nothing else may be done with it."""
        leaf = with_rows(self.leaf, [jax.ref.freeze(ref) for ref in self.refs], self.leaf.shape)
        return leaf.closed() if isinstance(leaf, StoredArray) else leaf


def leaves_of_state(state: Any) -> list[Any]:
    """Return the leaves of a state; stored arrays are leaves."""
    return jax.tree.leaves(state, is_leaf=is_stored)

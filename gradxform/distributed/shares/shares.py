"""The parts that each device of a replica keeps of arrays that belong to the whole replica."""

import functools

import jax
import jax.numpy as jnp

from gradxform.distributed.shares.division import Division, division_of_shape
from gradxform.distributed.shares.fragments import Fragments
from gradxform.distributed.wire.axis import as_varying, knows_what_varies, size_of, varies_along
from gradxform.types import Array, Params, PyTree


class Shares:
    """How the devices along the inner axes of a replica divide its parameters among them.

    The axis of a parameter along which fragments take turns is not divided, so that each device has
    its part of every fragment. Every device keeps a parameter whole that the axes do not divide.

    Args:
      params: the parameters of one replica, which all its devices have.
      axes: the names of the inner axes; without any, every device keeps all.
      pieces: how fragments divide the parameters.
    """

    def __init__(self, params: Params, axes: tuple[str, ...], pieces: Fragments) -> None:
        self.axes, self._pieces = axes, pieces
        sizes = {name: size_of(name) for name in axes}
        rows = zip(jax.tree.leaves(params), pieces.axes, pieces.pieces, strict=True)
        self._divisions = [
            division_of_shape(jnp.shape(p), sizes, kept=axis if len(parts) > 1 else None)
            for p, axis, parts in rows
        ]

    def own(self, params: Params) -> PyTree:
        """Return this device's parts of the parameters."""
        if not self.axes:
            return params
        leaves, treedef = jax.tree.flatten(params)
        pairs = zip(self._divisions, leaves, strict=True)
        return treedef.unflatten([d.cut(jnp.asarray(p)) for d, p in pairs])

    def slices(self, fragment: int | None = None) -> list[tuple[str, ...]] | None:
        """Return, for every piece of a fragment, the axes along which all devices have it.

        None without axes to divide the parameters.
        """
        if not self.axes:
            return None
        pairs = zip(self._divisions, self._pieces.pieces, strict=True)
        return [d.whole for d, parts in pairs for p in parts if fragment in (None, p.fragment)]

    def assigned(self, params: Params, parts: PyTree, fragment: int) -> Params:
        """Return the parameters with this fragment's pieces; each device has its part of them.

        Args:
          params: the parameters before.
          parts: this device's parts of the pieces, the trees that `Fragments.split` returns.
          fragment: the number of the fragment.
        """
        if self.axes:
            ps, treedef = jax.tree.flatten(params)
            rows = zip(self._divisions, ps, treedef.flatten_up_to(parts), strict=True)
            whole = [jax.tree.map(functools.partial(_whole, d, p), new) for d, p, new in rows]
            parts = treedef.unflatten(whole)
        return self._pieces.merged(params, parts, fragment)

    def marked(self, pieces: PyTree, params: Params) -> PyTree:
        """Mark pieces as varying along the axes that divide them."""
        treedef = jax.tree.structure(params)
        pairs = zip(self._divisions, treedef.flatten_up_to(pieces), strict=True)
        return treedef.unflatten([as_varying(x, d.axes) for d, x in pairs])


def _whole(division: Division, p: Array, piece: Array) -> Array:
    tracked_axes = [name for name in division.axes if knows_what_varies(name)]
    return division.gather(
        piece, bool(tracked_axes) and not any(varies_along(p, name) for name in tracked_axes)
    )

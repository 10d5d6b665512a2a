"""Whose the arrays of a state are, and which dimensions of their parameters they have."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.leaves import Path, dtype_of, flatten_with_names, shape_of
from gradxform.leaves.storage import is_stored
from gradxform.run_states.migration.layout import StateLayout
from gradxform.tree.owners import owners_of
from gradxform.types import Array, Params, SupportsTransform

Shape = tuple[int, ...]


class Cut(NamedTuple):
    """How a part of a transform cuts arrays into the pieces that devices have.

    Attributes:
      ways: the number of devices.
      of: returns this device's piece of an array like a parameter.
    """

    ways: int
    of: Callable[[Array], Array]

    def shape_of_piece(self, shape: Shape) -> Shape:
        """Return the shape of a piece."""
        return tuple(jax.eval_shape(self.of, jax.ShapeDtypeStruct(shape, jnp.float32)).shape)


# A cut, or None for whole parameters, and for each dimension its length and that in a probe.
_Lengths = tuple[Cut | None, list[tuple[int, int]]]


class SlotAxes(NamedTuple):
    """What is known of an array of a state.

    Attributes:
      owner: the index of its parameter; None for an array that belongs to all of them.
      dims: for each axis the dimension of the parameter that it is, or None; None if unknown.
      cut: the cut of the parameter to whose pieces it belongs; None for the whole parameter.
      is_joint: whether it is a slot that holds all parameters in one array.
    """

    owner: int | None
    dims: tuple[int | None, ...] | None
    cut: Cut | None
    is_joint: bool

    def mixture(self, shape: Shape, ndim: int) -> str:
        """Return why entries of a parameter do not have entries of their own here, or "".

        Args:
          shape: the shape of this array.
          ndim: the number of dimensions of the parameter.
        """
        if self.dims is None:
            return "its axes are not those of the parameter"
        own = [d for d in self.dims if d is not None]
        if len(set(own)) < len(own):
            return "two of its axes are the same one of the parameter, as those of a preconditioner"
        has_more = any(d is None and n > 1 for d, n in zip(self.dims, shape, strict=True))
        if has_more and len(own) < ndim:
            return "it mixes the entries along an axis of the parameter"
        return ""


def slot_axes(
    tx: SupportsTransform, params: Params, layout: StateLayout, cuts: Sequence[Cut] = ()
) -> list[SlotAxes]:
    """Return what is known of every array of `layout_of(tx, params)`; nothing is computed.

    Lengths alone do not tell the axes of a square matrix apart. So `init` is traced for parameters
    of other lengths, each dimension longer or shorter by another number: the axes that follow a
    dimension are that dimension.

    Args:
      tx: the transform.
      params: the parameters, or their shapes and dtypes.
      layout: their layout.
      cuts: how parts of the transform cut parameters into the pieces that devices have.
    """
    named, treedef = flatten_with_names(params)
    paths, shapes = [path for path, _ in named], [tuple(shape_of(x)) for _, x in named]
    seen = layout.treedef.unflatten([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in layout.arrays])
    owners = owners_of(tx, params, paths, seen, by_path=paths != [()])
    step = math.prod(cut.ways for cut in cuts)
    probes: list[tuple[list[Shape], list[list[_Lengths]]]] = []
    ways = itertools.product(_OF_EQUAL_LENGTHS, (step, -step))
    for others in dict.fromkeys(
        tuple(_other_lengths(shape, by, order) for shape in shapes) for order, by in ways
    ):
        leaves = _leaf_shapes(tx, treedef.unflatten(map(_sized, named, others)))
        if len(leaves) == len(layout.arrays):
            views = [_views(*pair, cuts) for pair in zip(shapes, others, strict=True)]
            probes.append((leaves, views))
    out = []
    of_parts = layout.owners()
    for k, (array, (owner, _, _)) in enumerate(zip(layout.arrays, owners, strict=True)):
        part, rest = of_parts[k]
        dims, cut_of = None, None
        for leaves, views in probes:
            for cut, lengths in views[owner] if owner is not None else ():
                found = _dims(array.shape, leaves[k], lengths)
                if dims is None and found is not None:
                    dims, cut_of = found, cut
        is_joint = owner is None and rest[:1] and rest[0] in part.slots and array.shape != ()
        out.append(SlotAxes(owner, dims, cut_of, bool(is_joint)))
    return out


# Of equal lengths the last one becomes the longest, or the first one, as rules take either; or they
# stay equal, which tells only pieces of them apart.
_OF_EQUAL_LENGTHS: Sequence[Callable[[int], int]] = (lambda d: d, lambda d: -d, lambda d: 0)


def _other_lengths(shape: Shape, step: int, place: Callable[[int], int]) -> Shape:
    """Return a shape with the order of its lengths, each of which differs by another number."""
    keys = [(n, place(d)) for d, n in enumerate(shape)]
    ranks = sorted(set(keys), reverse=step < 0)
    # No sum of some of these numbers is another one.
    return tuple(key[0] + step * 2 ** ranks.index(key) for key in keys)


def _sized(named: tuple[Path, Any], shape: Shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype_of(named[1]))


def _leaf_shapes(tx: SupportsTransform, params: Params) -> list[Shape]:
    """Return the shapes of the arrays that `init` returns; none if it refuses such parameters."""
    if any(n < 0 for x in jax.tree.leaves(params) for n in x.shape):
        return []
    try:
        state = jax.eval_shape(tx.init, params)
    except Exception:  # an init may raise anything; what is not explained so is refused
        return []
    return [tuple(x.shape) for x in jax.tree.leaves(state, is_leaf=is_stored)]


def _views(shape: Shape, other: Shape, cuts: Sequence[Cut]) -> list[_Lengths]:
    """Return the two lengths of each dimension, as a whole and in every cut."""
    views: list[_Lengths] = [(None, list(zip(shape, other, strict=True)))]
    for cut in cuts:
        pieces = cut.shape_of_piece(shape), cut.shape_of_piece(other)
        whole = zip(shape, other, *pieces, strict=True)
        if all(
            n * m2 == n2 * m for n, n2, m, m2 in whole
        ):  # both are cut along the same dimensions
            views.append((cut, list(zip(*pieces, strict=True))))
    return views


def _dims(shape: Shape, other: Shape, of: list[tuple[int, int]]) -> tuple[int | None, ...] | None:
    """Return the dimensions that an array has, from two shapes of it and two lengths of each."""
    if len(shape) != len(other):
        return None
    dims: list[int | None] = []
    for lengths in zip(shape, other, strict=True):
        if lengths[0] != lengths[1] and of.count(lengths) != 1:
            return None
        dims.append(None if lengths[0] == lengths[1] else of.index(lengths))
    return tuple(dims)

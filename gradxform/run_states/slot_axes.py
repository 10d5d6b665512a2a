"""Whose the arrays of a state are, and which dimensions of their parameters they have."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from gradxform.leaves import Path, dtype_of, flatten_with_names, shape_of
from gradxform.leaves.storage import is_stored
from gradxform.run_states.migration.layout import StateLayout
from gradxform.tree.owners import owners_of
from gradxform.types import Params, SupportsTransform

Shape = tuple[int, ...]


class SlotAxes(NamedTuple):
    """What is known of an array of a state.

    Attributes:
      owner: the index of its parameter; None for an array that belongs to all of them.
      dims: for each axis the dimension of the parameter that it is, or None; None if unknown.
      is_joint: whether it is a slot that holds all parameters in one array.
    """

    owner: int | None
    dims: tuple[int | None, ...] | None
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
    tx: SupportsTransform, params: Params, layout: StateLayout, ways: int = 1
) -> list[SlotAxes]:
    """Return what is known of every array of `layout_of(tx, params)`; nothing is computed.

    Lengths alone do not tell the axes of a square matrix apart. So `init` is traced for parameters
    of other lengths, each dimension longer or shorter by another number: the axes that follow a
    dimension are that dimension.

    Args:
      tx: the transform.
      params: the parameters, or their shapes and dtypes.
      layout: their layout.
      ways: into how many pieces devices may cut a dimension.
    """
    named, treedef = flatten_with_names(params)
    shapes = [tuple(shape_of(x)) for _, x in named]
    seen = layout.treedef.unflatten([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in layout.arrays])
    owners = [i for i, _, _ in owners_of(tx, params, [path for path, _ in named], seen)]
    if [path for path, _ in named] == [()]:  # every path contains this one
        declared = [part.has_slots and rest[1:] in part.places for part, rest in layout.owners()]
        owners = [0 if is_slot else None for is_slot in declared]
    probes = []
    for sign in 1, -1:
        others = [_other_lengths(shape, sign * ways) for shape in shapes]
        leaves = _leaf_shapes(tx, treedef.unflatten(map(_sized, named, others)))
        if len(leaves) == len(layout.arrays):
            probes.append((leaves, others))
    out = []
    parts = layout.owners()
    for k, (array, owner) in enumerate(zip(layout.arrays, owners, strict=True)):
        part, rest = parts[k]
        is_joint = owner is None and part.has_slots and rest[1:] in part.places and array.shape
        found = [
            _dims(array.shape, leaves[k], shapes[owner], others[owner], ways)
            for leaves, others in probes
            if owner is not None
        ]
        dims = next((x for x in found if x is not None), None)
        out.append(SlotAxes(owner, dims, bool(is_joint)))
    return out


def _other_lengths(shape: Shape, by: int) -> Shape:
    """Return a shape with the order of its lengths, each of which differs by another number."""
    order = sorted(range(len(shape)), key=lambda d: shape[d])
    # No sum of some of these numbers is another one.
    more = [2**k for k in range(len(shape))][:: 1 if by > 0 else -1]
    out = list(shape)
    for d, n in zip(order, more, strict=True):
        out[d] += n * by
    return tuple(out)


def _sized(named: tuple[Path, Any], shape: Shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype_of(named[1]))


def _leaf_shapes(tx: SupportsTransform, params: Params) -> list[Shape]:
    """Return the shapes of the arrays that `init` returns; none if it refuses such parameters."""
    if any(n < 0 for x in jax.tree.leaves(params) for n in x.shape):
        return []
    try:
        state = jax.eval_shape(tx.init, params)
    except Exception:  # an init may raise anything
        return []
    return [tuple(x.shape) for x in jax.tree.leaves(state, is_leaf=is_stored)]


def _dims(
    shape: Shape, other: Shape, of: Shape, other_of: Shape, ways: int
) -> tuple[int | None, ...] | None:
    """Return the dimensions of a parameter that an array has, from two shapes of both."""
    if len(shape) != len(other):
        return None
    dims: list[int | None] = []
    for lengths in zip(shape, other, strict=True):
        follows = [d for d, n in enumerate(zip(of, other_of, strict=True)) if _is(lengths, n, ways)]
        if lengths[0] != lengths[1] and not follows:
            return None
        dims.append(follows[0] if follows else None)
    return tuple(dims)


def _is(lengths: Sequence[int], of: Sequence[int], ways: int) -> bool:
    """Whether an axis has the two lengths of a dimension, or of the pieces that devices have."""
    (m, m2), (n, n2) = lengths, of
    return (m, m2) == (n, n2) or (ways > 1 and 0 < m < n and n % m == 0 and n * m2 == n2 * m)

"""Names of mesh axes that Flax keeps in a box around a parameter, for the arrays of a state.

Linen has `nn.Partitioned`, and `flax.nnx` variables with `out_sharding`. A state that is made of
such parameters has a box around each slot too. A slot of another shape has dimensions of its own,
so its box needs names of its own.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from gradxform.leaves.slot_dims import kept_dims, owner_of
from gradxform.leaves.storage import is_stored
from gradxform.leaves.trees import Path, flatten_with_names, is_variable, names_of
from gradxform.types import Params, PyTree


def boxed_by_own_dims(state: PyTree, params: Params, has_fragments: Callable[[], bool]) -> PyTree:
    """Return a state in whose boxes every array has the names of the dimensions that it keeps.

    A box around several arrays has the names in which they agree.

    Args:
      state: what `init(params)` returns.
      params: the parameters.
      has_fragments: returns whether a part of the transform sends its parameters in fragments.
    """
    if "flax.core.meta" not in sys.modules:
        return state
    named, _ = flatten_with_names(params, is_variable)
    boxes = {
        path: box
        for path, box in named
        if is_variable(box) and len(jax.tree.leaves(box)) == 1 and _metadata_with_names(box)
    }
    if not boxes:
        return state
    others = {path for path, _ in named}
    slots, treedef = flatten_with_names(state, is_variable)
    out = []
    for path, slot in slots:
        owner, rest = owner_of(path, dict.fromkeys(others)) if is_variable(slot) else (None, ())
        if owner in boxes and _metadata_with_names(slot):
            dims_of = functools.partial(kept_dims, names=path, has_fragments=has_fragments())
            slot = _slot_box(boxes[owner], slot, rest, dims_of)
        out.append(slot)
    return treedef.unflatten(out)


# Where a box keeps names: Linen's `names`, and two kinds of metadata of nnx.
_KINDS_OF_NAMES = ("names", "out_sharding", "optimizer_sharding")


def _metadata_with_names(box: Any) -> dict[str, tuple[Any, ...]]:
    """Return the names of a box by where it keeps them."""
    metadata = getattr(box, "metadata", None)
    if callable(getattr(box, "get_metadata", None)):
        metadata = box.get_metadata()
    elif not isinstance(metadata, dict):
        metadata = {"names": getattr(box, "names", None)}
    found = {}
    for kind in _KINDS_OF_NAMES:
        names = metadata.get(kind)
        names = names.spec if isinstance(names, NamedSharding) else names
        if isinstance(names, tuple | list | PartitionSpec):
            found[kind] = tuple(names)
    return found


def _slot_box(box: Any, slot: Any, rest: Path, dims_of: Callable[..., Any]) -> Any:
    """Return the box of a slot with its own names, from the box of its parameter."""
    (value,) = jax.tree.leaves(box)
    shape = jnp.shape(value)
    arrays, _ = jax.tree_util.tree_flatten_with_path(slot, is_leaf=is_stored)
    if not arrays or [jnp.shape(x) for _, x in arrays] == [shape]:
        if not any(is_stored(x) for _, x in arrays):
            return slot
    sizes = _sizes_of_axes(box)
    new = {}
    for kind, names in _metadata_with_names(box).items():
        names += (None,) * (len(shape) - len(names))
        own = []
        for path, x in arrays:
            # The first entry of a path is the box, which the path of its array does not show.
            dims = dims_of(shape, jnp.shape(x), rest=(*rest, *names_of(path[1:])))
            entries = tuple(None if d is None else names[d] for d in dims)
            own += _entries_of_parts(x, entries, sizes)
        rank = min(map(len, own))
        by_dim = zip(*[entries[:rank] for entries in own], strict=True)
        new[kind] = tuple(e[0] if len(set(e)) == 1 else None for e in by_dim)
    return _with_metadata(slot, new)


def _entries_of_parts(
    x: Any, entries: tuple[Any, ...], sizes: dict[str, int]
) -> list[tuple[Any, ...]]:
    """Return the entries for each of the arrays that make up an array of a state."""
    if not is_stored(x):
        return [entries]
    places = x.placed(PartitionSpec(*entries), PartitionSpec())
    specs = jax.tree.leaves(places, is_leaf=lambda p: isinstance(p, PartitionSpec))
    out = []
    for spec, part in zip(specs, jax.tree.leaves(x), strict=True):
        whole = (*spec, *[None] * (jnp.ndim(part) - len(spec)))
        pairs = zip(whole, part.shape, strict=True)
        out.append(tuple(e if n % _ways_of(e, sizes) == 0 else None for e, n in pairs))
    return out


def _ways_of(entry: Any, sizes: dict[str, int]) -> int:
    """Return into how many pieces an entry cuts a dimension, as far as the axes are known."""
    axes = entry if isinstance(entry, tuple) else (entry,)
    return math.prod(sizes.get(axis, 1) for axis in axes)


def _sizes_of_axes(box: Any) -> dict[str, int]:
    mesh = getattr(box, "mesh", None)
    if mesh is None:
        mesh = jax.sharding.get_abstract_mesh()
    return dict(mesh.shape)


def _with_metadata(box: Any, new: dict[str, tuple[Any, ...]]) -> Any:
    if callable(getattr(box, "get_metadata", None)):
        return box.copy(**new)
    if isinstance(getattr(box, "metadata", None), dict):
        return box.replace(metadata={**box.metadata, **new})
    return box.replace(**new)

"""The sharding of every leaf of an optimizer's state, from those of the parameters."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from gradxform.base import check_transform
from gradxform.errors import shown
from gradxform.leaves import Path, path_at, path_names, path_str
from gradxform.storage import StoredArray, in_memory, is_stored
from gradxform.tree.state import map_params
from gradxform.types import Params, PyTree

__all__ = [
    "state_sharding",
]


# How an array is sharded.
Place = NamedSharding | SingleDeviceSharding | PartitionSpec


class _Parameter(NamedTuple):
    """A parameter, and how it is sharded."""

    path: Path
    shape: tuple[int, ...]
    place: Place


def state_sharding(tx: Any, params: Params, param_shardings: PyTree = None) -> PyTree:
    """Return the sharding of every leaf of `tx.init(params)`.

    A leaf with the shape of its parameter is sharded like the parameter. A leaf with some of the
    parameter's dimensions (the row and column means of Adafactor, one number per row of a table,
    the matrices of Shampoo) is sharded like the parameter along these. Counts, keys and everything
    else are replicated. It works for every transform and chain, Optax's too: `init` is only traced.

        places = state_sharding(tx, params, {"kernel": NamedSharding(mesh, P(None, "model")), ...})
        state = jax.jit(tx.init, out_shardings=places)(params)

    Dimensions are matched by their lengths. If the parameter has several dimensions of one length,
    the k-th of several arrays (Shampoo's matrices) has the k-th dimension, the column means of
    Adafactor have the last one that fits, and every other leaf has the first.

    Args:
      tx: a transform, ours or Optax's; not one that needs a mesh axis (see `zero1.state_specs`).
      params: the parameters, or their shapes and dtypes.
      param_shardings: for every parameter a `NamedSharding` or a `PartitionSpec`, or one for all.
        Defaults to the shardings that the parameters have.

    Returns:
      A tree like the state, of the same kind as `param_shardings`: `NamedSharding`s of the same
      mesh and memory (that of the host for what `offload_state` keeps there), or `PartitionSpec`s.

    Raises:
      TypeError: for any other kind of sharding.
      ValueError: if the shardings do not have the structure of the parameters, or a spec has more
        entries than its parameter has dimensions.
    """
    check_transform("state_sharding", tx, "tx")
    parameters = _parameters(params, param_shardings)
    replicated = _replicated(parameters)
    jaxpr, kept = jax.make_jaxpr(tx.init, return_shape=True)(params)
    state = jax.tree.map(_as_seen, kept, is_leaf=is_stored)
    indices = jax.tree.unflatten(jax.tree.structure(params), list(range(len(parameters))))

    def owner_of(_: Any, index: Any) -> int:
        # One array for all parameters, as inside `flatten`, meets the whole tree of indices.
        return index if isinstance(index, int) else _NO_OWNER

    try:
        owners = map_params(tx, owner_of, state, indices, transform_non_params=lambda _: _NO_OWNER)
    except (TypeError, ValueError):  # `init` looks into its parameters: match leaves by path
        owners = jax.tree.map(lambda _: _NO_OWNER, state)
    flat, treedef = jax.tree_util.tree_flatten_with_path(state)
    out = []
    for (path, leaf), owner in zip(flat, jax.tree.leaves(owners), strict=True):
        names = path_names(path)
        if owner == _NO_OWNER:
            parameter, rest = _owner_by_path(names, parameters)
        else:
            parameter, rest = parameters[owner], ()
        out.append(replicated if parameter is None else _leaf_place(parameter, leaf, names, rest))
    forms = jax.tree.leaves(kept, is_leaf=is_stored)
    pairs = zip(forms, out, strict=True)
    places = jax.tree.unflatten(treedef, [_as_stored(x, at, replicated) for x, at in pairs])
    types = jax.tree.unflatten(jax.tree.structure(kept), jaxpr.out_avals)
    return jax.tree.map(in_memory, places, types, is_leaf=_is_place)


def _as_seen(x: Any) -> Any:
    """Return the shape that a rule sees of what is stored."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, StoredArray) else x


def _as_stored(x: Any, place: Place, replicated: Place) -> Any:
    """Return the places of the arrays of which a leaf consists, from that of the leaf."""
    if not isinstance(x, StoredArray):
        return place
    placed = x.placed(place, replicated)
    return jax.tree.map(_fitting, placed, x, is_leaf=lambda x: isinstance(x, Place))


def _fitting(place: Place, array: Any) -> Place:
    """Return a place without the axes that do not divide the array, such as that of its scales."""
    if not isinstance(place, NamedSharding):
        return place
    sizes = [
        math.prod(place.mesh.shape[name] for name in (axes if isinstance(axes, tuple) else (axes,)))
        if axes
        else 1
        for axes in place.spec
    ]
    entries = zip(place.spec, sizes, array.shape, strict=False)
    return _with_entries(place, tuple(axes if n % size == 0 else None for axes, size, n in entries))


_NO_OWNER = -1


def _parameters(params: Params, shardings: PyTree) -> list[_Parameter]:
    leaves, treedef = jax.tree.flatten(params)
    if shardings is None:
        places = [getattr(p, "sharding", None) for p in leaves]
    elif _is_place(shardings):
        places = [shardings] * len(leaves)
    else:
        places, other = jax.tree.flatten(shardings, is_leaf=_is_place)
        if other != treedef:
            places = _by_names(params, shardings)
    out = []
    for i, (p, place) in enumerate(zip(leaves, places, strict=True)):
        path = path_at(params, i)
        if not isinstance(place, Place):
            raise TypeError(
                f"state_sharding: the sharding of {path} must be a NamedSharding or a "
                f"PartitionSpec, got {shown(place)}."
            )
        entries = _entries(place)
        if len(entries) > jnp.ndim(p):
            raise ValueError(
                f"state_sharding: {PartitionSpec(*entries)} has more entries than {path} of shape "
                f"{jnp.shape(p)} has dimensions."
            )
        out.append(_Parameter(_names_at(params, i), jnp.shape(p), place))
    return out


def _is_place(x: Any) -> bool:
    return isinstance(x, Sharding | PartitionSpec)


def _names_at(params: Params, i: int) -> Path:
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return path_names(flat[i][0])


def _by_names(params: Params, shardings: PyTree) -> list[Any]:
    """Return the shardings of the parameters from a tree of other containers."""
    flat, _ = jax.tree_util.tree_flatten_with_path(shardings, is_leaf=_is_place)
    places = {path_names(path): place for path, place in flat}
    paths = [path_names(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for path in paths:
        if path not in places:
            raise ValueError(f"state_sharding: the parameter {path_str(path)} has no sharding.")
    for path in places:
        if path not in paths:
            raise ValueError(
                f"state_sharding: param_shardings has a sharding for {path_str(path)}, which is "
                "not a parameter."
            )
    return [places[path] for path in paths]


def _entries(place: Place) -> tuple[Any, ...]:
    """Return the entries of a partition spec; an empty tuple for a single device."""
    if isinstance(place, SingleDeviceSharding):
        return ()
    return tuple(place.spec if isinstance(place, NamedSharding) else place)


def _replicated(parameters: list[_Parameter]) -> Place:
    """Return the place of a leaf that does not belong to a parameter."""
    return _with_entries(parameters[0].place, ()) if parameters else PartitionSpec()


def _with_entries(place: Place, entries: tuple[Any, ...]) -> Place:
    """Return a place like `place`, but with these entries of a partition spec."""
    while entries and entries[-1] is None:
        entries = entries[:-1]
    if isinstance(place, NamedSharding):
        return NamedSharding(place.mesh, PartitionSpec(*entries), memory_kind=place.memory_kind)
    return place if isinstance(place, SingleDeviceSharding) else PartitionSpec(*entries)


def _owner_by_path(
    names: Path, parameters: list[_Parameter]
) -> tuple[_Parameter | None, tuple[str, ...]]:
    """Return the parameter whose path the path of a leaf contains, and the names after it."""
    best: tuple[int, int, _Parameter] | None = None
    for parameter in parameters:
        length = len(parameter.path)
        for start in range(len(names) - length + 1):
            if names[start : start + length] != parameter.path:
                continue
            if best is None or (length, start) >= best[:2]:
                best = (length, start, parameter)
    if best is None:
        return None, ()
    length, start, parameter = best
    return parameter, names[start + length :]


def _leaf_place(parameter: _Parameter, leaf: Any, names: Path, rest: tuple[str, ...]) -> Place:
    """Return the place of a leaf that belongs to a parameter.

    Args:
      parameter: the parameter.
      leaf: the leaf of the state.
      names: its path.
      rest: the end of its path, after the path of the parameter.
    """
    shape, entries = parameter.shape, _entries(parameter.place)
    if leaf.shape == shape:
        return parameter.place
    dims = _dims_of_kth_array(shape, leaf.shape, rest)
    if dims is None and "v_col" in names:
        dims = _last_dims(shape, leaf.shape)
    elif dims is None:
        dims = _first_dims(shape, leaf.shape)
    entries += (None,) * (len(shape) - len(entries))
    return _with_entries(parameter.place, tuple(None if d is None else entries[d] for d in dims))


# For every dimension of a leaf, the matching dimension of the parameter.
Dims = list[int | None]


def _dims_of_kth_array(
    shape: tuple[int, ...], leaf_shape: tuple[int, ...], rest: tuple[str, ...]
) -> Dims | None:
    """Match the first dimension of the k-th of several arrays to the parameter's k-th."""
    k = int(rest[-1]) if rest and rest[-1].isdigit() else len(shape)
    if k >= len(shape) or not leaf_shape or leaf_shape[0] != shape[k]:
        return None
    return [k] + [None] * (len(leaf_shape) - 1)


def _first_dims(shape: tuple[int, ...], leaf_shape: tuple[int, ...]) -> Dims:
    """Match each dimension of a leaf to the first of its length after the one matched before."""
    dims: Dims = []
    start = 0
    for size in leaf_shape:
        dim = next((d for d in range(start, len(shape)) if shape[d] == size), None)
        dims.append(dim)
        start = start if dim is None else dim + 1
    return dims


def _last_dims(shape: tuple[int, ...], leaf_shape: tuple[int, ...]) -> Dims:
    """Match as `_first_dims` does, but from the last dimension to the first."""
    from_end = _first_dims(shape[::-1], leaf_shape[::-1])
    return [None if d is None else len(shape) - 1 - d for d in reversed(from_end)]

"""The sharding of every leaf of an optimizer's state, from those of the parameters."""

import math
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from gradxform.base import check_transform
from gradxform.distributed.shares.param_places import (
    Parameter,
    Place,
    axes_in,
    entries_of,
    is_place,
    read_places,
)
from gradxform.distributed.specs.slot_dims import Match, as_seen, match_leaves
from gradxform.leaves.storage import StoredArray, in_memory, is_stored
from gradxform.types import Params, PyTree

__all__ = [
    "state_sharding",
]


def state_sharding(tx: Any, params: Params, param_shardings: PyTree = None) -> PyTree:
    """Return the sharding of every leaf of `tx.init(params)`.

    A leaf with the shape of its parameter is sharded like the parameter. A leaf with some of the
    parameter's dimensions (the row and column means of Adafactor, one number per row of a table,
    the matrices of Shampoo) is sharded like the parameter along these. Counts, keys and everything
    else are replicated. It works for every transform and chain, Optax's too: `init` is only traced.

        places = state_sharding(tx, params, {"kernel": NamedSharding(mesh, P(None, "model")), ...})
        state = jax.jit(tx.init, out_shardings=places)(params)

    Dimensions are matched by their lengths. If the parameter has several dimensions of one length,
    the k-th of several arrays (Shampoo's matrices) has the k-th dimension, the means of Adafactor
    have all but the one over which they are means, and every other leaf has the first that fits.

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
    parameters = read_places("state_sharding", params, param_shardings)
    replicated = _sharding_with_entries(parameters[0].place, ()) if parameters else PartitionSpec()
    jaxpr, stored = jax.make_jaxpr(tx.init, return_shape=True)(params)
    state = as_seen(stored)
    matches = match_leaves(tx, params, parameters, state)
    pairs = zip(jax.tree.leaves(stored, is_leaf=is_stored), matches, strict=True)
    out = [
        _shardings_of_stored_leaf(x, _sharding_of_state_leaf(m, parameters, replicated), replicated)
        for x, m in pairs
    ]
    places = jax.tree.unflatten(jax.tree.structure(state), out)
    types = jax.tree.unflatten(jax.tree.structure(stored), jaxpr.out_avals)
    return jax.tree.map(in_memory, places, types, is_leaf=is_place)


def _sharding_of_state_leaf(match: Match, parameters: list[Parameter], replicated: Place) -> Place:
    """Return the place of a leaf."""
    if match.parameter is None:
        return replicated
    parameter = parameters[match.parameter]
    if match.dims == list(range(len(parameter.shape))):
        return parameter.place
    entries = entries_of(parameter.place)
    entries += (None,) * (len(parameter.shape) - len(entries))
    of_dims = tuple(None if d is None else entries[d] for d in match.dims)
    return _sharding_with_entries(parameter.place, of_dims)


def _shardings_of_stored_leaf(x: Any, place: Place, replicated: Place) -> Any:
    """Return the places of the arrays that make up a leaf, from that of the leaf."""
    if not isinstance(x, StoredArray):
        return place
    placed = x.placed(place, replicated)
    return jax.tree.map(_fitting_array, placed, x, is_leaf=is_place)


def _fitting_array(place: Place, array: Any) -> Place:
    """Return a place without the axes that do not divide the array, such as that of its scales."""
    if not isinstance(place, NamedSharding):
        return place
    sizes = [math.prod(place.mesh.shape[name] for name in axes_in(axes)) for axes in place.spec]
    entries = zip(place.spec, sizes, array.shape, strict=False)
    return _sharding_with_entries(
        place, tuple(axes if n % size == 0 else None for axes, size, n in entries)
    )


def _sharding_with_entries(place: Place, entries: tuple[Any, ...]) -> Place:
    """Return a place like `place`, but with these entries of a partition spec."""
    while entries and entries[-1] is None:
        entries = entries[:-1]
    if isinstance(place, NamedSharding):
        return NamedSharding(place.mesh, PartitionSpec(*entries), memory_kind=place.memory_kind)
    return place if isinstance(place, SingleDeviceSharding) else PartitionSpec(*entries)

"""Where the parameters lie: reading the shardings that a user gives for them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from gradxform.errors import shown
from gradxform.leaves import Path, flatten_with_names, path_at, path_str
from gradxform.types import Params, PyTree

# How an array is sharded.
Place = NamedSharding | SingleDeviceSharding | PartitionSpec


class Parameter(NamedTuple):
    """A parameter, and how it is sharded."""

    path: Path
    shape: tuple[int, ...]
    place: Place


def is_place(x: Any) -> bool:
    """Whether `x` says how an array is sharded."""
    return isinstance(x, Sharding | PartitionSpec)


def read_places(caller: str, params: Params, places: PyTree) -> list[Parameter]:
    """Return every parameter with its place.

    Args:
      caller: the name of the public function, for messages.
      params: the parameters, or their shapes and dtypes.
      places: a tree of places. One for a subtree is for all of its parameters, such as one for all.
        If the containers are others than those of the parameters, places are found by path. None
        for the shardings that the parameters have.

    Raises:
      TypeError: for any other kind of place.
      ValueError: for a parameter without a place, a place without a parameter, or a spec with more
        entries than its parameter has dimensions or the same axis twice.
    """
    flat, _ = flatten_with_names(params)
    paths = [path for path, _ in flat]
    if places is None:
        leaves = [getattr(p, "sharding", None) for _, p in flat]
    elif is_place(places):
        leaves = [places] * len(flat)
    else:
        leaves, treedef = jax.tree.flatten(places, is_leaf=is_place)
        if treedef != jax.tree.structure(params):
            leaves = _param_places_by_path(caller, paths, places)
    out = []
    for i, (path, (_, p), place) in enumerate(zip(paths, flat, leaves, strict=True)):
        where = path_at(params, i)
        if not isinstance(place, Place):
            raise TypeError(
                f"{caller}: the sharding of {where} must be a NamedSharding or a "
                f"PartitionSpec, got {shown(place)}."
            )
        entries = entries_of(place)
        if len(entries) > jnp.ndim(p):
            raise ValueError(
                f"{caller}: {PartitionSpec(*entries)} has more entries than {where} of shape "
                f"{jnp.shape(p)} has dimensions."
            )
        named = [name for entry in entries for name in axes_in(entry)]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"{caller}: {PartitionSpec(*entries)} of {where} names {twice!r} twice; an axis "
                "divides one dimension."
            )
        out.append(Parameter(path, jnp.shape(p), place))
    return out


def _param_places_by_path(caller: str, paths: list[Path], places: PyTree) -> list[Any]:
    """Return the place of each path: the one at the longest beginning of it."""
    by_beginning = dict(flatten_with_names(places, is_place)[0])
    out, used = [], set()
    for path in paths:
        beginnings = [path[:n] for n in range(len(path), -1, -1) if path[:n] in by_beginning]
        if not beginnings:
            raise ValueError(f"{caller}: the parameter {path_str(path)} lacks a sharding.")
        used.add(beginnings[0])
        out.append(by_beginning[beginnings[0]])
    for path in by_beginning:
        if path not in used:
            raise ValueError(
                f"{caller}: there is a sharding for {path_str(path)}, which is not a parameter."
            )
    return out


def entries_of(place: Place) -> tuple[Any, ...]:
    """Return the entries of a partition spec; an empty tuple for a single device."""
    if isinstance(place, SingleDeviceSharding):
        return ()
    return tuple(place.spec if isinstance(place, NamedSharding) else place)


def axes_in(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes that one entry of a partition spec names."""
    return tuple(entry) if isinstance(entry, tuple) else () if entry is None else (entry,)


def spec_of(axes: list[tuple[str, ...]]) -> PartitionSpec:
    """Return the spec that divides each dimension over these mesh axes, as short as it can be."""
    axes = list(axes)
    while axes and not axes[-1]:
        axes.pop()
    return PartitionSpec(*(e[0] if len(e) == 1 else e or None for e in axes))

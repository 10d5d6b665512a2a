"""The bytes of parameters and of a state that each device holds."""

import math
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding

from gradxform.distributed.specs.state_sharding import state_sharding
from gradxform.errors import shown
from gradxform.leaves import path_at
from gradxform.types import Params, PyTree


class PlacedBytes(NamedTuple):
    """The bytes that each device holds."""

    params: list[int]  # of each parameter
    state: list[int]  # of each leaf of the state
    memories: list[str]  # the kind of memory of each leaf of the state

    def by_memory(self) -> dict[str, int]:
        """Return the bytes of the state by the kind of memory."""
        total: dict[str, int] = {}
        for kind, n in zip(self.memories, self.state, strict=True):
            total[kind] = total.get(kind, 0) + n
        return total


def placed_bytes(tx: Any, params: Params, param_shardings: PyTree) -> PlacedBytes | None:
    """Return what each device holds; None where no sharding over a mesh is given or known.

    Args:
      tx: the transform.
      params: the parameters, or their shapes and dtypes.
      param_shardings: their shardings, or None for those that they have.

    Raises:
      TypeError: if a sharding is given that is not a `NamedSharding`.
    """
    leaves = jax.tree.leaves(params)
    if param_shardings is None:
        shardings = [getattr(p, "sharding", None) for p in leaves]
        if not leaves or not all(isinstance(place, NamedSharding) for place in shardings):
            return None
    for i, place in enumerate(jax.tree.leaves(param_shardings)):
        if not isinstance(place, NamedSharding):
            where = f" of {path_at(params, i)}" if i < len(leaves) else ""
            raise TypeError(
                f"describe: the sharding{where} must be a NamedSharding, whose mesh says how many "
                f"devices there are, got {shown(place)}."
            )
    places = jax.tree.leaves(state_sharding(tx, params, param_shardings))
    state = jax.tree.leaves(jax.eval_shape(tx.init, params))
    of_params = [p.sharding for p in leaves] if param_shardings is None else None
    param_places = of_params or _place_of_each_param(params, param_shardings)
    return PlacedBytes(
        [_held_at_place(p, place) for p, place in zip(leaves, param_places, strict=True)],
        [_held_at_place(x, place) for x, place in zip(state, places, strict=True)],
        [place.memory_kind or "device" for place in places],
    )


def _place_of_each_param(params: Params, shardings: PyTree) -> list[Any]:
    places = jax.tree.leaves(shardings)
    return places * len(jax.tree.leaves(params)) if isinstance(shardings, NamedSharding) else places


def _held_at_place(x: Any, place: NamedSharding) -> int:
    return math.prod(place.shard_shape(x.shape)) * x.dtype.itemsize

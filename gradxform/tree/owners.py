"""Which parameter each array of a state belongs to."""

from collections.abc import Sequence
from typing import Any

import jax

from gradxform.leaves import Path, flatten_with_names
from gradxform.leaves.slot_dims import owner_of
from gradxform.tree.params_in_state import map_params
from gradxform.types import Params, PyTree

_NO_OWNER = -1


def owners_of(
    tx: Any, params: Params, paths: Sequence[Path], state: PyTree, by_path: bool = True
) -> list[tuple[int | None, Path, Path]]:
    """Return for every leaf of a state the index of its parameter, its path, and the end of that.

    The index is None for a leaf that belongs to all parameters; the end is what comes after the
    path of the parameter, where the path tells.

    Args:
      tx: the transform.
      params: the parameters, or their shapes and dtypes.
      paths: their paths.
      state: what `tx.init(params)` returns, or the shapes.
      by_path: whether an array that is not known to be like the parameters belongs to the one
        whose path its own path contains. That of a single array without a name is in every path.
    """
    indices = jax.tree.unflatten(jax.tree.structure(params), list(range(len(paths))))

    def index_of(_: Any, index: Any) -> int:
        # One array for all parameters, as inside `flatten`, meets the whole tree of indices.
        return index if isinstance(index, int) else _NO_OWNER

    try:
        owners = map_params(tx, index_of, state, indices, transform_non_params=lambda _: _NO_OWNER)
    except (TypeError, ValueError):  # `init` looks into its parameters: match leaves by path
        owners = jax.tree.map(lambda _: _NO_OWNER, state)
    places = {path: i for i, path in enumerate(paths)} if by_path else {}
    out: list[tuple[int | None, Path, Path]] = []
    named, _ = flatten_with_names(state)
    for (names, _), owner in zip(named, jax.tree.leaves(owners), strict=True):
        index, rest = owner, ()
        if owner == _NO_OWNER:
            path, rest = owner_of(names, places)
            index = None if path is None else places[path]
        out.append((index, names, rest))
    return out

"""Applying updates to parameters, and averaging trees."""

from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.errors import require_int32
from gradxform.leaves import (
    Aligned,
    Path,
    align,
    flatten_updates,
    is_hole,
    map_with_paths,
    path_at,
    shape_of,
    with_paths,
)
from gradxform.leaves.no_gradient import float0_as_holes
from gradxform.leaves.row_sparse import RowSparse
from gradxform.numerics import at_least_float32, cast, promote, sum_as_first
from gradxform.types import Array, Params, PyTree, Updates


def _updated_leaf(p: Any, u: Any) -> Array:
    if isinstance(u, RowSparse):
        return u.add_to(p)
    return sum_as_first(p, u)


def _incremental_leaf(new: Any, old: Any, step_size: Any) -> Array:
    new, old = jnp.asarray(new), jnp.asarray(old)
    dtype = at_least_float32(promote(new.dtype, old.dtype))
    weight = cast(jnp.asarray(step_size), dtype)
    return cast(weight * cast(new, dtype) + (1 - weight) * cast(old, dtype), old.dtype)


def _periodic_leaf(new: Any, old: Any, due: Any) -> Array:
    old = jnp.asarray(old)
    return jnp.where(due, cast(jnp.asarray(new), old.dtype), old)


def _paired_for_update(
    part: str, new_tensors: PyTree, old_tensors: PyTree, old_name: str
) -> tuple[list[Any], Aligned]:
    """Return the leaves of two trees, and require equal shapes; `old_name` is for messages."""
    news, treedef = jax.tree.flatten(new_tensors)
    olds = align(part, new_tensors, treedef, old_tensors, f"{old_name} has")
    for i, (new, old) in enumerate(zip(news, olds.leaves, strict=True)):
        if jnp.shape(new) != jnp.shape(old):
            raise ValueError(
                f"{part}: {path_at(new_tensors, i)} has shape {jnp.shape(new)}, {old_name} "
                f"has {jnp.shape(old)}."
            )
    return news, olds


def _applicable_updates(params: Params, updates: Updates) -> Updates:
    """Return `updates` with None wherever `params` have a hole."""
    holes = {path for path, leaf in with_paths(params) if is_hole(leaf)}

    def mask(path: Path, update: Any) -> Any:
        return None if any(path[:n] in holes for n in range(len(path) + 1)) else update

    return map_with_paths(mask, updates) if holes else updates


def apply_updates(params: Params, updates: Updates) -> Params:
    """Return `params + updates`, each leaf in the dtype of its parameter.

    Args:
      params: the parameters; a hole (None, MaskedNode) stays a hole.
      updates: a tree of the same structure. A hole leaves its parameter unchanged, as does a
        `float0`, the gradient of an integer; the rows of a `RowSparse` are added in place.

    Raises:
      ValueError: if the structures or the shapes differ.
    """
    updates = float0_as_holes(updates)
    us, treedef = flatten_updates(updates)
    if jax.tree.structure(params) != treedef:
        updates = _applicable_updates(params, updates)
        us, treedef = flatten_updates(updates)
    ps = align("apply_updates", updates, treedef, params, "the parameters have")
    for i, (p, u) in enumerate(zip(ps.leaves, us, strict=True)):
        if jnp.shape(p) != shape_of(u):
            raise ValueError(
                f"apply_updates: the update of {path_at(updates, i)} has shape "
                f"{shape_of(u)}, the parameter has {jnp.shape(p)}."
            )
        engine.check_addable(updates, i, p, u)
    return ps.rebuilt(engine.map_rows(_updated_leaf, [ps.leaves, us]))


def incremental_update(new_tensors: PyTree, old_tensors: PyTree, step_size: Any) -> PyTree:
    """Return `step_size * new + (1 - step_size) * old`: one step of an exponential average.

    Args:
      new_tensors: the tree to move towards.
      old_tensors: the average; holes stay as they are, and leaves keep their dtype.
      step_size: the weight of `new_tensors`, in [0, 1].

    Raises:
      ValueError: if the structures or the shapes differ, or `step_size` is out of range.
    """
    if isinstance(step_size, int | float) and not 0 <= step_size <= 1:
        raise ValueError(f"incremental_update: step_size must be in [0, 1], got {step_size!r}.")
    news, olds = _paired_for_update("incremental_update", new_tensors, old_tensors, "the average")
    return olds.rebuilt(engine.map_rows(_incremental_leaf, [news, olds.leaves], step_size))


def periodic_update(
    new_tensors: PyTree, old_tensors: PyTree, steps: Any, update_period: Any
) -> PyTree:
    """Return the new tensors in every `update_period`-th step, and the old ones in all others.

    Args:
      new_tensors: the tree to copy.
      old_tensors: the copy; holes stay as they are, and leaves keep their dtype.
      steps: the number of steps so far, an integer.
      update_period: the number of steps between copies, at least 1.

    Raises:
      ValueError: if the structures or the shapes differ, or `update_period` is out of range.
    """
    if isinstance(update_period, int) and update_period < 1:
        raise ValueError(
            f"periodic_update: update_period must be at least 1, got {update_period!r}."
        )
    require_int32("periodic_update", "steps", steps)
    require_int32("periodic_update", "update_period", update_period)
    news, olds = _paired_for_update("periodic_update", new_tensors, old_tensors, "the copy")
    due = jnp.asarray(steps) % update_period == 0
    return olds.rebuilt(engine.map_rows(_periodic_leaf, [news, olds.leaves], due))

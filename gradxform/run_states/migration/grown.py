"""Parameters that have grown: where their old entries are, and slots with room for new ones."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer, with_whole_dims
from gradxform.errors import did_you_mean, must_be, shown
from gradxform.leaves import Path, dtype_of, flatten_with_names, shape_of
from gradxform.leaves.storage import is_stored, placed_like
from gradxform.run_states.migration.layout import dotted_path, layout_of
from gradxform.run_states.optax_fields import optax_fitted
from gradxform.run_states.slot_axes import SlotAxes, slot_axes
from gradxform.types import Array, Params, SupportsTransform

# For each dimension of a parameter that has grown, where its old entries are.
Places = dict[int, np.ndarray]
_FIRST = None  # where the old entries come before the new ones


class Growth(NamedTuple):
    """How parameters have grown.

    Attributes:
      old_params: the parameters of the old state, as shapes and dtypes.
      places: for each parameter in order, where its old entries are.
    """

    old_params: Params
    places: list[Places]


def growth_of(tx: SupportsTransform, state: Any, params: Params, grown: Any) -> Growth:
    """Return how the parameters have grown since a state was made.

    Args:
      tx: the transform of the state.
      state: its state, whose arrays tell the old shapes.
      params: the parameters as they are now.
      grown: what the user says, as in `migrate_state`.

    Raises:
      TypeError: if `grown` is of another kind.
      ValueError: if it names no parameter or dimension, or not what has grown.
    """
    named, treedef = flatten_with_names(params)
    shapes = [tuple(shape_of(p)) for _, p in named]
    said = _said(grown, {path: shape for (path, _), shape in zip(named, shapes, strict=True)})
    seen = _lengths_in(tx, state, params, len(named))
    olds, places = [], []
    for i, ((path, p), shape) in enumerate(zip(named, shapes, strict=True)):
        places.append({})
        for d, at in said.get(path, {}).items():
            n, known = shape[d], seen[i].get(d, set())
            old = _only_length(path, d, n, known) if at is _FIRST else len(at)
            if old > n:
                raise ValueError(
                    f"migrate_state: {dotted_path(path)} has {n} entries along dimension {d}, and "
                    f"its slots in the old state have {old}. grown is for parameters that are "
                    "larger now: cut the old state to the entries that are left."
                )
            if old == n and (at is not _FIRST or (known and grown is not True)):
                raise ValueError(
                    f"migrate_state: grown names dimension {d} of {dotted_path(path)}, which has "
                    f"{n} entries, as in the old state."
                )
            if old < n:
                places[i][d] = np.arange(old) if at is _FIRST else at
        lengths = [len(places[i].get(d, range(n))) for d, n in enumerate(shape)]
        olds.append(jax.ShapeDtypeStruct(tuple(lengths), dtype_of(p)))
    return Growth(treedef.unflatten(olds), places)


def _said(grown: Any, shapes: Mapping[Path, tuple[int, ...]]) -> dict[Path, dict[int, Any]]:
    """Return for each parameter the dimensions that may have grown, and where old entries are."""
    if grown is True:
        return {path: dict.fromkeys(range(len(s)), _FIRST) for path, s in shapes.items()}
    if not isinstance(grown, Mapping):
        rule = "True, or a dict from paths of parameters such as 'head.kernel' to dimensions"
        raise TypeError(must_be("migrate_state", "grown", rule, grown))
    paths = {dotted_path(path): path for path in shapes}
    said: dict[Path, dict[int, Any]] = {}
    for name, of in grown.items():
        if name not in paths:
            raise ValueError(
                f"migrate_state: grown names {shown(name)}, which is not a parameter."
                f"{did_you_mean(name, [*paths]) or ' There are ' + ', '.join(paths) + '.'}"
            )
        ndim = len(shapes[paths[name]])
        dims = of if isinstance(of, Mapping) else dict.fromkeys(_listed(of), _FIRST)
        said[paths[name]] = {}
        for d, at in dims.items():
            if isinstance(d, bool) or not isinstance(d, int) or not -ndim <= d < ndim:
                rule = f"dimensions of {ndim}, or a dict from them to where the old entries are"
                raise ValueError(must_be("migrate_state", f"grown[{name!r}]", rule, of))
            where = f"grown[{name!r}][{d}]"
            length = shapes[paths[name]][d]
            said[paths[name]][d % ndim] = at if at is _FIRST else _indices(where, at, length)
    return said


def _listed(dims: Any) -> Sequence[Any]:
    return dims if isinstance(dims, list | tuple) else (dims,)


def _indices(where: str, at: Any, length: int) -> np.ndarray:
    """Return the places of old entries along a dimension as indices."""
    rule = f"a slice, or different indices below {length}, which are known"
    error = ValueError(must_be("migrate_state", where, rule, at))
    if is_tracer(at):
        raise error
    if isinstance(at, slice):
        return np.arange(length)[at]
    indices = np.asarray(at)
    if indices.ndim != 1 or not (np.issubdtype(indices.dtype, np.integer) or not indices.size):
        raise error
    indices = indices.astype(np.int64)
    if np.any((indices < -length) | (indices >= length)):
        raise error
    indices = indices % max(length, 1)
    if len(np.unique(indices)) < len(indices):
        raise error
    return indices


def _lengths_in(
    tx: SupportsTransform, state: Any, params: Params, count: int
) -> list[dict[int, set[int]]]:
    """Return for each parameter the lengths of its dimensions in the slots of a state."""
    layout = layout_of(tx, params)
    own = jax.tree.leaves(state, is_leaf=is_stored)
    if len(own) != len(layout.arrays):  # a checkpoint that was restored by name
        like = jax.eval_shape(tx.init, params)
        fitted = optax_fitted(like, state, (), leaf=lambda like, x, path: x)
        own = jax.tree.leaves(fitted, is_leaf=is_stored)
    out: list[dict[int, set[int]]] = [{} for _ in range(count)]
    for axes, x in zip(slot_axes(tx, params, layout), own, strict=True):
        shape = shape_of(x) if not is_stored(x) else x.shape
        if axes.owner is not None and axes.dims is not None and len(shape) == len(axes.dims):
            for d, n in zip(axes.dims, shape, strict=True):
                if d is not None:
                    out[axes.owner].setdefault(d, set()).add(n)
    return out


def _only_length(path: Path, d: int, n: int, lengths: set[int]) -> int:
    """Return the only length of a dimension; that of the parameter if no slot has it."""
    if len(lengths) > 1:
        raise ValueError(
            f"migrate_state: the slots of {dotted_path(path)} do not tell how many entries it had "
            f"along dimension {d}: {sorted(lengths)}. Say where they are in the new one, as "
            f"grown={{{dotted_path(path)!r}: {{{d}: slice(0, ...)}}}}."
        )
    return next(iter(lengths), n)


def index_of_old(
    axes: SlotAxes, was: SlotAxes, shape: tuple[int, ...], ndim: int, places: Places
) -> tuple[Any, ...] | str:
    """Return where the entries of an old array are in a new one, or why they have no place.

    Args:
      axes: what is known of the new array.
      was: what is known of the old one.
      shape: the shape of the new one.
      ndim: the number of dimensions of the parameter.
      places: where the old entries of the parameter are.
    """
    if axes.dims != was.dims:
        return "it keeps other dimensions of the parameter now"
    mixture = axes.mixture(shape, ndim)
    if mixture or axes.dims is None:
        return mixture
    return np.ix_(
        *[
            places.get(-1 if d is None else d, np.arange(n))
            for d, n in zip(axes.dims, shape, strict=True)
        ]
    )


def with_old_entries(fresh: Array, x: Any, index: tuple[Any, ...]) -> Array:
    """Return a new array in which the old entries are those of an old one; it stays where it is."""
    whole = with_whole_dims(fresh).at[index].set(with_whole_dims(jnp.asarray(x)))
    return placed_like(whole, fresh)

"""Transforms that take one gradient for each element: their class, and the axes of elements."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gradxform.base import GradientTransformationExtraArgs
from gradxform.errors import must_be, name_of
from gradxform.leaves import path_at
from gradxform.types import OptState, Params, PyTree, Updates

PerElementUpdates = PyTree
AggregatedUpdates = PyTree
MaybeAxis = int | Sequence[int] | None


class AggregatorUpdateFn(Protocol):
    """The `update` of an aggregator."""

    def __call__(
        self,
        per_elt_updates: PerElementUpdates,
        state: OptState,
        params: Params | None = None,
        **extra_args: Any,
    ) -> tuple[AggregatedUpdates, OptState]:
        """Return one update for all elements, and the new state."""
        ...


class Aggregator(GradientTransformationExtraArgs):
    """A transform whose updates come one for each element, and leave as one.

    Called as `Aggregator(init, update)`, it is made of two functions. It has its own class so that
    a training loop knows which gradients to compute.

    Args:
      init: `init(params) -> state`.
      update: `update(per_elt_updates, state, params=None, ...) -> (updates, state)`.
    """


def as_axes(part: Any, axis: Any) -> tuple[int, ...]:
    """Return one or several axes as a tuple, or raise if they are not axes."""
    axes = (axis,) if isinstance(axis, int) else axis
    whole = isinstance(axes, tuple) and all(type(i) is int for i in axes)
    if not whole or not axes or len(set(axes)) != len(axes):
        raise ValueError(
            must_be(part, "per_elt_axis", "an axis or a tuple of different axes", axis)
        )
    return axes


def set_axes(part: Any) -> None:
    """Keep a list of axes as a tuple, and check them."""
    if isinstance(part.per_elt_axis, Sequence):
        object.__setattr__(part, "per_elt_axis", tuple(part.per_elt_axis))
    as_axes(part, part.per_elt_axis)


def check_axes(part: Any, updates: Updates, axes: tuple[int, ...]) -> None:
    """Require every leaf to have the axes."""
    for i, g in enumerate(jax.tree.leaves(updates)):
        shape = jnp.shape(g)
        if any(not -len(shape) <= axis < len(shape) for axis in axes):
            raise ValueError(
                f"{name_of(part)}: gradient of {path_at(updates, i)} has shape {shape}, without "
                f"the axes {axes} of elements. Compute one gradient for each with jax.vmap."
            )


def get_batch_size_from_per_elt_updates(
    per_elt_updates: Updates, per_elt_axis: int | Sequence[int]
) -> int:
    """Return the number of elements, which must be the same in every leaf.

    Args:
      per_elt_updates: the updates.
      per_elt_axis: the axis, or the axes, of elements.

    Raises:
      ValueError: if leaves have different numbers of elements, or the tree is empty.
    """
    part = "get_batch_size_from_per_elt_updates"
    axes = as_axes(part, per_elt_axis if isinstance(per_elt_axis, int) else tuple(per_elt_axis))
    check_axes(part, per_elt_updates, axes)
    leaves = jax.tree.leaves(per_elt_updates)
    sizes = {math.prod(jnp.shape(g)[axis] for axis in axes) for g in leaves}
    if len(sizes) != 1:
        listed = ", ".join(map(str, sorted(sizes))) or "no leaves"
        raise ValueError(f"{part}: all leaves must have the same number of elements, got {listed}.")
    return sizes.pop()

"""Averages over elements and over micro-batches."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import EmptyState, Transform, transform
from gradxform.experimental.aggregator import Aggregator, MaybeAxis, as_axes, check_axes, set_axes
from gradxform.leaves import Path, align_params, align_slot, check_shapes, dtype_of
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast, safe_increment, scalar
from gradxform.slots import zero_count, zeros_like
from gradxform.types import Array, OptState, PositiveSize, Size, Slot
from gradxform.wrappers.accumulation.accumulate import running_mean
from gradxform.wrappers.compose import chain


def _mean_over_elements(g: Any, axes: tuple[int, ...]) -> Array:
    wide = cast(g, at_least_float32(dtype_of(g)))
    return cast(jnp.mean(wide, axis=axes), dtype_of(g))


@transform
class average_per_element_updates(Aggregator, Transform):
    """Average over the elements.

    Update rule: u = mean of g over the axes of elements, in float32 or wider.

    Args:
      per_elt_axis: the axis, or the axes, of elements.
    """

    per_elt_axis: Size | tuple[int, ...] = 0

    locality = "entry"

    def __post_init__(self) -> None:
        set_axes(self)

    def init(self, params):
        """Return the empty state."""
        return EmptyState()

    def update(self, updates, state, params=None, **extra):
        """Return the mean."""
        axes = as_axes(self, self.per_elt_axis)
        check_axes(self, updates, axes)
        gs, treedef = jax.tree.flatten(updates)
        means = engine.map_rows(_mean_over_elements, [gs], statics=[axes for _ in gs])
        averaged = jax.tree.unflatten(treedef, means)
        if params is not None:  # a gradient of the whole batch would merely broadcast
            align_params(self, averaged, treedef, params)
        return averaged, check_state(self, state, EmptyState)


class AccumulateAvgUpdatesState(NamedTuple):
    """State of `accumulate_avg_updates`."""

    micro_step: Array  # int32 scalar; micro-batches in the average
    ready: Array  # boolean scalar; whether the last update was an average of all of them
    avg_grad: Slot  # like params, at least float32; the average so far


def _emitted_average_and_rest(x: Array, g: Array, due: Array) -> tuple[Array, Array]:
    """Return what is emitted, in the dtype of `g`, and what is kept; one of them is zero."""
    zero = jnp.zeros_like(x)
    return cast(jnp.where(due, x, zero), dtype_of(g)), jnp.where(due, zero, x)


@transform
class accumulate_avg_updates(Transform):
    """Emit the average of several micro-batches, and zeros between.

    With `process`, the optimizer runs only when the average is ready. `MultiSteps` does the same
    around any optimizer.

    Args:
      accumulation_steps: the number of micro-batches, at least 1. With 1, updates pass unchanged
        and nothing is remembered.
    """

    accumulation_steps: PositiveSize

    locality = "entry"
    why_no_rows = "adds gradients up in arrays"

    @property
    def zeros_unless(self) -> str | None:
        """The count of micro-batches, where an average takes several."""
        return None if self.accumulation_steps == 1 else "micro_step"

    @property
    def keeps_updates(self) -> bool:
        """Whether each update is an average of its own."""
        return self.accumulation_steps == 1

    def init(self, params):
        """Return an empty average."""
        if self.accumulation_steps == 1:
            return EmptyState()
        return AccumulateAvgUpdatesState(zero_count(), jnp.zeros((), bool), zeros_like(params))

    def update(self, updates, state, params=None, **extra):
        """Add to the average, and emit it if it is complete."""
        if self.accumulation_steps == 1:
            return updates, check_state(self, state, EmptyState)
        state = check_state(self, state, AccumulateAvgUpdatesState)
        gs, treedef = jax.tree.flatten(updates)
        if params is not None:
            align_params(self, updates, treedef, params)
        average = align_slot(self, updates, treedef, state, "avg_grad")
        check_shapes(self, updates, average.leaves, "the state's avg_grad has")
        step = safe_increment(state.micro_step)
        due = step == self.accumulation_steps
        weight = 1.0 / scalar(step)
        means = engine.map_rows(running_mean, [gs, average.leaves], weight, None)
        pairs = engine.map_rows(_emitted_average_and_rest, [means, gs], due)
        rest = [cast(x, old.dtype) for (_, x), old in zip(pairs, average.leaves, strict=True)]
        return jax.tree.unflatten(treedef, [u for u, _ in pairs]), state._replace(
            micro_step=jnp.where(due, 0, step), ready=due, avg_grad=average.rebuilt(rest)
        )


@transform
class averaged_incrementally(Aggregator, Transform):
    """Average over elements and micro-batches, as `average_incrementally_updates` returns it.

    Args:
      per_elt_axis: the axis, or the axes, of elements.
      accumulation_steps: the number of micro-batches, at least 1.
    """

    per_elt_axis: Size | tuple[int, ...]
    accumulation_steps: PositiveSize

    locality = "entry"

    def __post_init__(self) -> None:
        set_axes(self)

    def inner_transforms(self) -> list[Any]:
        """Return the average over elements and the one over micro-batches, as one chain."""
        means = average_per_element_updates(self.per_elt_axis)
        return [chain(means, accumulate_avg_updates(self.accumulation_steps))]

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return that the state is that of the chain."""
        return [((), *self.inner_transforms())]

    def init(self, params):
        """Return the states of the two averages."""
        return self.inner_transforms()[0].init(params)

    def update(self, updates, state, params=None, **extra):
        """Average over the elements, then over the micro-batches."""
        return self.inner_transforms()[0].update(updates, state, params)


def average_incrementally_updates(
    per_elt_axis: MaybeAxis, accumulation_steps: int
) -> accumulate_avg_updates | averaged_incrementally:
    """Return an average over elements and over several micro-batches of them.

    Args:
      per_elt_axis: the axis, or the axes, of elements; None for gradients of whole micro-batches.
      accumulation_steps: the number of micro-batches, at least 1.
    """
    if per_elt_axis is None:
        return accumulate_avg_updates(accumulation_steps)
    axis = per_elt_axis if isinstance(per_elt_axis, int) else tuple(per_elt_axis)
    return averaged_incrementally(axis, accumulation_steps)

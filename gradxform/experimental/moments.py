"""Means and variances of the gradients of single elements."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine, tree
from gradxform.base import EmptyState, Transform, transform
from gradxform.experimental.aggregator import (
    Aggregator,
    as_axes,
    get_batch_size_from_per_elt_updates,
    set_axes,
)
from gradxform.experimental.process import process, processed, processed_per_element
from gradxform.interop import identity
from gradxform.leaves import align, align_params, align_slot, dtype_of
from gradxform.leaves.states import check_state
from gradxform.numerics import (
    at_least_float32,
    bias_correction,
    cast,
    promote,
    safe_increment,
    scalar,
)
from gradxform.slots import zero_count, zeros_like
from gradxform.types import (
    Array,
    Decay,
    NonNegativeSlot,
    OptState,
    PositiveSize,
    Size,
    Slot,
    Updates,
)
from gradxform.wrappers.compose import chain


class PerElementMeanAndSumSqDiffGradsState(NamedTuple):
    """State of `get_per_element_mean_and_sum_sq_diff_grads` with several micro-batches."""

    micro_step: Array  # int32 scalar; micro-batches so far
    ready: Array  # boolean scalar; whether the last update was complete
    mean_grads: Slot  # like params, at least float32; the mean so far
    sum_sq_diff_grads: (
        NonNegativeSlot  # like params, at least float32; the sum of squared deviations
    )


def _moments_over_elements(g: Any, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the mean over the elements, and the sum of squared differences from it."""
    wide = cast(g, at_least_float32(dtype_of(g)))
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    total = jnp.sum(jnp.square(wide - mean), axis=axes)
    return jnp.squeeze(mean, axis=axes), total


def _merged_element_moments(
    mean: Array, total: Array, old_mean: Array, old_total: Array, weight: Array, factor: Array
) -> tuple[Array, Array]:
    """Return the moments of the elements so far together with those of one more micro-batch."""
    wide = promote(mean.dtype, old_mean.dtype)
    mean, total, old_mean, old_total = (cast(x, wide) for x in (mean, total, old_mean, old_total))
    delta = mean - old_mean
    both = old_total + total + jnp.square(delta) * cast(factor, wide)
    return old_mean + delta * cast(weight, wide), both


@transform
class get_per_element_mean_and_sum_sq_diff_grads(Aggregator, Transform):
    """Emit the mean over the elements, and beside it how far they are from it.

    The update is a pair: the mean, and a dict with `sum_sq_diff_grads`, the sum over the elements
    of |g - mean|^2, and `sample_size`, their number. `process(..., aggregator_has_aux=True)` hands
    the dict to the optimizer as extra arguments. Over several micro-batches the moments are merged,
    and all is zero until they are complete.

    Args:
      per_elt_axis: the axis, or the axes, of elements.
      accumulation_steps: the number of micro-batches, at least 1.

    Reference: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing
    Sample Variances, 1979, equation (2.1).
    """

    per_elt_axis: Size | tuple[int, ...] = 0
    accumulation_steps: PositiveSize = 1

    locality = "entry"

    def __post_init__(self) -> None:
        set_axes(self)

    def init(self, params):
        """Return moments of 0, or the empty state for one micro-batch."""
        if self.accumulation_steps == 1:
            return EmptyState()
        return PerElementMeanAndSumSqDiffGradsState(
            zero_count(), jnp.zeros((), bool), zeros_like(params), zeros_like(params)
        )

    def update(self, updates, state, params=None, **extra):
        """Return the pair of the mean and the dict, and the state."""
        axes = as_axes(self, self.per_elt_axis)
        size = get_batch_size_from_per_elt_updates(updates, axes)
        gs, treedef = jax.tree.flatten(updates)
        moments = engine.map_rows(_moments_over_elements, [gs], statics=[axes for _ in gs])
        if params is not None:  # a gradient of the whole batch would merely broadcast
            averaged = jax.tree.unflatten(treedef, [mean for mean, _ in moments])
            align_params(self, averaged, treedef, params)
        if self.accumulation_steps == 1:
            state = check_state(self, state, EmptyState)
            return _mean_and_aux_of_elements(treedef, gs, moments, size), state
        state = check_state(self, state, PerElementMeanAndSumSqDiffGradsState)
        means = align_slot(self, updates, treedef, state, "mean_grads")
        totals = align_slot(self, updates, treedef, state, "sum_sq_diff_grads")
        step = safe_increment(state.micro_step)
        due = step == self.accumulation_steps
        weight = 1.0 / scalar(step)
        factor = scalar(state.micro_step) * weight * size
        columns = [[m for m, _ in moments], [s for _, s in moments], means.leaves, totals.leaves]
        merged = engine.map_rows(_merged_element_moments, columns, weight, factor)
        old = list(zip(means.leaves, totals.leaves, strict=True))
        emitted = [(jnp.where(due, m, 0), jnp.where(due, s, 0)) for m, s in merged]
        rest = [
            [cast(jnp.where(due, 0, x), slot.dtype) for x, slot in zip(new, both, strict=True)]
            for new, both in zip(merged, old, strict=True)
        ]
        sample_size = jnp.where(due, step * size, 0)
        return _mean_and_aux_of_elements(treedef, gs, emitted, sample_size), state._replace(
            micro_step=jnp.where(due, 0, step),
            ready=due,
            mean_grads=means.rebuilt([m for m, _ in rest]),
            sum_sq_diff_grads=totals.rebuilt([s for _, s in rest]),
        )


def _mean_and_aux_of_elements(
    treedef: Any, gs: list[Any], moments: list[Any], size: Any
) -> tuple[Any, Any]:
    """Return the means, in the gradients' dtypes, and the dict of extra arguments."""
    means = [cast(m, dtype_of(g)) for (m, _), g in zip(moments, gs, strict=True)]
    totals = jax.tree.unflatten(treedef, [s for _, s in moments])
    aux = {"sum_sq_diff_grads": totals, "sample_size": size}
    return jax.tree.unflatten(treedef, means), aux


class PerElementMeanAndVarianceEMAState(NamedTuple):
    """State of `track_per_element_mean_and_variance_with_ema`."""

    count: Array  # int32 scalar; the number of updates so far
    ema_decay: Array  # float32 scalar; the decay of both averages
    mean_grads_ema: Slot  # like params, at least float32; the average of the mean gradients
    variance_grads_ema: NonNegativeSlot  # like params, at least float32; of their variances


def _element_moment_average(new: Any, old: Any, decay: Any) -> Array:
    wide = promote(at_least_float32(dtype_of(new)), old.dtype)
    return cast((1 - decay) * cast(new, wide) + decay * cast(old, wide), old.dtype)


@transform
class track_per_element_mean_and_variance_with_ema(Transform):
    """Keep moving averages of the mean and of the variance of the elements' gradients.

    The updates pass unchanged. `update` takes the extra arguments that
    `get_per_element_mean_and_sum_sq_diff_grads` emits. From a = v = 0:

        a <- ema_decay a + (1 - ema_decay) g
        v <- ema_decay v + (1 - ema_decay) sum_sq_diff_grads / (sample_size - 1)

    One element alone counts as a variance of 0.

    Args:
      ema_decay: the decay of both averages, in [0, 1).
    """

    ema_decay: Decay = 0.9

    locality = "entry"
    why_no_rows = "keeps averages of whole arrays"

    def init(self, params):
        """Return averages of 0."""
        return PerElementMeanAndVarianceEMAState(
            zero_count(),
            jnp.asarray(self.ema_decay, jnp.float32),
            zeros_like(params),
            zeros_like(params),
        )

    def update(self, updates, state, params=None, *, sum_sq_diff_grads, sample_size, **extra):
        """Return the updates as they are, and the state with both averages advanced."""
        state = check_state(self, state, PerElementMeanAndVarianceEMAState)
        gs, treedef = jax.tree.flatten(updates)
        what = "sum_sq_diff_grads has"
        totals = align(self, updates, treedef, sum_sq_diff_grads, what).leaves
        divisor = 1.0 / jnp.maximum(scalar(sample_size) - 1, 1)
        variances = engine.map_rows(_scaled_element_moment, [totals], divisor)
        averages = {}
        for name, new in (("mean_grads_ema", gs), ("variance_grads_ema", variances)):
            old = align_slot(self, updates, treedef, state, name)
            columns = [new, old.leaves]
            averages[name] = old.rebuilt(
                engine.map_rows(_element_moment_average, columns, self.ema_decay)
            )
        return updates, state._replace(count=safe_increment(state.count), **averages)


def _scaled_element_moment(x: Any, factor: Array) -> Array:
    wide = cast(x, at_least_float32(dtype_of(x)))
    return wide * cast(factor, wide.dtype)


def get_unbiased_mean_and_variance_ema(state: OptState) -> tuple[Updates, Updates]:
    """Return the averages of mean and variance in a state, without their bias towards 0.

    Args:
      state: a state with one `PerElementMeanAndVarianceEMAState`, at any depth.

    Raises:
      ValueError: if there is none.
    """
    inner = tree.get(state, "PerElementMeanAndVarianceEMAState")
    if inner is None:
        raise ValueError(
            "get_unbiased_mean_and_variance_ema: state must hold a "
            "PerElementMeanAndVarianceEMAState, as that of add_mean_variance_to_opt does."
        )
    # Before the first update both averages are 0, and stay so.
    factor = bias_correction(inner.ema_decay, jnp.maximum(inner.count, 1))
    means = jax.tree.map(lambda x: _scaled_element_moment(x, factor), inner.mean_grads_ema)
    return means, jax.tree.map(
        lambda x: _scaled_element_moment(x, factor), inner.variance_grads_ema
    )


def add_mean_variance_to_opt(
    opt: Any,
    ema_decay: float = 0.9,
    per_elt_axis: int | Sequence[int] = 0,
    accumulation_steps: int = 1,
) -> processed | processed_per_element:
    """Return an optimizer for gradients of single elements, which tracks their mean and variance.

    The optimizer gets the mean gradient; `get_unbiased_mean_and_variance_ema(state)` returns the
    averages over the steps.

    Args:
      opt: the optimizer.
      ema_decay: the decay of both averages, in [0, 1).
      per_elt_axis: the axis, or the axes, of elements.
      accumulation_steps: the number of micro-batches for one step, at least 1.
    """
    axis = per_elt_axis if isinstance(per_elt_axis, int) else tuple(per_elt_axis)
    return process(
        identity(),
        get_per_element_mean_and_sum_sq_diff_grads(axis, accumulation_steps),
        chain(track_per_element_mean_and_variance_with_ema(ema_decay), opt),
        aggregator_has_aux=True,
    )

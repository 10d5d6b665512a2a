"""A factor that falls when the loss stops improving."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from gradxform.base import ArrayRule, transform
from gradxform.errors import name_of
from gradxform.numerics import is_zero, safe_increment, scalar, scalar_dtype
from gradxform.slots import zero_count
from gradxform.transforms.tree_rules import as_loss
from gradxform.types import (
    Array,
    Fraction,
    NonNegative,
    NonNegativeInt,
    PositiveInt,
    UnitInterval,
)


class ReduceLROnPlateauState(NamedTuple):
    """State of `reduce_on_plateau`."""

    scale: Array  # scalar, at least float32; the factor s
    best_value: Array  # scalar, at least float32; the least mean so far
    plateau_count: Array  # int32 scalar; means in a row that were not better
    cooldown_count: Array  # int32 scalar; means that are still not counted
    count: Array  # int32 scalar; the values in the mean so far
    avg_value: Array  # scalar, at least float32; the mean so far


@transform
class reduce_on_plateau(ArrayRule):
    """Scale updates by a factor that falls whenever the loss has stopped improving.

    Update rule, from s = 1 and best = infinity:

        u = s g

    Before it, at every `accumulation_size`-th step, with a the mean of the last values:

        better if a < best - rtol |best| - atol; then best <- a
        s <- max(factor s, min_scale) after `patience` means in a row that are not better

    and the next `cooldown` means are not counted. Give the loss to every update, as
    `update(..., value=loss)`. With the losses of single batches choose a large
    `accumulation_size`; with a validation loss, leave it at 1. Put it after the optimizer:
    `chain(adam(1e-3), reduce_on_plateau())`. Give the same value, such as the mean loss, to all
    replicas: the factor follows it.

    A NaN counts as a mean that is not better. The heuristic is that of PyTorch's ReduceLROnPlateau,
    but for a best value below 0: there PyTorch and Optax multiply it by 1 - rtol all the same, so
    that a worse mean counts as a better one.

    Args:
      factor: what s is multiplied by, in (0, 1).
      patience: the number of means in a row without improvement, at least 1.
      rtol: the relative improvement that counts, in [0, 1].
      atol: the absolute improvement that counts, at least 0; one of the two is greater than 0.
      cooldown: how many means after a reduction are not counted, at least 0.
      accumulation_size: the number of values in a mean, at least 1.
      min_scale: where s stops falling, in [0, 1].

    Raises:
      ValueError: if both tolerances are 0.
      TypeError: at update, without `value`.
    """

    factor: Fraction = 0.1
    patience: PositiveInt = 10
    rtol: UnitInterval = 1e-4
    atol: NonNegative = 0.0
    cooldown: NonNegativeInt = 0
    accumulation_size: PositiveInt = 1
    min_scale: UnitInterval = 0.0

    State = ReduceLROnPlateauState
    step_fields = ()  # its count is of the values in a mean
    locality = "entry"
    handles_complex = True

    def __post_init__(self) -> None:
        if is_zero(self.rtol) and is_zero(self.atol):
            raise ValueError(
                f"{name_of(self)}: rtol and atol must not both be 0: any rounding would count as "
                "an improvement."
            )

    def init(self, params):
        """Return a factor of 1, before any value."""
        return ReduceLROnPlateauState(
            scale=scalar(1.0),
            best_value=scalar(np.inf),
            plateau_count=zero_count(),
            cooldown_count=zero_count(),
            count=zero_count(),
            avg_value=jnp.zeros((), scalar_dtype()),
        )

    def prepare(self, updates, state, params, *, value):
        """Return the state after one more value, and the factor."""
        count = safe_increment(state.count)
        before, now = scalar(state.count), scalar(count)
        mean = (before * state.avg_value + as_loss(self, value)) / now
        due = count == self.accumulation_size
        after = self._judged(state, mean)
        state = ReduceLROnPlateauState(
            scale=jnp.where(due, after.scale, state.scale),
            best_value=jnp.where(due, after.best_value, state.best_value),
            plateau_count=jnp.where(due, after.plateau_count, state.plateau_count),
            cooldown_count=jnp.where(due, after.cooldown_count, state.cooldown_count),
            count=jnp.where(due, after.count, count),
            avg_value=jnp.where(due, after.avg_value, mean),
        )
        return state, state.scale

    def _judged(self, state: ReduceLROnPlateauState, mean: Array) -> ReduceLROnPlateauState:
        """Return the state after a whole mean."""
        best = state.best_value
        # The first mean is better than none: (1 - rtol) times infinity may be NaN.
        part = jnp.where(best < 0, scalar(1 + self.rtol), scalar(1 - self.rtol))
        bound = jnp.where(jnp.isinf(best), best, part * best - scalar(self.atol))
        better = mean < bound
        waits = state.cooldown_count > 0
        in_a_row = jnp.where(better | waits, 0, safe_increment(state.plateau_count))
        reduces = in_a_row == self.patience
        lower = jnp.maximum(scalar(self.factor) * state.scale, scalar(self.min_scale))
        rest = jnp.where(waits, state.cooldown_count - 1, 0)
        return ReduceLROnPlateauState(
            scale=jnp.where(reduces, lower, state.scale),
            best_value=jnp.where(better, mean, best),
            plateau_count=jnp.where(reduces, 0, in_a_row).astype(jnp.int32),
            cooldown_count=jnp.where(reduces, self.cooldown, rest).astype(jnp.int32),
            count=zero_count(),
            avg_value=jnp.zeros_like(mean),
        )

    def rule(self, g, p, scale):
        """Return the scaled update."""
        return scale * g

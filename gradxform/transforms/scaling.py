"""Multiplying the updates by numbers: constants, learning rates, schedules; and adding decay."""

import abc
from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform import masks
from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.errors import finite, non_negative
from gradxform.numerics import safe_increment, value_at
from gradxform.types import Array, ScalarOrSchedule, Schedule, StaticTree


class ScaleByScheduleState(NamedTuple):
    """State of a transform that reads a schedule."""

    count: Array  # int32 scalar; the number of updates so far


class WeightDecaySchedule(NamedTuple):
    """State of `add_decayed_weights`."""

    count: Array  # int32 scalar; the number of updates so far


ScaleState = EmptyState  # Optax's name for a state that keeps nothing


@transform
class scale(ArrayRule):
    """Multiply every update by a constant.

    Update rule: u = step_size g.

    Args:
      step_size: any finite number; negative to descend.
    """

    step_size: float

    locality = "entry"
    handles_complex = True

    def __post_init__(self):
        finite(self, "step_size")

    def rule(self, g, p):
        """Return the scaled update."""
        return self.step_size * g


class _Scheduled(ArrayRule, abc.ABC):
    """What scaling by a schedule shares: a count, and one number a step."""

    locality = "entry"
    handles_complex = True

    def init(self, params):
        """Return a count of 0."""
        return ScaleByScheduleState(count=jnp.zeros((), jnp.int32))

    @abc.abstractmethod
    def factor(self, count: Array) -> Array:
        """Return what this step's updates are multiplied by."""

    def prepare(self, updates, state, params):
        """Return the advanced count and this step's factor."""
        return ScaleByScheduleState(safe_increment(state.count)), self.factor(state.count)

    def rule(self, g, p, factor):
        """Return the scaled update."""
        return factor * g


@transform
class scale_by_schedule(_Scheduled):
    """Multiply every update by a schedule's value.

    Update rule, with n = 0, 1, ... the number of earlier updates: u = step_size_fn(n) g.

    Args:
      step_size_fn: a function of the count, such as a schedule of this library.
    """

    step_size_fn: Schedule

    def factor(self, count):
        """Return the schedule's value."""
        return value_at(self.step_size_fn, count)


@transform
class scale_by_learning_rate(_Scheduled):
    """Multiply every update by the learning rate, and turn it downhill.

    Update rule, with n = 0, 1, ... the number of earlier updates: u = -lr(n) g.

    The state is the same for a number and for a schedule, so that one can replace the other in a
    checkpoint (Optax's changes its structure).

    Args:
      learning_rate: a number, at least 0, or a schedule.
      flip_sign: whether to multiply by -1, as minimizing needs. Keyword-only.
    """

    learning_rate: ScalarOrSchedule
    flip_sign: bool = field(default=True, kw_only=True)

    def __post_init__(self):
        non_negative(self, "learning_rate")
        finite(self, "learning_rate")

    def factor(self, count):
        """Return the learning rate, negated if it flips the sign."""
        rate = value_at(self.learning_rate, count)
        return -rate if self.flip_sign else rate


@transform
class add_decayed_weights(ArrayRule):
    """Add a multiple of the parameter to its update: weight decay, decoupled if it comes late.

    Update rule, with n = 0, 1, ... the number of earlier updates:

        u = g + weight_decay(n) p      on the leaves that `mask` selects, u = g on others

    Before the preconditioner this is L2 regularization, after it the decoupled decay of AdamW.

    Args:
      weight_decay: the multiple, at least 0, or a schedule of it.
      mask: which parameters decay: a mask such as `ndim_at_least(2)`, a tree of booleans that may
        be a prefix of the parameters, or a function of the parameters. None: all.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 2.
    """

    weight_decay: ScalarOrSchedule = 0.0
    mask: StaticTree = None

    locality = "entry"
    handles_complex = True
    needs_params = True

    def __post_init__(self):
        non_negative(self, "weight_decay")
        finite(self, "weight_decay")

    def init(self, params):
        """Return a count of 0, which a scheduled decay reads."""
        return WeightDecaySchedule(count=jnp.zeros((), jnp.int32))

    def prepare(self, updates, state, params):
        """Return the advanced count and this step's decay."""
        decay = value_at(self.weight_decay, state.count)
        return WeightDecaySchedule(safe_increment(state.count)), decay

    def active(self, tree):
        """Return the leaves that the mask selects."""
        return None if self.mask is None else masks.resolve(self, self.mask, tree)

    def rule(self, g, p, decay):
        """Return the update plus the decay."""
        # Without decay the parameter need not be read at all.
        return g if isinstance(self.weight_decay, float) and not self.weight_decay else g + decay * p

"""Scaling updates by constants, learning rates and schedules; and adding weight decay."""

from dataclasses import field
from typing import Any, ClassVar, NamedTuple

from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.errors import name_of
from gradxform.leaves import masks
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.states import check_state
from gradxform.numerics import is_zero, safe_increment, times, value_at
from gradxform.slots import zero_count
from gradxform.types import (
    Array,
    Finite,
    NonNegativeOrSchedule,
    PyTree,
    Schedule,
    StaticMask,
)

__all__ = [
    "WeightDecaySchedule",
    "add_decayed_weights",
    "scale",
    "scale_by_learning_rate",
    "scale_by_schedule",
    "ScaleByScheduleState",
    "ScaleState",
]


class ScaleByScheduleState(NamedTuple):
    """State of a transform that scales by a schedule."""

    count: Array  # int32 scalar; the number of updates so far


class WeightDecaySchedule(NamedTuple):
    """State of `add_decayed_weights`."""

    count: Array  # int32 scalar; the number of updates so far


ScaleState = EmptyState  # Optax's name for an empty state


def start_of_field(kind: Any) -> Any:
    """Return the first state for a field that may be a schedule."""
    return kind() if kind is EmptyState else kind(count=zero_count())


def counted_field(part: Any, x: Any, state: Any, kind: type) -> tuple[Any, ...]:
    """Return the advanced state for a field that may be a schedule, and the schedule's value.

    A number does not need a count, and the rule reads it itself: `(EmptyState(),)`.
    """
    kind = kind if callable(x) else EmptyState
    if type(state) is not kind:
        state = check_state(part, state, kind)
    if not callable(x):
        return (state,)
    return state._replace(count=safe_increment(state.count)), value_at(x, state.count)


@transform
class scale(ArrayRule):
    """Multiply every update by a constant.

    Update rule: u = step_size g.

    Args:
      step_size: any finite number; negative to descend.
    """

    step_size: Finite

    locality = "entry"
    handles_complex = True

    def rule(self, g, p):
        """Return the scaled update."""
        return times(self.step_size, g)


class _Scheduled(ArrayRule):
    """Base of the rules that scale by a number or a schedule: the count, and the factor."""

    factor: ClassVar[str]  # the name of the field with the number or schedule
    flip_sign = False  # whether to negate the updates

    locality = "entry"
    handles_complex = True

    @property
    def State(self) -> Any:
        """The class of the state: a schedule needs a count."""
        return ScaleByScheduleState if callable(getattr(self, self.factor)) else EmptyState

    def prepare(self, updates, state, params):
        """Return the state and, for a schedule, this step's value."""
        return counted_field(self, getattr(self, self.factor), state, ScaleByScheduleState)

    def rule(self, g, p, scheduled=None):
        """Return the scaled update."""
        factor = getattr(self, self.factor) if scheduled is None else scheduled
        return times(-factor if self.flip_sign else factor, g)


@transform
class scale_by_schedule(_Scheduled):
    """Multiply every update by a schedule's value.

    Update rule, with n = 0, 1, ... the number of earlier updates: u = step_size_fn(n) g.

    Args:
      step_size_fn: a function of the count, such as a schedule of this library.
    """

    step_size_fn: Schedule

    factor = "step_size_fn"


@transform
class scale_by_learning_rate(_Scheduled):
    """Multiply every update by the negative learning rate.

    Update rule, with n = 0, 1, ... the number of earlier updates: u = -lr(n) g.

    Args:
      learning_rate: a number, at least 0, or a schedule.
      flip_sign: whether to negate, as minimizing needs. Keyword-only.
    """

    learning_rate: NonNegativeOrSchedule
    flip_sign: bool = field(default=True, kw_only=True)

    factor = "learning_rate"


@transform
class add_decayed_weights(ArrayRule):
    """Add a multiple of the parameter to its update: weight decay.

    Update rule, with n = 0, 1, ... the number of earlier updates:

        u = g + weight_decay(n) p      on the leaves that `mask` selects, u = g on others

    Before the preconditioner this is L2 regularization, after it the decoupled decay of AdamW.
    After the learning rate, where updates point downhill already, `flip_sign` makes it a decay
    that is not scaled by the learning rate: u = g - weight_decay(n) p. With proximal, too,

        u = (g - weight_decay(n) p) / (1 + weight_decay(n))

    which divides the parameter by 1 + weight_decay(n) after its step: p + u = (p + g) / (1 +
    weight_decay(n)). Adan has this form.

    Args:
      weight_decay: the multiple of the parameter, at least 0, or a schedule of it.
      mask: which parameters decay: a mask such as `ndim_at_least(2)`, a tree of booleans that may
        be a prefix of the parameters, or a function of the parameters. Defaults to all.
      flip_sign: whether to subtract, for updates that point downhill already. Keyword-only.
      proximal: whether to divide by 1 + weight_decay; with flip_sign only. Keyword-only.

    Raises:
      ValueError: if proximal is set without flip_sign; at update, if no parameters are given.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 2.
    """

    weight_decay: NonNegativeOrSchedule = 0.0
    mask: StaticMask | None = None
    flip_sign: bool = field(default=False, kw_only=True)
    proximal: bool = field(default=False, kw_only=True)

    locality = "entry"
    handles_complex = True
    needs_params = True

    @property
    def State(self) -> Any:
        """The class of the state: a schedule needs a count; a mask puts it in a MaskedState."""
        return self._inner_state if self.mask is None else MaskedState

    def __post_init__(self) -> None:
        if self.proximal and not self.flip_sign:
            raise ValueError(
                f"{name_of(self)}: proximal=True needs flip_sign=True, and updates that are scaled "
                "by the learning rate."
            )

    @property
    def _inner_state(self) -> Any:
        return WeightDecaySchedule if callable(self.weight_decay) else EmptyState

    def init(self, params):
        """Return a count of 0 for a schedule, inside a MaskedState if there is a mask."""
        inner = start_of_field(self._inner_state)
        masks.check_patterns(self, self.mask, params)
        return inner if self.mask is None else MaskedState(inner)

    def prepare(
        self,
        updates,
        state,  # the class of `State`
        params,
    ):
        """Return the state and, for a schedule, this step's decay."""
        inner = state if self.mask is None else state.inner_state
        inner, *scheduled = counted_field(self, self.weight_decay, inner, WeightDecaySchedule)
        return inner if self.mask is None else state._replace(inner_state=inner), *scheduled

    def active(self, tree: PyTree) -> PyTree | None:
        """Return the leaves that the mask selects."""
        return None if self.mask is None else masks.resolve(self, self.mask, tree)

    def rule(self, g, p, scheduled=None):
        """Return the update plus the decay."""
        weight_decay: Any = self.weight_decay if scheduled is None else scheduled
        # Without decay the parameter need not be read at all.
        if is_zero(weight_decay):
            return g
        if self.proximal:
            return (g - weight_decay * p) / (1 + weight_decay)
        return g - weight_decay * p if self.flip_sign else g + weight_decay * p

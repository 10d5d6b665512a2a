"""Schedules that have a state, for `inject_hyperparams`."""

from typing import Any, NamedTuple

from gradxform.numerics import safe_increment, value_at
from gradxform.slots import zero_count
from gradxform.types import Array, Schedule, StatefulSchedule
from gradxform.values import Value
from gradxform.values.fields import value

__all__ = [
    "StatefulSchedule",
    "WrappedSchedule",
]


class WrappedScheduleState(NamedTuple):
    """State of a `WrappedSchedule`."""

    count: Array  # int32 scalar; how often it was updated


@value
class WrappedSchedule(Value):
    """A schedule of the count as one with a state, which is that count.

    `inject_hyperparams` makes one of every plain schedule; you need it only to call schedules of
    both kinds alike.

    Args:
      schedule_fn: a function of the count.
    """

    never_schedule = True  # it is called with its state

    schedule_fn: Schedule

    def init(self):
        """Return a count of 0."""
        return WrappedScheduleState(count=zero_count())

    def update(self, state, **extra_args):
        """Return the state with its count advanced."""
        return state._replace(count=safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: Any) -> Array:
        """Return the value at the count."""
        return value_at(self.schedule_fn, state.count)

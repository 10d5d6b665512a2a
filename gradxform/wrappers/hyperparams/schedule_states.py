"""The schedules of `inject_hyperparams`, with or without a state, and their values."""

from collections.abc import Callable
from typing import Any

import jax

from gradxform.errors import name_of
from gradxform.leaves.states import check_state
from gradxform.numerics import ScheduleError, at_least_float32, value_at
from gradxform.schedules.stateful import WrappedSchedule, WrappedScheduleState
from gradxform.types import Array, PyTree, StatefulSchedule
from gradxform.values.extra_args import accepted_after
from gradxform.wrappers.update_when import (
    IntegerForFloat,
    became_float,
    like_before,
    strongly_typed,
)


def is_stateful(x: Any) -> bool:
    """Whether `x` is a schedule with a state, ours, Optax's or the user's."""
    return isinstance(x, StatefulSchedule) and not isinstance(x, type)


def with_state(x: Any) -> StatefulSchedule:
    """Return a schedule of either kind as one with a state."""
    return x if is_stateful(x) else WrappedSchedule(x)


def extra_names(x: Any) -> frozenset[str] | None:
    """Return the names of the extra arguments that a schedule takes; None: any name.

    Its methods take `**extra_args` so that they can be called with those of others too. Only one
    that does not name any may look for any name there.
    """
    if not is_stateful(x) or isinstance(x, WrappedSchedule):
        return frozenset()
    methods = [accepted_after(method, 1) for method in (x.__call__, x.update)]
    named = methods[0].named | methods[1].named
    return None if not named and any(m.anything for m in methods) else named


def _call_with_extra(
    where: str, method: Callable[..., Any], state: PyTree, extra: dict[str, Any], moment: str
) -> Any:
    """Return `method(state)` with the extra arguments that it names.

    Raises:
      TypeError: if one that it requires is missing.
    """
    anything, named, needed = accepted_after(method, 1)
    missing = sorted(needed - extra.keys())
    if missing:
        remedy = (
            "give it a default, because init is called without extra arguments"
            if moment == "init"
            else f"call update(updates, state, params, {missing[0]}=...)"
        )
        raise TypeError(f"{where} needs the extra argument {missing[0]!r}; {remedy}.")
    return method(state, **(extra if anything else {k: extra[k] for k in named & extra.keys()}))


def first_state(schedule: StatefulSchedule) -> PyTree:
    """Return the first state of a schedule, with dtypes that stay."""
    return jax.tree.map(strongly_typed, schedule.init())


def value_in(
    where: str, schedule: StatefulSchedule, state: PyTree, extra: dict[str, Any], moment: str
) -> Array:
    """Return the value of a schedule in a state.

    Args:
      where: the names of the part and the field, for messages.
      schedule: the schedule.
      state: its state.
      extra: the extra arguments of the update.
      moment: "init" or "update".

    Raises:
      TypeError: if it is not one real number, or a required extra argument is missing.
    """

    def call(state: PyTree) -> Any:
        name = f"{where}: {name_of(schedule)}"
        return _call_with_extra(name, schedule.__call__, state, extra, moment)

    call.__name__ = name_of(schedule)  # for messages
    is_plain = isinstance(schedule, WrappedSchedule)
    try:
        return value_at(schedule if is_plain else call, state)
    except ScheduleError as error:
        raise TypeError(f"{where}: {error}") from None


def next_state(
    where: str, schedule: StatefulSchedule, state: PyTree, extra: dict[str, Any]
) -> PyTree:
    """Return the state of a schedule for the next update, in the dtypes of this one.

    An integer where the schedule returns a float is a float from then on: what an extra argument
    brings in is not known before.

    Raises:
      ValueError: if the schedule changes the structure or a shape of its state.
    """
    name = f"{where}: {name_of(schedule)}"
    new = _call_with_extra(name, schedule.update, state, extra, "update")
    old = jax.tree.map(strongly_typed, state)
    try:
        return like_before(where, schedule, new, old)
    except IntegerForFloat as error:
        dtypes = error.dtypes

    def widened(x: Array, new: jax.ShapeDtypeStruct) -> Array:
        return x.astype(at_least_float32(new.dtype)) if became_float(x, new) else x

    return like_before(where, schedule, new, jax.tree.map(widened, old, dtypes))


def checked_states(
    part: Any, states: dict[str, PyTree], schedules: dict[str, StatefulSchedule]
) -> dict[str, PyTree]:
    """Return the states of schedules, and require one for each."""
    if sorted(states) != sorted(schedules):
        raise ValueError(
            f"{name_of(part)}: the schedules are of {', '.join(schedules) or 'nothing'}, "
            f"hyperparams_states are of {', '.join(states) or 'nothing'}. Was this state made by "
            "another optimizer?"
        )
    return {
        k: check_state(part, x, WrappedScheduleState)
        if isinstance(schedules[k], WrappedSchedule)
        else x
        for k, x in states.items()
    }

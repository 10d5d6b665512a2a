"""Schedules that hold a value, or go from one value to another along a line or a power."""

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradxform.errors import must_be, require_non_negative
from gradxform.numerics import scalar
from gradxform.schedules.schedule import (
    Schedule,
    as_count,
    check_steps,
    fractions_of_period,
    is_known,
    number_of_field,
    same_dtype,
    steps_since,
)
from gradxform.types import Array, Finite, NonNegative, StatefulSchedule
from gradxform.values import Value
from gradxform.values.fields import check_schedule, value

__all__ = [
    "as_schedule",
    "constant_schedule",
    "linear_schedule",
    "polynomial_schedule",
]


@value
class constant_schedule(Schedule):
    """Hold one value.

    Value: y(n) = value.

    Args:
      value: any number.
    """

    value: float

    def __call__(self, count: Any) -> Array:
        """Return the value."""
        return jnp.broadcast_to(scalar(self.value), jnp.shape(count))


def as_schedule(x: Any) -> Callable[[Any], Any]:
    """Return a number as a constant schedule, and a schedule or function of the count as it is.

    Args:
      x: a number, a schedule, or a plain function `f(count) -> value`.

    Raises:
      TypeError: for anything else, a class and a mask included.
    """
    schedule = schedule_or_none(x)
    if schedule is None:
        raise TypeError(
            f"as_schedule: x must be a number or a function of the step count, got {x!r}."
        )
    return schedule


def schedule_or_none(x: Any) -> Callable[[Any], Any] | None:
    """Return `as_schedule(x)`, or None if `x` is neither a number nor a schedule."""
    if isinstance(x, bool | np.bool_ | type | StatefulSchedule):
        return None
    if isinstance(x, Value) and x.never_schedule:
        return None
    if callable(x):
        return x
    if is_known(x) or hasattr(x, "dtype"):
        amount: Any = x
        return constant_schedule(amount)
    return None


def schedule_of(part: Any, name: str, x: Any) -> Callable[[Any], Any]:
    """Return `as_schedule(x)` for a schedule of other schedules, or raise with the name of `x`."""
    if isinstance(x, float) and not math.isfinite(x):
        raise ValueError(must_be(part, name, "finite", x))
    schedule = schedule_or_none(x)
    if schedule is None:
        remedy = " Its state has no place there." if isinstance(x, StatefulSchedule) else ""
        rule = "a schedule, a function of the count or a number"
        raise TypeError(must_be(part, name, rule, x) + remedy)
    check_schedule(part, name, schedule)
    return schedule


@value
class polynomial_schedule(Schedule):
    """Go from one value to another along a power of the remaining time.

    Value, with k = n - transition_begin clipped to 0 .. T and T = transition_steps:

        y(n) = end_value + (init_value - end_value) (1 - k / T)^power

    With `cycle`, T is the next multiple of transition_steps at or after k: the value is `end_value`
    at every such multiple, and jumps up after it, less far each time.

    As in Optax, with transition_steps <= 0 the value is always `init_value`.

    Args:
      init_value: the value at the start.
      end_value: the value at the end, and after it.
      power: at least 0; 1 is a straight line.
      transition_steps: the length of the transition, in steps.
      transition_begin: the number of steps at `init_value` before the transition, at least 0.
      cycle: whether to start over at the end. Keyword-only; not in Optax.

    Reference: `polynomial_decay` of TensorFlow, for `cycle`.
    """

    init_value: Finite
    end_value: Finite
    power: NonNegative
    transition_steps: int | float
    transition_begin: int | float = 0
    cycle: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        require_non_negative(self, "transition_begin")
        check_steps(self, "transition_steps", "transition_begin")

    def __call__(self, count: Any) -> Array:
        """Return the interpolated value."""
        return _polynomial_transition(self, self.power, self.cycle, count)


@value
class linear_schedule(Schedule):
    """Go from one value to another in a straight line.

    Value, with k = n - transition_begin clipped to 0 .. T and T = transition_steps:

        y(n) = init_value (T - k) / T + end_value k / T

    As in Optax, with transition_steps <= 0 the value is always `init_value`.

    Args:
      init_value: the value at the start.
      end_value: the value at the end, and after it.
      transition_steps: the length of the transition, in steps.
      transition_begin: the number of steps at `init_value` before the transition, at least 0.
    """

    init_value: Finite
    end_value: Finite
    transition_steps: int | float
    transition_begin: int | float = 0

    def __post_init__(self):
        require_non_negative(self, "transition_begin")
        check_steps(self, "transition_steps", "transition_begin")

    def __call__(self, count: Any) -> Array:
        """Return the interpolated value."""
        return _polynomial_transition(self, 1.0, False, count)


def _polynomial_transition(
    part: linear_schedule | polynomial_schedule, power: Any, cycle: bool, count: Any
) -> Array:
    init, end, steps = (
        number_of_field(part.init_value),
        number_of_field(part.end_value),
        part.transition_steps,
    )
    count = as_count(count)
    if is_known(steps) and steps <= 0:
        return jnp.broadcast_to(scalar(init), count.shape)
    count = steps_since(count, part.transition_begin)
    if cycle:
        remaining, elapsed = _polynomial_cycle_fractions(count, steps)
    else:
        remaining, elapsed = fractions_of_period(count, steps)
    if not (is_known(power) and power == 1):
        remaining = jnp.power(remaining, scalar(power))
        elapsed = 1.0 - remaining
    y = init * remaining + end * elapsed
    return y if is_known(steps) else jnp.where(scalar(steps) > 0.0, y, scalar(init))


def _polynomial_cycle_fractions(count: Array, steps: Any) -> tuple[Array, Array]:
    """Return the `fractions_of_period` for a period that ends at the next multiple of `steps`."""
    count, steps = same_dtype(count, steps)
    past = count % steps
    rest = jnp.where((past == 0) & (count > 0), jnp.zeros_like(past), steps - past)
    length = scalar(count) + scalar(rest)
    return scalar(rest) / length, scalar(count) / length

"""Schedules one after another: `join_schedules`, and the warm-ups that it is used for."""

import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from gradxform.errors import must_be, name_of, require_non_negative, require_positive, shown
from gradxform.numerics import scalar
from gradxform.schedules.basic import constant_schedule, linear_schedule, schedule_of
from gradxform.schedules.decay import exponential_decay
from gradxform.schedules.schedule import (
    Composite,
    Schedule,
    as_count,
    check_steps,
    exact_at_ends,
    fractions_of_period,
    half_cosine,
    is_known,
    is_open,
    number_of_field,
    same_dtype,
    steps_since,
)
from gradxform.types import Array, Finite, NonNegative, Positive
from gradxform.values.fields import value
from gradxform.values.registry import register

__all__ = [
    "join_schedules",
    "sgdr_schedule",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
]


@value
class join_schedules(Schedule):
    """Apply schedules one after another, each from its own count of 0.

    Value: y(n) = s_i(n - b_i) for b_i <= n < b_(i+1), with b_0 = 0.

    Args:
      schedules: at least one schedule, plain function of the count, or number.
      boundaries: the steps at which the second and later schedules begin, one fewer than the
        schedules: at least 0, increasing.
    """

    schedules: tuple[Any, ...]
    boundaries: tuple[Any, ...]

    def __post_init__(self):
        self._check_schedules()
        self._check_boundaries()

    def _check_schedules(self) -> None:
        parts = enumerate(self.schedules)
        schedules = tuple(schedule_of(self, f"schedules[{i}]", part) for i, part in parts)
        n = len(schedules)
        if not n:
            raise ValueError("join_schedules: schedules must hold at least one schedule.")
        if len(self.boundaries) != n - 1:
            raise ValueError(
                f"join_schedules: {n} schedules need {n - 1} boundaries, "
                f"got {len(self.boundaries)}."
            )
        object.__setattr__(self, "schedules", schedules)

    def _check_boundaries(self) -> None:
        boundaries: list[Any] = []
        for i, step in enumerate(self.boundaries):
            if is_open(step):
                boundaries.append(step)
                continue
            if not is_known(step):
                raise TypeError(f"join_schedules: boundaries[{i}] must be a number, got {step!r}.")
            if not (math.isfinite(step) and step >= 0):
                raise ValueError(
                    f"join_schedules: boundaries[{i}] must be finite and at least 0, got {step!r}."
                )
            last = boundaries[-1] if boundaries else None
            if is_known(last) and step <= last:
                raise ValueError(
                    f"join_schedules: boundaries must increase, got {last!r} before {step!r}."
                )
            boundaries.append(int(step) if float(step).is_integer() else step)
        object.__setattr__(self, "boundaries", tuple(boundaries))

    def __call__(self, count: Any) -> Array:
        """Return the value of the schedule that applies at `count`."""
        count = as_count(count)
        y = jnp.broadcast_to(scalar(self.schedules[0](count)), count.shape)
        for begin, schedule in zip(self.boundaries, self.schedules[1:], strict=True):
            now, first = same_dtype(count, begin)
            y = jnp.where(now < first, y, scalar(schedule(steps_since(count, begin))))
        return y


# ------------------------------------------------------------------------------------- warm-ups


@value
class warmup_constant_schedule(Composite):
    """Climb to a value in a straight line, and stay there.

    Value: y(n) = init_value + (peak_value - init_value) min(n / warmup_steps, 1).

    With warmup_steps 0 the value is always `peak_value`; in Optax it is always `init_value`.

    Args:
      init_value: the value at the start.
      peak_value: the value after the warm-up.
      warmup_steps: the length of the climb, in steps, at least 0.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: int | float

    def __post_init__(self):
        _check_joined_warmup(self)

    def expand(self) -> join_schedules:
        """Return the line joined to the constant."""
        return _joined_after_warmup(self, constant_schedule(number_of_field(self.peak_value)))


@value
class warmup_cosine_decay_schedule(Schedule):
    """Climb to a peak in a straight line, and decay along half a cosine.

    Value, with W = warmup_steps, D = decay_steps and t = min((n - W) / (D - W), 1):

        y(n) = init_value + (peak_value - init_value) n / W                         for n < W
        y(n) = end_value + (peak_value - end_value) ((1 + cos(pi t)) / 2)^exponent  from W on

    Args:
      init_value: the value at the start.
      peak_value: the value after the warm-up.
      warmup_steps: the length of the climb, in steps, at least 0.
      decay_steps: the length of climb and decay together, greater than `warmup_steps`.
      end_value: the value at the end, and after it.
      exponent: the power of the cosine, at least 0.

    Reference: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017,
      equation 5; Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.2, for the warm-up.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: int | float
    decay_steps: int | float
    end_value: Finite = 0.0
    exponent: NonNegative = 1.0

    def __post_init__(self):
        _check_joined_warmup(self)
        check_steps(self, "decay_steps")
        warmup, steps = self.warmup_steps, self.decay_steps
        if is_known(warmup) and is_known(steps) and not steps > warmup:
            raise ValueError(
                f"{name_of(self)}: decay_steps must be greater than warmup_steps, which it "
                f"includes, got {steps!r} and {warmup!r}."
            )

    def __call__(self, count: Any) -> Array:
        """Return the value on the climb or on the cosine."""
        count = as_count(count)
        climb = linear_schedule(self.init_value, self.peak_value, self.warmup_steps)(count)
        steps = add_joined_steps(self.decay_steps, self.warmup_steps, sign=-1)
        remaining, _ = fractions_of_period(steps_since(count, self.warmup_steps), steps)
        cosine = half_cosine(remaining)
        if not (is_known(self.exponent) and self.exponent == 1):
            cosine = jnp.power(cosine, scalar(self.exponent))
        peak, end = number_of_field(self.peak_value), number_of_field(self.end_value)
        decay = exact_at_ends(end, peak, cosine, end + (peak - end) * cosine)
        now, first = same_dtype(count, self.warmup_steps)
        return jnp.where(now < first, climb, decay)


@value
class warmup_exponential_decay_schedule(Composite):
    """Climb to a peak in a straight line, and decay exponentially.

    Value, with W = warmup_steps, k = max(n - W - transition_begin, 0) and T = transition_steps:

        y(n) = init_value + (peak_value - init_value) n / W        for n < W
        y(n) = peak_value decay_rate^(k / T)                       from W on, bounded by end_value

    Args:
      init_value: the value at the start.
      peak_value: the value after the warm-up.
      warmup_steps: the length of the climb, in steps, at least 0.
      transition_steps: the length of a period of the decay, in steps, greater than 0.
      decay_rate: the factor of a period, greater than 0.
      transition_begin: the number of steps at the peak before the decay, at least 0.
      staircase: whether to change only at the end of each period.
      end_value: the bound of the decay, below if the rate is less than 1, else above. Defaults to
        no bound.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: int | float
    transition_steps: int | float
    decay_rate: Positive
    transition_begin: int | float = 0
    staircase: bool = False
    end_value: Finite | None = None

    def __post_init__(self):
        require_positive(self, "transition_steps")
        require_non_negative(self, "transition_begin")
        check_steps(self, "transition_steps", "transition_begin")
        _check_joined_warmup(self)

    def expand(self) -> join_schedules:
        """Return the line joined to the decay."""
        decay = exponential_decay(
            init_value=self.peak_value,
            transition_steps=self.transition_steps,
            decay_rate=self.decay_rate,
            transition_begin=self.transition_begin,
            staircase=self.staircase,
            end_value=self.end_value,
        )
        return _joined_after_warmup(self, decay)


def sgdr_schedule(cosine_kwargs: Iterable[dict[str, Any]]) -> join_schedules:
    """Return warmed-up cosine cycles, one after another.

    Args:
      cosine_kwargs: for every cycle the arguments of `warmup_cosine_decay_schedule`; the
        `decay_steps` are the length of the cycle.

    Reference: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017.
    """
    cycles: list[warmup_cosine_decay_schedule] = []
    if not isinstance(cosine_kwargs, Iterable):
        raise TypeError(must_be("sgdr_schedule", "cosine_kwargs", "a list of dicts", cosine_kwargs))
    for i, kwargs in enumerate(cosine_kwargs):
        if not isinstance(kwargs, dict):
            raise TypeError(
                f"sgdr_schedule: cosine_kwargs[{i}] must be a dict, got {shown(kwargs)}."
            )
        try:
            cycles.append(warmup_cosine_decay_schedule(**kwargs))
        except (TypeError, ValueError) as error:
            raise type(error)(f"sgdr_schedule: cosine_kwargs[{i}]: {error}") from None
    if not cycles:
        raise ValueError("sgdr_schedule: cosine_kwargs must hold at least one cycle.")
    begins: list[Any] = []
    for cycle in cycles[:-1]:
        begins.append(
            add_joined_steps(begins[-1], cycle.decay_steps) if begins else cycle.decay_steps
        )
    return join_schedules(tuple(cycles), tuple(begins))


register("sgdr_schedule", sgdr_schedule)


def _check_joined_warmup(part: Any) -> None:
    require_non_negative(part, "warmup_steps")
    check_steps(part, "warmup_steps")


def add_joined_steps(a: Any, b: Any, sign: int = 1) -> Any:
    """Return `a + sign * b` for numbers of steps, known ones or live ones."""
    if not (is_known(a) and is_known(b)):
        a, b = same_dtype(as_count(a), b)
    return a + sign * b


def _joined_after_warmup(part: Any, after: Schedule) -> join_schedules:
    climb = linear_schedule(part.init_value, part.peak_value, part.warmup_steps)
    return join_schedules((climb, after), (part.warmup_steps,))

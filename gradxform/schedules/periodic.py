"""Schedules from 1 to 0 that turn off the sign term of an optimizer, and waves for schedules."""

import math
from typing import Any

import jax.numpy as jnp

from gradxform.errors import name_of, require_one_of, require_positive
from gradxform.numerics import scalar
from gradxform.schedules.schedule import (
    LARGEST,
    Schedule,
    as_count,
    check_steps,
    exact_at_ends,
    first_count,
    fractions_of_period,
    half_cosine,
    is_known,
    number_of_field,
    same_dtype,
)
from gradxform.types import Array, Choice, Finite, NonNegative, Positive
from gradxform.values.fields import value


def cosine_wave(count: Array, steps: Any, periods: Any) -> Array:
    """Return (1 + cos(2 pi periods t)) / 2, with t = min(count / steps, 1)."""
    halves = _exact_periods(count, steps, 2 * periods) if is_known(periods) else None
    if halves is None:
        _, elapsed = fractions_of_period(count, steps)
        return jnp.square(jnp.cos(math.pi * number_of_field(periods) * elapsed))
    phase = (halves * jnp.minimum(count, steps)) % (2 * steps)
    return jnp.square(jnp.sin(scalar(phase - steps) * (0.5 * math.pi / steps)))


def _sawtooth(count: Array, steps: Any, periods: Any) -> Array:
    """Return the remaining fraction of the current one of the `periods` in `steps`, 1 to 0."""
    multiple = _exact_periods(count, steps, periods)
    if multiple is None:
        _, elapsed = fractions_of_period(count, steps)
        return 1.0 - (number_of_field(periods) * elapsed) % 1.0
    return scalar(steps - (multiple * jnp.minimum(count, steps)) % steps) / float(steps)


def _exact_periods(count: Array, steps: Any, times: Any) -> int | None:
    """Return `times` as an int if `times * count` modulo `steps` is exact in int32, else None."""
    if not isinstance(steps, int) or not is_known(times) or times != int(times):
        return None
    fits = 2 * steps * max(int(times), 1) <= LARGEST
    return int(times) if fits and jnp.issubdtype(count.dtype, jnp.integer) else None


def _zeroed_after_periods(y: Array, part: Any, count: Array) -> Array:
    """Return `y`, but 0 once `zero_after` periods have passed."""
    after, periods, steps = part.zero_after, part.num_periods, part.decay_steps
    if after is None:
        return y
    _, elapsed = fractions_of_period(count, steps)
    if not all(is_known(x) for x in (after, periods, steps)):
        return jnp.where(number_of_field(periods) * elapsed >= number_of_field(after), 0.0, y)
    first = after * steps / periods
    if first > steps * (1 + 1e-12):  # never: the count stops at the end
        return y
    count, first = same_dtype(count, first_count(first) if count.dtype == jnp.int32 else first)
    return jnp.where(count >= first, 0.0, y)


def _check_steps(part: Any) -> None:
    require_positive(part, "decay_steps")
    check_steps(part, "decay_steps")


@value
class linear_sign_decay(Schedule):
    """Go from 1 to 0 in a straight line.

    Value: y(n) = max(1 - n / decay_steps, 0).

    Args:
      decay_steps: the length of the decay, in steps, greater than 0.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.2.
    """

    decay_steps: int | float

    def __post_init__(self):
        _check_steps(self)

    def __call__(self, count: Any) -> Array:
        """Return the remaining fraction of the decay."""
        remaining, _ = fractions_of_period(as_count(count), self.decay_steps)
        return remaining


@value
class cosine_sign_decay(Schedule):
    """Oscillate between 1 and 0 along a cosine.

    Value, with t = min(n / decay_steps, 1):

        y(n) = (1 + cos(2 pi num_periods t)) / 2        0 once num_periods t >= zero_after

    Args:
      decay_steps: the number of steps after which the value is constant, greater than 0.
      num_periods: the number of periods of the cosine in these steps, greater than 0.
      zero_after: the number of periods after which the value is 0. Defaults to never.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.2;
      `sign_decay.get_cosine_decay_fn` of TensorFlow 1's contrib.opt.
    """

    decay_steps: int | float
    num_periods: Positive = 0.5
    zero_after: NonNegative | None = None

    def __post_init__(self):
        _check_steps(self)

    def __call__(self, count: Any) -> Array:
        """Return the cosine's value."""
        count = as_count(count)
        return _zeroed_after_periods(
            cosine_wave(count, self.decay_steps, self.num_periods), self, count
        )


@value
class restart_sign_decay(Schedule):
    """Go from 1 to 0 along half a cosine, again and again.

    Value, with t = min(n / decay_steps, 1) and f the fractional part of num_periods t:

        y(n) = (1 + cos(pi f)) / 2                      0 once num_periods t >= zero_after

    With an integer `num_periods` a new period begins at n = decay_steps: the value is back at 1 and
    stays there, as in TensorFlow, unless `zero_after` has made it 0.

    Args:
      decay_steps: the number of steps after which the value is constant, greater than 0.
      num_periods: the number of descents in these steps, greater than 0.
      zero_after: the number of periods after which the value is 0. Defaults to never.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.2;
      `sign_decay.get_restart_decay_fn` of TensorFlow 1's contrib.opt.
    """

    decay_steps: int | float
    num_periods: Positive = 1.0
    zero_after: NonNegative | None = None

    def __post_init__(self):
        _check_steps(self)

    def __call__(self, count: Any) -> Array:
        """Return the value in the current period."""
        count = as_count(count)
        remaining = _sawtooth(count, self.decay_steps, self.num_periods)
        return _zeroed_after_periods(half_cosine(remaining), self, count)


_MODES = ("triangular", "triangular2", "exp_range")


@value
class cyclic_schedule(Schedule):
    """Go up to a peak and back again in straight lines, again and again.

    Value, with S = transition_steps, in cycle i = 0, 1, ... of 2 S steps, k steps into it:

        y(n) = init_value + (peak_value - init_value) h min(k, 2 S - k) / S

    with the height h of the mode: 1 for "triangular"; 2^-i for "triangular2", which halves the
    peaks; gamma^n for "exp_range".

    Args:
      init_value: the value at the ends of the cycles.
      peak_value: the value in the middle of the first cycle, as far as h is 1 there.
      transition_steps: the length of a climb, which is half a cycle, in steps, greater than 0.
      mode: "triangular", "triangular2" or "exp_range".
      gamma: the factor of every step, greater than 0; only with "exp_range".

    Raises:
      ValueError: if `gamma` is not 1 in another mode.

    Reference: Smith, Cyclical Learning Rates for Training Neural Networks, 2017, section 3.
    """

    init_value: Finite
    peak_value: Finite
    transition_steps: int | float
    mode: Choice = "triangular"
    gamma: Positive = 1.0

    def __post_init__(self):
        require_positive(self, "transition_steps")
        check_steps(self, "transition_steps")
        require_one_of(self, "mode", _MODES)
        if self.mode != "exp_range" and is_known(self.gamma) and self.gamma != 1:
            raise ValueError(
                f"{name_of(self)}: gamma must be 1 with mode={self.mode!r}, got {self.gamma!r}; it "
                "is for mode='exp_range'."
            )

    def __call__(self, count: Any) -> Array:
        """Return the value in the current cycle."""
        count = as_count(count)
        n, steps = same_dtype(count, self.transition_steps)
        # Twice the steps may be beyond int32, two climbs are not.
        climbs, past = n // steps, n % steps
        remaining, elapsed = fractions_of_period(past, self.transition_steps)
        falls = climbs % 2 == 1
        share = jnp.where(falls, remaining, elapsed)
        init, peak = number_of_field(self.init_value), number_of_field(self.peak_value)
        if self.mode == "triangular":
            return exact_at_ends(init, peak, share, init + (peak - init) * share)
        if self.mode == "triangular2":
            height = jnp.exp2(-scalar(climbs // 2))
        else:
            gamma = self.gamma
            log = math.log(gamma) if is_known(gamma) else jnp.log(scalar(gamma))
            height = jnp.exp(scalar(count) * log)
        share = share * height
        return exact_at_ends(init, peak, share, init + (peak - init) * share)

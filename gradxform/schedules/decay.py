"""Schedules that decay: exponential, inverse time, cosine, and the others of TensorFlow 1."""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.errors import name_of, require_non_negative, require_positive
from gradxform.numerics import scalar
from gradxform.schedules.periodic import cosine_wave
from gradxform.schedules.schedule import (
    LARGEST,
    Schedule,
    as_count,
    check_steps,
    exact_at_ends,
    fractions_of_period,
    half_cosine,
    is_known,
    number_of_field,
    segment_of_count,
    steps_since,
    whole_periods,
)
from gradxform.types import Array, Finite, NonNegative, Positive
from gradxform.values.fields import value


def _periods(part: Any, count: Any) -> Array:
    """Return how many periods of `transition_steps` have passed; rounded down for a staircase."""
    k = steps_since(count, part.transition_begin)
    if part.staircase:
        return whole_periods(k, part.transition_steps)
    return scalar(k) / scalar(part.transition_steps)


def _check_periods(part: Any) -> None:
    require_positive(part, "transition_steps")
    require_non_negative(part, "transition_begin")
    check_steps(part, "transition_steps", "transition_begin")


@value
class exponential_decay(Schedule):
    """Multiply the value by a rate in every period.

    Value, with k = max(n - transition_begin, 0) and T = transition_steps:

        y(n) = init_value decay_rate^(k / T)            k / T rounded down for a staircase

    bounded below by `end_value` if the rate is less than 1, else bounded above by it.

    Where transition_steps or decay_rate is not positive, this raises an error; Optax logs, and
    returns `init_value`. The power is formed from the logarithm of the rate in double precision:
    0.9999 in float32, to the power of 1e5, is off by 2e-3.

    Args:
      init_value: the value at the start.
      transition_steps: the length of a period, in steps, greater than 0.
      decay_rate: the factor of a period, greater than 0.
      transition_begin: the number of steps at `init_value` before the decay, at least 0.
      staircase: whether to change only at the end of each period.
      end_value: the bound of the value. Defaults to no bound.
    """

    init_value: Finite
    transition_steps: int | float
    decay_rate: Positive
    transition_begin: int | float = 0
    staircase: bool = False
    end_value: Finite | None = None

    def __post_init__(self):
        _check_periods(self)

    def __call__(self, count: Any) -> Array:
        """Return the decayed value, within its bound."""
        rate = self.decay_rate
        log = math.log(rate) if is_known(rate) else jnp.log(scalar(rate))
        y = number_of_field(self.init_value) * jnp.exp(_periods(self, count) * log)
        if self.end_value is None:
            return y
        bound = scalar(self.end_value)
        falls = scalar(rate) < 1.0
        return jnp.where(falls, jnp.maximum(y, bound), jnp.minimum(y, bound))


@value
class natural_exp_decay(Schedule):
    """Decay at a natural exponential rate.

    Value, with k = max(n - transition_begin, 0) and T = transition_steps:

        y(n) = init_value exp(-decay_rate k / T)        k / T rounded down for a staircase

    Args:
      init_value: the value at the start.
      transition_steps: the length of a period, in steps, greater than 0.
      decay_rate: the rate of a period, at least 0.
      transition_begin: the number of steps at `init_value` before the decay, at least 0.
      staircase: whether to change only at the end of each period.

    Reference: `tf.train.natural_exp_decay` of TensorFlow 1.
    """

    init_value: Finite
    transition_steps: int | float
    decay_rate: NonNegative
    transition_begin: int | float = 0
    staircase: bool = False

    def __post_init__(self):
        _check_periods(self)

    def __call__(self, count: Any) -> Array:
        """Return the decayed value."""
        rate = number_of_field(self.decay_rate)
        return number_of_field(self.init_value) * jnp.exp(-rate * _periods(self, count))


@value
class inverse_time_decay(Schedule):
    """Divide the value by 1 plus a multiple of the time.

    Value, with k = max(n - transition_begin, 0) and T = transition_steps:

        y(n) = init_value / (1 + decay_rate k / T)      k / T rounded down for a staircase

    Args:
      init_value: the value at the start.
      transition_steps: the length of a period, in steps, greater than 0.
      decay_rate: the increase of the divisor in a period, at least 0.
      transition_begin: the number of steps at `init_value` before the decay, at least 0.
      staircase: whether to change only at the end of each period.

    Reference: `tf.train.inverse_time_decay` of TensorFlow 1.
    """

    init_value: Finite
    transition_steps: int | float
    decay_rate: NonNegative
    transition_begin: int | float = 0
    staircase: bool = False

    def __post_init__(self):
        _check_periods(self)

    def __call__(self, count: Any) -> Array:
        """Return the decayed value."""
        return number_of_field(self.init_value) / (
            1.0 + number_of_field(self.decay_rate) * _periods(self, count)
        )


@value
class inverse_sqrt_decay(Schedule):
    """Divide the value by the root of 1 plus a multiple of the time.

    Value, with k = max(n - transition_begin, 0) and T = transition_steps:

        y(n) = init_value / sqrt(1 + k / T)

    Args:
      init_value: the value at the start.
      transition_steps: the number of steps after which the square has halved, greater than 0.
      transition_begin: the number of steps at `init_value` before the decay, at least 0.

    Reference: Zinkevich, Online Convex Programming and Generalized Infinitesimal Gradient Ascent,
    2003, Theorem 1, with transition_steps 1.
    """

    init_value: Finite
    transition_steps: int | float = 1
    transition_begin: int | float = 0

    def __post_init__(self):
        _check_periods(self)

    def __call__(self, count: Any) -> Array:
        """Return the decayed value."""
        periods = scalar(steps_since(count, self.transition_begin)) / scalar(self.transition_steps)
        return number_of_field(self.init_value) * lax.rsqrt(1.0 + periods)


# --------------------------------------------------------------------------------------- cosines


@value
class cosine_decay_schedule(Schedule):
    """Decay along half a period of a cosine.

    Value, with t = min(n / decay_steps, 1):

        y(n) = init_value ((1 - alpha) ((1 + cos(pi t)) / 2)^exponent + alpha)

    Args:
      init_value: the value at the start.
      decay_steps: the length of the decay, in steps, greater than 0.
      alpha: the value at the end, as a fraction of that at the start.
      exponent: the power of the cosine, at least 0.

    Reference: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017,
      equation 5 without restarts.
    """

    init_value: Finite
    decay_steps: int | float
    alpha: Finite = 0.0
    exponent: NonNegative = 1.0

    def __post_init__(self):
        require_positive(self, "decay_steps")
        check_steps(self, "decay_steps")

    def __call__(self, count: Any) -> Array:
        """Return the decayed value."""
        remaining, _ = fractions_of_period(as_count(count), self.decay_steps)
        cosine = half_cosine(remaining)
        if not (is_known(self.exponent) and self.exponent == 1):
            cosine = jnp.power(cosine, scalar(self.exponent))
        init, alpha = number_of_field(self.init_value), number_of_field(self.alpha)
        y = init * ((1.0 - alpha) * cosine + alpha)
        return exact_at_ends(init * alpha, init, cosine, y)


@value
class linear_cosine_decay(Schedule):
    """Decay along a line times a cosine.

    Value, with t = min(n / decay_steps, 1):

        y(n) = init_value ((alpha + 1 - t) (1 + cos(2 pi num_periods t)) / 2 + beta)

    Args:
      init_value: a factor of all values; the value at the start is init_value (1 + alpha + beta).
      decay_steps: the length of the decay, in steps, greater than 0.
      num_periods: the number of periods of the cosine, at least 0.
      alpha: added to the line.
      beta: added to the product; the value at the end, over init_value, if num_periods is 0.5.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.3;
      `tf.train.linear_cosine_decay` of TensorFlow 1.
    """

    init_value: Finite
    decay_steps: int | float
    num_periods: NonNegative = 0.5
    alpha: Finite = 0.0
    beta: Finite = 0.001

    def __post_init__(self):
        require_positive(self, "decay_steps")
        check_steps(self, "decay_steps")

    def __call__(self, count: Any) -> Array:
        """Return the decayed value."""
        count = as_count(count)
        remaining, _ = fractions_of_period(count, self.decay_steps)
        init, alpha, beta = (number_of_field(x) for x in (self.init_value, self.alpha, self.beta))
        cosine = cosine_wave(count, self.decay_steps, self.num_periods)
        y = init * ((alpha + remaining) * cosine + beta)
        first = init * (1.0 + alpha + beta)
        halves = 2 * self.num_periods
        if not is_known(halves) or halves != int(halves):
            return exact_at_ends(y, first, remaining, y)
        last = init * (beta if halves % 2 else alpha + beta)
        return exact_at_ends(last, first, remaining, y)


@value
class cosine_decay_restarts(Schedule):
    """Decay along a cosine, and restart, in cycles that become longer and lower.

    Value, in cycle i = 0, 1, ... of length D_i = first_decay_steps t_mul^i, k steps into it:

        y(n) = init_value ((1 - alpha) m_mul^i (1 + cos(pi k / D_i)) / 2 + alpha)

    Cycles begin exactly where these lengths say, also after 2**24 steps; TensorFlow computes the
    index of the cycle from a float32 logarithm.

    Args:
      init_value: the value at the start.
      first_decay_steps: the length of the first cycle, in steps, greater than 0.
      t_mul: the length of each cycle over that of the last: 1, or at least 1.001.
      m_mul: the height of each cycle over that of the last, at least 0.
      alpha: the value at the end of a cycle, as a fraction of `init_value`.

    Reference: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017,
      equation 5; `tf.train.cosine_decay_restarts` of TensorFlow 1.
    """

    init_value: Finite
    first_decay_steps: int | float
    t_mul: Finite = 2.0
    m_mul: NonNegative = 1.0
    alpha: Finite = 0.0

    def __post_init__(self):
        require_positive(self, "first_decay_steps")
        check_steps(self, "first_decay_steps")
        # Between the two, the starts of the cycles would be too many to compute beforehand.
        if is_known(self.t_mul) and not (self.t_mul == 1 or self.t_mul >= 1.001):
            raise ValueError(
                f"{name_of(self)}: t_mul must be 1 or at least 1.001, got {self.t_mul!r}."
            )

    def __call__(self, count: Any) -> Array:
        """Return the value in the cycle that `count` is in."""
        for name in ("first_decay_steps", "t_mul"):
            if not is_known(getattr(self, name)):
                raise TypeError(
                    f"{name_of(self)}: {name} must be a Python number, got a traced one; the "
                    "starts of the cycles are computed beforehand."
                )
        cycle, remaining = _cycle(as_count(count), self.first_decay_steps, self.t_mul)
        height = jnp.power(scalar(self.m_mul), cycle)
        init, alpha = number_of_field(self.init_value), number_of_field(self.alpha)
        y = init * ((1.0 - alpha) * height * half_cosine(remaining) + alpha)
        return jnp.where(as_count(count) <= 0, scalar(init), y)


def _cycle(count: Array, first: Any, t_mul: float) -> tuple[Array, Array]:
    """Return the index of the cycle of each count, and the remaining fraction of the cycle."""
    if t_mul == 1:
        cycle = whole_periods(count, first)
        if isinstance(first, int) and first <= LARGEST:
            count = count % jnp.asarray(first, count.dtype)
        else:
            count = scalar(count) % first
        return cycle, fractions_of_period(count, first)[0]
    starts, lengths = _cycles(first, t_mul)
    cycle = segment_of_count(count, starts[1:])
    if jnp.issubdtype(count.dtype, jnp.integer):
        # Subtracted as integers, because float32 rounds counts above 2**24.
        floors = np.floor(starts)
        elapsed = scalar(count - jnp.asarray(floors.astype(np.int32))[cycle])
        elapsed = elapsed - scalar(starts - floors)[cycle]
    else:
        elapsed = count - scalar(starts)[cycle]
    length = scalar(lengths)[cycle]
    return scalar(cycle), jnp.maximum(length - elapsed, 0.0) / length


@functools.lru_cache(maxsize=64)
def _cycles(first: float, t_mul: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and the lengths of the cycles that an integer count can reach."""
    starts, lengths = [0.0], [float(first)]
    while (start := starts[-1] + lengths[-1]) <= LARGEST:
        # A rounding error must not move a start from a whole step.
        starts.append(float(round(start)) if abs(start - round(start)) < 1e-6 else start)
        lengths.append(first * t_mul ** len(lengths))
    return np.asarray(starts), np.asarray(lengths)

"""The line search of Moré and Thuente, one trial of a step length at a time.

The loss along a line is phi(t), with phi'(0) < 0. `begun_search` asks for a first step length t,
and every `advanced_search` takes phi and phi' there and asks for the next one, until the search is
`accepted` or `failed`. Whoever computes phi keeps the loop, so that the loss is in a program once.
"""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform.numerics import cast, promote, scalar
from gradxform.numerics.roots import root
from gradxform.transforms.lbfgs.line_search import where
from gradxform.types import Array, Scalar
from gradxform.values.export_names import announce_named_tuples

__all__ = []

# The constants of SciPy's L-BFGS-B.
DECREASE = 1e-3  # the share of the decrease that phi'(0) promises
FLATNESS = 0.9  # the share of |phi'(0)| that may be left
PRECISION = 0.1  # the length of the interval, relative to its larger end, that ends a search
LARGEST = 1e10
TRIALS = 20

# While no interval is known, a step length grows by at most 4 times the last growth. SciPy's search
# goes on like that, and 20 trials are 13 decades. After so many trials, this one multiplies the
# factor by 4 each time.
PATIENCE = 5

# How much values may differ by roundings only: so many machine epsilons of |phi(0)|.
ROUNDINGS = 8


class Trial(NamedTuple):
    """A point of the line."""

    t: Array
    value: Array  # phi(t) - phi(0)
    slope: Array  # phi'(t)


class MoreThuenteState(NamedTuple):
    """The state of one search; all scalars."""

    t: Array  # the step length to try; once the search is over, the last one that was tried
    accepted: Array  # whether t is a good step length
    failed: Array  # whether no good one was found
    count: Array  # int32; how many step lengths were tried
    value: Array  # phi(0)
    slope: Array  # phi'(0)
    noise: Array  # differences of values up to this one are roundings
    largest: Array  # the largest t
    best: Trial  # the end of the interval with the lower value
    other: Trial  # the other end; the start of the line while no interval is known
    low: Array  # the least t that may be tried next
    high: Array  # the largest t that may be tried next
    width: Array  # the length of the interval
    last_width: Array  # that one trial earlier
    has_interval: Array  # whether a good t is known to lie between the two ends
    is_first_stage: Array  # whether no t so far has both enough decrease and a rising slope


def begun_search(
    value: Array, slope: Array, t: Scalar, largest: Scalar = LARGEST, roundings: Scalar = ROUNDINGS
) -> MoreThuenteState:
    """Return a search that asks for the step length `t`.

    It has failed already where the slope does not descend, or where a number is not finite.

    Args:
      value: phi(0).
      slope: phi'(0), less than 0.
      t: the first step length, greater than 0.
      largest: the largest step length.
      roundings: how many machine epsilons of |phi(0)| count as roundings. Where values differ by
        no more, the search goes by the slopes; see `advanced_search`.
    """
    value, slope = scalar(value), scalar(slope)
    dtype = promote(value.dtype, slope.dtype)
    value, slope, largest = cast(value, dtype), cast(slope, dtype), jnp.asarray(largest, dtype)
    t = jnp.minimum(jnp.asarray(t, dtype), largest)
    zero = jnp.zeros((), dtype)
    start = Trial(zero, zero, slope)
    is_usable = (slope < 0) & jnp.isfinite(slope) & jnp.isfinite(value) & (t > 0) & jnp.isfinite(t)
    no = jnp.zeros((), jnp.bool_)
    return MoreThuenteState(
        t=t,
        accepted=no,
        failed=~is_usable,
        count=jnp.zeros((), jnp.int32),
        value=value,
        slope=slope,
        noise=cast(roundings * jnp.finfo(dtype).eps * jnp.abs(value), dtype),
        largest=largest,
        best=start,
        other=start,
        low=zero,
        high=5 * t,
        width=largest,
        last_width=2 * largest,
        has_interval=no,
        is_first_stage=~no,
    )


def advanced_search(state: MoreThuenteState, value: Array, slope: Array) -> MoreThuenteState:
    """Return the search after the trial of `state.t`.

    A step length t is accepted under the strong Wolfe conditions,

        phi(t) <= phi(0) + DECREASE t phi'(0)   and   |phi'(t)| <= FLATNESS |phi'(0)|

    Where phi(t) and phi(0) differ by roundings only, t (phi'(0) + phi'(t)) / 2 stands for their
    difference. The first condition is then the approximate one of Hager and Zhang,
    phi'(t) <= (2 DECREASE - 1) phi'(0), which also replaces the upper bound of the second one.

    A value or slope that is not finite shortens the step, and the search does not go as far again.
    The search ends as SciPy's where roundings prevent progress or the interval is too short: t is
    accepted if it decreases phi, beyond roundings. It fails after `TRIALS` trials. A search that is
    over stays as it is. After `PATIENCE` trials that all ask for a longer step, steps grow faster
    than SciPy's.

    Args:
      state: the search.
      value: phi(t).
      slope: phi'(t).

    Reference: Moré and Thuente, Line search algorithms with guaranteed sufficient decrease, 1994;
    Hager and Zhang, A new conjugate gradient method with guaranteed descent and an efficient line
    search, 2005, for the approximate conditions.
    """
    dtype = state.value.dtype
    value, slope, t = jnp.asarray(value).astype(dtype), jnp.asarray(slope).astype(dtype), state.t
    is_finite = jnp.isfinite(value) & jnp.isfinite(slope)
    value, slope = jnp.where(is_finite, value, state.value), jnp.where(is_finite, slope, 0)

    rise = value - state.value
    is_noise = jnp.abs(rise) <= state.noise
    rise = jnp.where(is_noise, t * (state.slope + slope) / 2, rise)
    new = Trial(t, rise, slope)

    promised = DECREASE * state.slope
    decreases = rise <= t * promised
    is_first_stage = state.is_first_stage & ~(decreases & (slope >= 0))
    is_flat = jnp.abs(slope) <= -FLATNESS * state.slope
    is_flat = is_flat | (is_noise & (slope >= FLATNESS * state.slope))
    is_stuck = state.has_interval & (
        (t <= state.low) | (t >= state.high) | (state.high - state.low <= PRECISION * state.high)
    )
    # As far as it may go, by slopes if values do not tell.
    is_farthest = (t >= state.largest) & decreases & (slope <= promised)
    is_lower = is_stuck & (rise < 0) & ~is_noise
    accepted = is_finite & ((decreases & is_flat) | is_farthest | is_lower)
    is_stuck = is_stuck | is_farthest | (t <= 0)
    count = state.count + 1
    after = _narrowed(state, new, promised, is_first_stage, decreases)
    after = after._replace(is_first_stage=is_first_stage)
    chosen = where(is_finite, after, _shortened(state))
    is_stuck = (is_finite & is_stuck) | (chosen.t <= 0)  # at 0 there is nothing to learn
    failed = ~accepted & (is_stuck | (count >= TRIALS))
    goes_on = ~(accepted | failed)
    over = state.accepted | state.failed
    chosen = chosen._replace(
        t=jnp.where(goes_on, chosen.t, t), accepted=accepted, failed=failed, count=count
    )
    return where(over, state, chosen)


def _shortened(state: MoreThuenteState) -> MoreThuenteState:
    """Return the search after a trial whose value or slope is not finite."""
    reach = state.t - state.best.t
    largest = jnp.where(reach > 0, state.best.t + reach / 2, state.largest)
    t = state.best.t + reach / 4
    return state._replace(
        t=t,
        largest=largest,
        low=jnp.where(state.has_interval, state.low, t),
        high=jnp.where(state.has_interval, state.high, largest),
    )


def _narrowed(
    state: MoreThuenteState,
    new: Trial,
    promised: Array,
    is_first_stage: Array,
    decreases: Array,
) -> MoreThuenteState:
    """Return the search with the new trial as an end of the interval, and the next t."""
    # In the first stage a trial that is the lowest so far, but not low enough, is judged by
    # phi(t) - phi(0) - t promised.
    is_modified = is_first_stage & (new.value <= state.best.value) & ~decreases
    tilt = jnp.where(is_modified, promised, 0)

    def tilted(p: Trial, by: Array) -> Trial:
        return Trial(p.t, p.value - p.t * by, p.slope - by)

    ends = tilted(state.best, tilt), tilted(state.other, tilt)
    best, other, t, has_interval = _divided(*ends, tilted(new, tilt), state)
    best, other = tilted(best, -tilt), tilted(other, -tilt)

    width = jnp.abs(other.t - best.t)
    is_slow = width >= 0.66 * state.last_width
    t = jnp.where(has_interval & is_slow, best.t + (other.t - best.t) / 2, t)
    low = jnp.where(has_interval, jnp.minimum(best.t, other.t), t + 1.1 * (t - best.t))
    growth = 4.0 ** jnp.clip(state.count + 2 - PATIENCE, 1, 10).astype(t.dtype)
    high = jnp.where(has_interval, jnp.maximum(best.t, other.t), t + growth * (t - best.t))
    t = jnp.clip(t, 0, state.largest)
    is_stuck = has_interval & ((t <= low) | (t >= high) | (high - low <= PRECISION * high))
    return state._replace(
        t=jnp.where(is_stuck, best.t, t),
        best=best,
        other=other,
        low=low,
        high=high,
        width=jnp.where(has_interval, width, state.width),
        last_width=jnp.where(has_interval, state.width, state.last_width),
        has_interval=has_interval,
    )


def _divided(
    best: Trial, other: Trial, new: Trial, state: MoreThuenteState
) -> tuple[Trial, Trial, Array, Array]:
    """Return the two ends after a trial, the next t, and whether an interval is known.

    The four cases of Moré and Thuente's section 4.
    """
    is_higher = new.value > best.value
    turns = ~is_higher & (new.slope * jnp.sign(best.slope) < 0)
    is_flatter = ~is_higher & ~turns & (jnp.abs(new.slope) < jnp.abs(best.slope))
    is_right = new.t > best.t

    # Moré and Thuente divide the interval from its best end in the first case, else from the new
    # one. `secant` is the zero of the line through the two slopes.
    cubic = _cubic(new, best, must_fall=is_flatter)
    cubic_from_best = _cubic(best, new)
    parabola = best.t + _quotient(
        best.slope, _quotient(best.value - new.value, new.t - best.t) + best.slope
    ) / 2 * (new.t - best.t)
    secant = new.t + _quotient(new.slope, new.slope - best.slope) * (best.t - new.t)

    is_nearer = jnp.abs(cubic_from_best - best.t) <= jnp.abs(parabola - best.t)
    higher = jnp.where(is_nearer, cubic_from_best, (cubic_from_best + parabola) / 2)

    turned = jnp.where(jnp.abs(cubic - new.t) > jnp.abs(secant - new.t), cubic, secant)

    beyond = jnp.where(is_right, state.high, state.low)
    outward = (cubic - new.t) * (new.t - best.t) > 0  # False for a NaN
    cubic = jnp.where(outward, cubic, beyond)
    cubic_is_nearer = jnp.abs(cubic - new.t) < jnp.abs(secant - new.t)
    flatter = jnp.where(cubic_is_nearer == state.has_interval, cubic, secant)
    limit = new.t + 0.66 * (other.t - new.t)
    inside = jnp.where(is_right, jnp.minimum(limit, flatter), jnp.maximum(limit, flatter))
    outside = jnp.clip(flatter, state.low, state.high)
    flatter = jnp.where(state.has_interval, inside, outside)

    steeper = jnp.where(state.has_interval, _cubic(new, other), beyond)

    t = jnp.where(is_flatter, flatter, steeper)
    t = jnp.where(turns, turned, t)
    t = jnp.where(is_higher, higher, t)
    has_interval = state.has_interval | is_higher | turns

    new_other = where(is_higher, new, where(turns, best, other))
    new_best = where(is_higher, best, new)
    return new_best, new_other, t, has_interval


def _cubic(start: Trial, end: Trial, must_fall: Scalar = False) -> Array:
    """Return the minimum of the cubic through two values and slopes.

    Args:
      start: the end from which the minimum is computed.
      end: the other one.
      must_fall: whether a cubic without a minimum gives NaN. Roundings apart, one that is not
        flatter at `start` than at `end`, or has the higher value there, has a minimum.
    """
    x = end.t - start.t
    theta = 3 * _quotient(start.value - end.value, x) + start.slope + end.slope
    size = jnp.maximum(jnp.maximum(jnp.abs(theta), jnp.abs(start.slope)), jnp.abs(end.slope))
    # With the share r of the way from start to end, and all slopes divided by their size, the
    # slope of the cubic is a + 2 b r + c r^2.
    sign = jnp.where(x < 0, -1, 1)
    a, b, z = (_quotient(sign * v, size) for v in (start.slope, -(start.slope + theta), end.slope))
    c = z - a - 2 * b
    squared = _quotient(theta, size) ** 2 - a * z
    spread = root(jnp.maximum(squared, 0))
    # Of the two forms of the root with a slope that rises, the one that does not cancel. A minimum
    # that is many decades nearer than the end would else be at the start.
    share = jnp.where(b > 0, _quotient(-a, b + spread), _quotient(spread - b, c))
    return jnp.where(must_fall & (spread == 0), jnp.nan, start.t + share * x)


def _quotient(a: Array, b: Array) -> Array:
    """Return a / b, or 0 where b is 0."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


announce_named_tuples(__name__)

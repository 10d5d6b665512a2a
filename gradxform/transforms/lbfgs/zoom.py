"""The line search of Nocedal and Wright: step lengths that satisfy the strong Wolfe conditions."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import tree
from gradxform._jax.programs import by_program
from gradxform.base import Transform, transform
from gradxform.errors import require_one_of
from gradxform.leaves.states import check_state, laid_like
from gradxform.numerics import over, scalar
from gradxform.numerics.loops import loop_at_most
from gradxform.numerics.roots import root
from gradxform.slots import zeros_like
from gradxform.transforms.lbfgs.line_search import Line, line_through, print_failure, where
from gradxform.types import (
    Array,
    Bound,
    Choice,
    Limit,
    NonNegative,
    PositiveInt,
    Range,
    Scalar,
    Slot,
)

__all__ = [
    "scale_by_zoom_linesearch",
    "ScaleByZoomLinesearchState",
    "ZoomLinesearchInfo",
]


class ZoomLinesearchInfo(NamedTuple):
    """How the last search of `scale_by_zoom_linesearch` ended."""

    num_linesearch_steps: Array  # int32 scalar; how many step lengths it tried
    decrease_error: Array  # scalar, at least float32; what was missing of the decrease, 0 if enough
    curvature_error: Array  # scalar, at least float32; how much too steep the end was, 0 if not


class ScaleByZoomLinesearchState(NamedTuple):
    """State of `scale_by_zoom_linesearch`."""

    learning_rate: Array  # scalar, at least float32; the step length t of the last search
    value: Array  # scalar, at least float32; the loss there; infinite before the first search
    grad: Slot  # like params, at least float32; the gradient there
    info: ZoomLinesearchInfo


class _Point(NamedTuple):
    """A point of the line: the step length, the loss there and its slope."""

    t: Array
    value: Array
    slope: Array


class _Search(NamedTuple):
    """The state of one search."""

    count: Array
    point: _Point  # the last one that was tried
    grad: Any
    decrease_error: Array
    curvature_error: Array
    # Once an interval is known that holds a good point: its end with the lower loss, the other
    # end, and an earlier point, for the cubic.
    has_interval: Array
    low: _Point
    high: _Point
    third: _Point
    # A point that decreases the loss enough, in case no point is flat enough.
    safe: _Point
    safe_grad: Any
    done: Array
    failed: Array


@transform
class scale_by_zoom_linesearch(Transform):
    """Scale the update by a step length that satisfies the strong Wolfe conditions.

    Update rule, with f the loss, p the parameters, d the incoming update, <d, grad> < 0 its slope,
    and c1 = slope_rtol, c2 = curv_rtol:

        u = t d      with  f(p + t d) <= f(p) + c1 t <d, grad> + tol
                     and   |<d, grad f(p + t d)>| <= c2 |<d, grad>| + tol

    The search multiplies t by `increase_factor` until an interval must hold such a point. Then it
    divides the interval: at the minimum of a cubic or else of a parabola through its ends, or in
    the middle. Near a minimum, where values of the loss differ by roundings only, the first
    condition may instead be that of Hager and Zhang on the slope, for a loss that is at most
    approx_dec_rtol |f(p)| above f(p).

    If no t is found within `max_linesearch_steps`, the best one with enough decrease is taken, or
    else the last one, or 0 where the loss is not finite.

    `update` needs the extra arguments `value`, `grad` and `value_fn`, and hands others that
    `value_fn` names to it; see `scale_by_backtracking_linesearch`. With
    `value_and_grad_from_state`, the value and the gradient of the last search are not computed
    twice.

    Args:
      max_linesearch_steps: how many step lengths may be tried, at least 1.
      max_learning_rate: the largest t, greater than 0. Defaults to no bound.
      tol: what may be missing in both conditions, at least 0.
      increase_factor: what t is multiplied by while no interval is known, greater than 1.
      slope_rtol: the share c1 of the decrease that the slope promises, at least 0.
      curv_rtol: the share c2 of the slope that may be left, at least 0; infinite to ask for a
        decrease only.
      approx_dec_rtol: how much above f(p) the condition on the slope may replace the first one,
        relative to |f(p)|, at least 0. None to never replace it.
      stepsize_precision: the length of the interval at which the search ends with the best t that
        decreases the loss enough, at least 0.
      initial_guess_strategy: "keep" to try the t of the last search first, as for gradient descent;
        "one" to try 1, as for L-BFGS and other methods that know the curvature.
      verbose: whether to print a line when a search fails.
      has_aux: as in `scale_by_backtracking_linesearch`. Keyword-only.

    Raises:
      TypeError: at update, without one of the three extra arguments, or if one is of a wrong kind.
      ValueError: at update, if no parameters are given.

    Reference: Nocedal and Wright, Numerical Optimization, 1999, Algorithms 3.5 and 3.6; Hager and
    Zhang, Algorithm 851: CG_DESCENT, 2006, equations (23) and (26), for the approximate decrease.
    """

    max_linesearch_steps: PositiveInt
    max_learning_rate: Bound | None = None
    tol: NonNegative = 0.0
    increase_factor: Annotated[float, Range("greater than 1", lambda x: x > 1)] = 2.0
    slope_rtol: NonNegative = 1e-4
    curv_rtol: Limit = 0.9
    approx_dec_rtol: NonNegative | None = 1e-6
    stepsize_precision: NonNegative = 1e-5
    initial_guess_strategy: Choice = "keep"
    verbose: bool = False
    has_aux: bool = field(default=False, kw_only=True)

    locality = "tree"

    def __post_init__(self):
        require_one_of(self, "initial_guess_strategy", ("one", "keep"))

    def init(self, params):
        """Return a step length of 1, an infinite loss, and a gradient of zeros."""
        return ScaleByZoomLinesearchState(
            learning_rate=scalar(1.0),
            value=scalar(jnp.inf),
            grad=zeros_like(params),
            info=ZoomLinesearchInfo(jnp.zeros((), jnp.int32), scalar(jnp.inf), scalar(jnp.inf)),
        )

    def update(self, updates, state, params=None, *, value=None, grad=None, value_fn=None, **extra):
        """Return the update times the step length."""
        state = check_state(self, state, ScaleByZoomLinesearchState)
        line = line_through(self, updates, params, value, grad, value_fn, extra)
        guess = state.learning_rate if self.initial_guess_strategy == "keep" else scalar(1.0)
        begun = _begun(line, line.like(grad, state.grad))
        ended = by_program(
            lambda begun, guess: loop_at_most(
                self.max_linesearch_steps,
                lambda search: ~(search.done | search.failed),
                lambda search: self._step(line, guess, search),
                begun,
            ),
            begun,
            guess,
        )
        if self.verbose:
            print_failure(self, ended.failed, line, ended.point.t, ended.decrease_error)
        t = ended.point.t
        new = ScaleByZoomLinesearchState(
            learning_rate=t,
            value=ended.point.value,
            grad=ended.grad,
            info=ZoomLinesearchInfo(ended.count, ended.decrease_error, ended.curvature_error),
        )
        return line.step(t), laid_like(tree.cast_like(new, state), state)

    # -------------------------------------------------------------------------- one step length

    def _step(self, line: Line, guess: Array, search: _Search) -> _Search:
        """Try another step length: beyond the last one, or in the interval."""
        outer, at_bound = self._beyond(guess, search)
        t = jnp.where(search.has_interval, _inside_interval(search), outer)
        value, full = jax.value_and_grad(line.loss)(line.at(t))
        new = _Point(t, value, line.slope_of(full))
        grad = line.like(full, search.grad)
        decrease_error = self._decrease_error(line, new)
        curvature_error = _error_at_least_zero(jnp.abs(new.slope) - self._flat(line))
        is_good = jnp.maximum(decrease_error, curvature_error) <= self.tol

        grown, found = self._grown(search, new, decrease_error, is_good)
        ends = where(search.has_interval, _shrunk_interval(search, new, decrease_error), grown)
        # Outside an interval the last safe point is the best, inside it is the lowest.
        is_safe = (decrease_error <= self.tol) & (
            ~search.has_interval | (value < search.safe.value)
        )
        safe, safe_grad = where(is_safe, (new, grad), (search.safe, search.safe_grad))
        is_short = jnp.abs(search.high.t - search.low.t) <= self.stepsize_precision
        gives_up = search.has_interval & is_short & (safe.t > 0)
        done = is_good | (~search.has_interval & at_bound & ~found)
        failed = ~done & (gives_up | (search.count + 1 >= self.max_linesearch_steps))
        takes_safe = failed & ((safe.t > 0) | jnp.isinf(decrease_error))
        point, grad = where(takes_safe, (safe, safe_grad), (new, grad))
        return _Search(
            count=search.count + 1,
            point=point,
            grad=grad,
            decrease_error=decrease_error,
            curvature_error=curvature_error,
            has_interval=search.has_interval | found,
            low=ends[0],
            high=ends[1],
            third=ends[2],
            safe=safe,
            safe_grad=safe_grad,
            done=done,
            failed=failed,
        )

    def _beyond(self, guess: Array, search: _Search) -> tuple[Array, Array]:
        """Return the next step length while no interval is known, and whether it is the largest."""
        t = jnp.where(search.count == 0, guess, self.increase_factor * search.point.t)
        if self.max_learning_rate is None:
            return scalar(t), jnp.zeros((), jnp.bool_)
        return scalar(jnp.minimum(t, self.max_learning_rate)), t >= self.max_learning_rate

    def _grown(
        self, search: _Search, new: _Point, decrease_error: Array, is_good: Array
    ) -> tuple[tuple[_Point, _Point, _Point], Array]:
        """Return the interval between the last two points, and whether it holds a good one.

        Nocedal and Wright, Algorithm 3.5.
        """
        last = search.point
        is_high = (decrease_error > 0) | ((new.value >= last.value) & (search.count > 0))
        is_low = (new.slope >= 0) & ~is_high
        low, high = where(is_low, (new, last), (last, new))
        return (low, high, low), is_high | is_low | is_good

    def _flat(self, line: Line) -> Array:
        """Return the largest slope that satisfies the second condition."""
        if isinstance(self.curv_rtol, float) and self.curv_rtol == jnp.inf:
            return scalar(jnp.inf)
        return self.curv_rtol * jnp.abs(line.slope)

    def _decrease_error(self, line: Line, new: _Point) -> Array:
        """Return what is missing of the first condition, or of the approximate one."""
        error = new.value - line.value - self.slope_rtol * new.t * line.slope
        if self.approx_dec_rtol is not None:
            of_slope = new.slope - (2 * self.slope_rtol - 1) * line.slope
            of_value = new.value - line.value - self.approx_dec_rtol * jnp.abs(line.value)
            error = jnp.minimum(jnp.maximum(of_slope, of_value), error)
        return _error_at_least_zero(error)


def _error_at_least_zero(error: Array) -> Array:
    """Return an error, infinite for a NaN."""
    return jnp.where(jnp.isnan(error), jnp.inf, jnp.maximum(error, 0))


def _begun(line: Line, grad: Any) -> _Search:
    start = _Point(scalar(0.0), line.value, line.slope)
    zero = _Point(scalar(0.0), line.value, line.slope)
    no = jnp.zeros((), jnp.bool_)
    return _Search(
        count=jnp.zeros((), jnp.int32),
        point=start,
        grad=grad,
        decrease_error=scalar(jnp.inf),
        curvature_error=scalar(jnp.inf),
        has_interval=no,
        low=zero,
        high=zero,
        third=zero,
        safe=start,
        safe_grad=grad,
        done=no,
        failed=no,
    )


def _shrunk_interval(
    search: _Search, new: _Point, decrease_error: Array
) -> tuple[_Point, _Point, _Point]:
    """Return the interval with the new point as one end; Nocedal and Wright, Algorithm 3.6."""
    low, high = search.low, search.high
    is_high = (decrease_error > 0) | (new.value >= low.value)
    turns = ~is_high & (new.slope * (high.t - low.t) >= 0)
    third = where(is_high | turns, high, low)
    new_high = where(is_high, new, where(turns, low, high))
    return where(is_high, low, new), new_high, third


def _inside_interval(search: _Search) -> Array:
    """Return where to divide the interval: at the minimum of a cubic or parabola, or in half."""
    low, high = search.low, search.high
    left, right = jnp.minimum(low.t, high.t), jnp.maximum(low.t, high.t)
    length = right - left

    def is_well_inside(t: Array, margin: float) -> Array:  # False for a NaN
        return (t > left + margin * length) & (t < right - margin * length)

    cubic, parabola = (
        _minimum_of_cubic(low, high, search.third),
        _minimum_of_parabola(low, high),
    )
    t = jnp.where(is_well_inside(parabola, 0.1), parabola, (low.t + high.t) / 2)
    return jnp.where(is_well_inside(cubic, 0.2), cubic, t)


def _minimum_of_parabola(low: _Point, high: _Point) -> Array:
    """Return the minimum of the parabola through two values and the slope at `low`.

    NaN where there is none; derivatives are finite there, too.
    """
    x = high.t - low.t
    square = x * x
    curvature = over(high.value - low.value - low.slope * x, square)
    t = low.t - over(low.slope, 2 * curvature)
    return jnp.where((square == 0) | (curvature == 0), jnp.nan, t)


def _minimum_of_cubic(low: _Point, high: _Point, third: _Point) -> Array:
    """Return the minimum of the cubic through three values and the slope at `low`.

    NaN where there is none, or where two of the points are one; derivatives are finite there, too.
    """

    def above_tangent(point: _Point) -> tuple[Array, Array]:
        x = point.t - low.t
        return x, point.value - low.value - low.slope * x

    (x, r), (z, s) = above_tangent(high), above_tangent(third)
    below: Scalar = (x * z) ** 2 * (x - z)
    a = over(z * z * r - x * x * s, below)
    b = over(x * x * x * s - z * z * z * r, below)
    squared = b * b - 3 * a * low.slope
    t = low.t + over(root(jnp.maximum(squared, 0)) - b, 3 * a)
    return jnp.where((below != 0) & (a != 0) & (squared >= 0), t, jnp.nan)

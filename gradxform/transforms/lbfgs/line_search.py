"""Line searches: how far to go along the update, by trying values of the loss."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import tree
from gradxform._jax.programs import by_program
from gradxform.base import Transform, transform
from gradxform.errors import name_of, shown
from gradxform.leaves import align, align_params, require_params
from gradxform.leaves.states import check_state, laid_like
from gradxform.numerics import add, at_least_float32, cast, promote, scalar, scalar_dtype
from gradxform.numerics.loops import loop_at_most
from gradxform.slots import zeros_like
from gradxform.transforms.tree_rules import as_loss
from gradxform.tree.apply import apply_updates
from gradxform.tree.by_value import by_value
from gradxform.types import (
    Array,
    Bound,
    Fraction,
    NonNegative,
    NonNegativeInt,
    Params,
    Slot,
    Updates,
)
from gradxform.values.extra_args import given_what_it_names

__all__ = [
    "scale_by_backtracking_linesearch",
    "BacktrackingLinesearchInfo",
    "ScaleByBacktrackingLinesearchState",
]


# ------------------------------------------------------------------- what all line searches share


class Line(NamedTuple):
    """The loss along a line: parameters + t updates."""

    part: Any  # the line search, for messages
    value_fn: Callable[[Params], Any]  # the loss of parameters alone
    params: Params
    updates: Updates
    value: Array  # the loss at t = 0
    slope: Array  # its derivative by t at t = 0

    def step(self, t: Array) -> Updates:
        """Return t updates, in the dtypes of the updates."""
        return tree.cast_like(tree.scale(t, self.updates), self.updates)

    def at(self, t: Array) -> Params:
        """Return the parameters after that step."""
        return apply_updates(self.params, self.step(t))

    def loss(self, params: Params) -> Array:
        """Return the loss as a scalar of the step."""
        value = self.value_fn(params)
        # A loop such as `make_step` leaves aux out for all parts.
        if self.part.has_aux and isinstance(value, tuple):
            value = without_aux(self.part, "value_fn", value)
        return as_loss(
            self.part, value, "the value of value_fn", "let the search have has_aux=True"
        )

    def like(self, grad: Updates, slot: Any) -> Any:
        """Return a slot with this gradient, but with its old leaves where there is no update."""
        treedef = jax.tree.structure(self.updates)
        gs = align(self.part, self.updates, treedef, grad, "grad has").leaves
        kept = align(self.part, self.updates, treedef, slot, "the state's grad has")
        pairs = zip(gs, kept.leaves, strict=True)
        return kept.rebuilt([cast(jnp.asarray(g), s.dtype) for g, s in pairs])

    def slope_of(self, grad: Updates) -> Array:
        """Return the derivative by t of a loss with this gradient."""
        return _slope(self.part, self.updates, grad)


def line_through(
    part: Any,
    updates: Updates,
    params: Params | None,
    value: Any,
    grad: Updates | None,
    value_fn: Any,
    extra: dict[str, Any],
) -> Line:
    """Return the loss along the line from the arguments of a line search's `update`."""
    for name, x in (("value", value), ("grad", grad), ("value_fn", value_fn)):
        if x is None:
            raise TypeError(
                f"{name_of(part)}: needs the extra argument {name!r}; call update(updates, state, "
                "params, value=loss, grad=gradient, value_fn=loss_fn)."
            )
    require_params(part, params)
    align_params(part, updates, jax.tree.structure(updates), params)
    if not callable(value_fn):
        raise TypeError(
            f"{name_of(part)}: value_fn must be the loss, a function of the parameters, got "
            f"{shown(value_fn)}."
        )
    at_params = given_what_it_names(part, "value_fn", value_fn, extra)
    slope = _slope(part, updates, grad)
    return Line(part, at_params, params, updates, as_loss(part, value), slope)


def without_aux(part: Any, function: str, result: Any) -> Any:
    """Return the value of a pair `(value, aux)`, or raise if a function returns no pair."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"{name_of(part)}: {function} must return a pair (value, aux), got {shown(result)}; or "
            "leave out has_aux."
        )
    return result[0]


def _slope(part: Any, updates: Updates, grad: Updates) -> Array:
    """Return the sum of the products of all entries, in float32 or wider."""
    us, treedef = jax.tree.flatten(updates)
    gs = align(part, updates, treedef, grad, "grad has").leaves
    total = jnp.zeros((), scalar_dtype())
    for u, g in zip(us, gs, strict=True):
        if jnp.shape(u) != jnp.shape(g):
            raise ValueError(
                f"{name_of(part)}: an update has shape {jnp.shape(u)}, its leaf of grad has "
                f"{jnp.shape(g)}; grad is the gradient at the parameters."
            )
        u, g = jnp.asarray(u), jnp.asarray(g)
        wide = at_least_float32(promote(u.dtype, g.dtype))
        total = add(total, scalar(jnp.real(jnp.sum(cast(u, wide) * cast(g, wide)))))
    return total


def where(condition: Array, new: Any, old: Any) -> Any:
    """Return one of two trees of equal dtypes."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


# --------------------------------------------------------------------------------- backtracking


class BacktrackingLinesearchInfo(NamedTuple):
    """How the last search of `scale_by_backtracking_linesearch` ended."""

    num_linesearch_steps: Array  # int32 scalar; how many step lengths it tried
    decrease_error: Array  # scalar, at least float32; what was missing of the decrease, 0 if enough


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """State of `scale_by_backtracking_linesearch`."""

    learning_rate: Array  # scalar, at least float32; the step length t of the last search
    value: Array  # scalar, at least float32; the loss there; infinite before the first search
    grad: Slot  # like params, at least float32; the gradient there; None without store_grad
    info: BacktrackingLinesearchInfo


class _Backtracking(NamedTuple):
    t: Array
    value: Array
    grad: Any
    error: Array
    count: Array


@transform
class scale_by_backtracking_linesearch(Transform):
    """Scale the update by a step length that decreases the loss enough, found by shrinking it.

    Update rule, with f the loss, p the parameters, d the incoming update and t of the last search
    (1 at first):

        t <- min(increase_factor t, max_learning_rate)
        t <- decrease_factor t
            until f(p + t d) <= (1 + rtol) f(p) + slope_rtol t <d, grad> + atol
        u = t d

    d must descend: <d, grad> < 0, as with `sgd`. The search must be the last part of a chain that
    changes the updates. If no step length is good after `max_backtracking_steps` shrinkings, the
    last one is taken, or 0 where the loss is not finite there; after a 0, the next search starts
    from 1.

    `update` needs the extra arguments `value`, `grad` and `value_fn`: the loss and its gradient
    at the parameters, as `jax.value_and_grad` returns them, and the loss as a function. Other extra
    arguments that `value_fn` names, such as a batch, go to it:
    `update(updates, state, params, value=value, grad=grad, value_fn=loss, batch=batch)`.

    Args:
      max_backtracking_steps: how often t may shrink, at least 0.
      slope_rtol: the share of the decrease that the slope promises, at least 0.
      decrease_factor: what t is multiplied by while the decrease is too small, in (0, 1).
      increase_factor: what the last t is multiplied by for a first guess, greater than 0; infinite
        to start from max_learning_rate.
      max_learning_rate: the largest t, greater than 0; infinite for no bound.
      atol: what may be missing of the decrease, at least 0.
      rtol: the same, as a share of the loss, at least 0.
      store_grad: whether to compute and keep the gradient at p + u, for
        `value_and_grad_from_state`.
      verbose: whether to print a line when a search fails.
      has_aux: whether `value_fn` may return a pair `(value, aux)`. The search looks at the value;
        `value_and_grad_from_state` with `has_aux` returns aux at the parameters that it chose.
        Keyword-only.

    Raises:
      TypeError: at update, without one of the three extra arguments, or if one is of a wrong kind.
      ValueError: at update, if no parameters are given.

    Reference: Nocedal and Wright, Numerical Optimization, 1999, Algorithm 3.1; Vaswani et al.,
    Painless Stochastic Gradient, 2019.
    """

    max_backtracking_steps: NonNegativeInt
    slope_rtol: NonNegative = 1e-4
    decrease_factor: Fraction = 0.8
    increase_factor: Bound = 1.5
    max_learning_rate: Bound = 1.0
    atol: NonNegative = 0.0
    rtol: NonNegative = 0.0
    store_grad: bool = False
    verbose: bool = False
    has_aux: bool = field(default=False, kw_only=True)

    locality = "tree"

    def init(self, params):
        """Return a step length of 1, and an infinite loss."""
        return ScaleByBacktrackingLinesearchState(
            learning_rate=scalar(1.0),
            value=scalar(jnp.inf),
            grad=zeros_like(params) if self.store_grad else None,
            info=BacktrackingLinesearchInfo(jnp.zeros((), jnp.int32), scalar(jnp.inf)),
        )

    def update(self, updates, state, params=None, *, value=None, grad=None, value_fn=None, **extra):
        """Return the update times the step length."""
        state = check_state(self, state, ScaleByBacktrackingLinesearchState)
        line = line_through(self, updates, params, value, grad, value_fn, extra)
        guess = jnp.where(state.learning_rate > 0, self.increase_factor * state.learning_rate, 1.0)
        begun = _Backtracking(
            t=scalar(jnp.minimum(guess, self.max_learning_rate)),
            value=line.value,
            grad=state.grad,
            error=scalar(jnp.inf),
            count=jnp.zeros((), jnp.int32),
        )
        ended = by_program(
            lambda begun: loop_at_most(
                self.max_backtracking_steps + 1,
                self._goes_on,
                lambda search: self._step(line, search),
                begun,
            ),
            begun,
        )
        t = jnp.where(jnp.isinf(ended.error), 0, ended.t)
        if self.verbose:
            print_failure(self, ended.error > self.atol, line, ended.t, ended.error)
        new = ScaleByBacktrackingLinesearchState(
            learning_rate=t,
            value=ended.value,
            grad=ended.grad,
            info=BacktrackingLinesearchInfo(ended.count, ended.error),
        )
        return line.step(t), laid_like(tree.cast_like(new, state), state)

    def _goes_on(self, search: _Backtracking) -> Array:
        is_good = search.error <= self.atol
        return ~is_good & (search.count <= self.max_backtracking_steps)

    def _step(self, line: Line, search: _Backtracking) -> _Backtracking:
        """Try the next step length."""
        t = jnp.where(search.count > 0, self.decrease_factor * search.t, search.t)
        place, grad = line.at(t), search.grad
        if self.store_grad:
            value, backward = jax.vjp(line.loss, place)
            error = self._error(line, t, value)
            last = (error <= self.atol) | (search.count >= self.max_backtracking_steps)

            def gradient() -> Any:
                (full,) = backward(jnp.ones_like(value))
                return line.like(full, grad)

            grad = lax.cond(last, gradient, lambda: grad)
        else:
            value = line.loss(place)
            error = self._error(line, t, value)
        return _Backtracking(t, value, grad, error, search.count + 1)

    def _error(self, line: Line, t: Array, value: Array) -> Array:
        """Return what is missing of the decrease, at least 0; infinite for a NaN."""
        # Beside a large value, a sum with it would round the demand away; a difference does not.
        rise = value - line.value
        error = rise - (self.rtol * line.value + self.slope_rtol * t * line.slope)
        return jnp.where(jnp.isnan(error), jnp.inf, jnp.maximum(error, 0))


def print_failure(part: Any, failed: Array, line: Line, t: Array, error: Array) -> None:
    """Print a line where a search failed."""
    by_value(_print_failure, name_of(part), (failed, t, error, line.value, line.slope))


def _print_failure(
    name: str, failed: Array, t: Array, error: Array, value: Array, slope: Array
) -> None:
    text = name + (
        ": the search failed at step length {t}; missing decrease {error}, loss {value}, slope "
        "{slope}"
    )

    def report() -> None:
        jax.debug.print(text, t=t, error=error, value=value, slope=slope)

    lax.cond(failed, report, lambda: None)

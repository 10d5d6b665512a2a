"""L-BFGS-B: L-BFGS between bounds, with its line search in the state."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, tree
from gradxform.base import Transform, transform
from gradxform.errors import name_of, require_at_least
from gradxform.leaves import (
    align_params,
    align_slot,
    check_shapes,
    is_abstract,
    path_at,
    require_params,
)
from gradxform.numerics import (
    cast,
    safe_increment,
    scalar,
    scalar_dtype,
)
from gradxform.slots import zero_count, zeros_like
from gradxform.states import check_state, laid_like
from gradxform.transforms import bounds, more_thuente
from gradxform.transforms.cauchy import Box
from gradxform.transforms.compact import Memory, order_of, summed
from gradxform.transforms.lbfgs import check_memory, empty_memory
from gradxform.transforms.lbfgs_shared import (
    is_curved,
    progressed,
    put,
    scale_of,
    scaled_square,
    shifted_squares,
)
from gradxform.transforms.lbfgs_steps import ACCEPTED_INSTEAD, PATIENCE
from gradxform.transforms.line_search import where
from gradxform.transforms.more_thuente import MoreThuenteState
from gradxform.transforms.subspace import lengths, target
from gradxform.transforms.tree_rules import as_loss, copied
from gradxform.types import (
    Array,
    NonNegative,
    OptState,
    Params,
    PyTree,
    Size,
    Slot,
    StaticTree,
    Updates,
)

__all__ = [
    "step_by_lbfgsb",
    "StepByLBFGSBState",
]


class StepByLBFGSBState(NamedTuple):
    """State of `step_by_lbfgsb`."""

    count: Array  # int32 scalar; the number of updates, each with one value and one gradient
    iterations: Array  # int32 scalar; the number of searches that ended with an accepted point
    pairs: Array  # int32 scalar; how many pairs were stored since the memory was last forgotten
    idle: Array  # int32 scalar; the number of accepted points since the last one with progress
    started: Array  # boolean scalar; whether the first point was accepted
    converged: Array  # boolean scalar; whether the projected gradient is at most `tol` long
    stalled: Array  # boolean scalar; whether roundings prevent progress
    failed: Array  # boolean scalar; whether not even the gradient leads to a lower loss
    lower: Slot  # like params, at least float32; the lower bounds
    upper: Slot  # like params, at least float32; the upper bounds
    params: Slot  # like params, at least float32; the accepted point x
    updates: Slot  # like params, at least float32; the gradient there
    target: Slot  # like params, at least float32; the search goes from x towards this point
    diff_params_memory: Slot  # (memory_size, *shape) per parameter; the last steps s
    diff_updates_memory: Slot  # (memory_size, *shape) per parameter; the changes y of the gradient
    s_y: Array  # (memory_size,), at least float32; <s, y> of every pair
    theta: Array  # scalar, at least float32; <y, y> / <s, y> of the last pair
    scale: Array  # scalar, at least float32; a power of 2 by which gradients and values are divided
    last_value: Array  # scalar, at least float32; the value at the last point with progress
    last_squared: Array  # scalar, at least float32; the projected gradient's square there
    search: MoreThuenteState  # the search towards the target; its `value` is that at x

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the accepted point."""
        return {"params": self.params}

    def exchanged(self, name: str, params: Params) -> "StepByLBFGSBState":
        """Return the state that keeps `params` in its place."""
        return self._replace(params=copied(params))


_SLOTS = (
    "lower",
    "upper",
    "params",
    "updates",
    "target",
    "diff_params_memory",
    "diff_updates_memory",
)


@transform
class step_by_lbfgsb(Transform):
    """Emit the whole step of L-BFGS-B to the next point at which it needs the loss.

    Update rule, all parameters in one vector, with x the accepted point, g its gradient, e the
    target and t a step length; p are the parameters, `value` and the gradient are those at p. If t
    satisfies the strong Wolfe conditions, p is accepted, and the first four lines apply:

        x <- p;    g <- gradient                                 (if p is accepted)
        z <- the Cauchy point of the model <g, z - x> + <z - x, B (z - x)> / 2
        e <- its minimum over the entries of z that are not at a bound, projected
        t <- 1
        t <- another one                                         (if not)
        u = x + t (e - x) - p

    The pair (s, y) of the changes of x and g is stored first. Without a pair, t begins at
    min(1, 1 / |e - x|) or less.

    B is the matrix of L-BFGS of the last `memory_size` pairs. The Cauchy point is the first minimum
    of the model along the path x - r g, on which an entry that reaches its bound stays there. If
    the projected minimum leads uphill, e is the last point inside the bounds on the way to it.
    The steps are those of SciPy's L-BFGS-B. The parameters and all points that are asked for are
    between the bounds.

    The line search, the three flags, the `scale` of the state, and what happens at values that are
    not finite are those of `step_by_lbfgs`; |g| is there the length of the projected gradient,
    x - clip(x - g, lower, upper). Evaluate and save `eval_params(state, params)`, which is x.

    The state holds the bounds as arrays, `lower` and `upper`. The path needs the order in which all
    entries reach their bounds, so that every direction sorts one vector of the size of all
    parameters; and the memory is read four times a direction.

    Args:
      memory_size: how many pairs are kept, at least 1.
      lower: the lower bounds: None for none; a number; a tree of numbers, lists of numbers, and
        None, which may be a prefix of the parameters; or a function of the parameters that returns
        such a tree, also of arrays. Infinite where there is none.
      upper: the upper bounds, likewise. An entry with equal bounds does not move.
      tol: the length of the projected gradient at which the run has converged, at least 0.

    Raises:
      TypeError: at init, for complex parameters; at update, without `value`, or if it is not a
        scalar.
      ValueError: at init, if bounds cross, do not have the leaves or shapes of the parameters, or
        do not contain them (parameters that are traced start from the nearest point that they
        contain); at update, if no parameters are given, or with a state of another memory size.

    Reference: Byrd, Lu, Nocedal and Zhu, A limited memory algorithm for bound constrained
    optimization, 1995; Morales and Nocedal, Remark on "Algorithm 778: L-BFGS-B", 2011; Moré and
    Thuente, Line search algorithms with guaranteed sufficient decrease, 1994.
    """

    memory_size: Size = 10
    lower: StaticTree = None
    upper: StaticTree = None
    tol: NonNegative = 0.0

    State = StepByLBFGSBState
    locality = "tree"
    sets_params = True
    undoes_moves = True
    leaves_path = ACCEPTED_INSTEAD

    def __post_init__(self):
        require_at_least(self, 1, "memory_size")

    def init(self, params: Params) -> StepByLBFGSBState:
        """Return the bounds and an empty memory, with the parameters as the accepted point."""
        _check_real(self, params)
        lower, upper = bounds.resolved(self, params, self.lower, self.upper)
        m, no, infinite = self.memory_size, jnp.zeros((), jnp.bool_), scalar(jnp.inf)

        state = StepByLBFGSBState(
            count=zero_count(),
            iterations=zero_count(),
            pairs=zero_count(),
            idle=zero_count(),
            started=no,
            converged=no,
            stalled=no,
            failed=no,
            lower=lower,
            upper=upper,
            params=copied(params),
            updates=zeros_like(params),
            target=copied(params),
            diff_params_memory=empty_memory(params, m),
            diff_updates_memory=empty_memory(params, m),
            s_y=jnp.ones(m, scalar_dtype()),
            theta=scalar(1.0),
            scale=scalar(1.0),
            last_value=infinite,
            last_squared=infinite,
            search=more_thuente.begun(infinite, scalar(-1.0), 1.0),
        )
        # Every leaf has a buffer of its own, which may be donated.
        return jax.tree.map(lambda x: x if is_abstract(x) else jnp.copy(x), state)

    def update(
        self,
        updates: Updates,
        state: OptState,
        params: Params | None = None,
        *,
        value: Any = None,
        **extra: Any,
    ) -> tuple[Updates, StepByLBFGSBState]:
        """Return the step to the next point, and the state after the value and gradient here."""
        require_params(self, params)
        if value is None:
            raise TypeError(
                f"{name_of(self)}: needs the extra argument 'value'; call update(updates, state, "
                "params, value=loss)."
            )
        given = state
        state = check_state(self, state, StepByLBFGSBState)
        check_memory(self, state.s_y)
        value = as_loss(self, value)
        _check_real(self, updates)
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params).leaves
        slots = {name: align_slot(self, updates, treedef, state, name) for name in _SLOTS}
        for name in _SLOTS[:5]:
            check_shapes(self, updates, slots[name].leaves, f"the state's {name} has")
        if not gs:
            return updates, state._replace(count=safe_increment(state.count))
        leaves = state._replace(**{name: slot.leaves for name, slot in slots.items()})
        us, new = _step(gs, leaves, ps, value, scalar(self.tol), scalar_dtype())
        new = new._replace(**{k: slot.rebuilt(getattr(new, k)) for k, slot in slots.items()})
        new = laid_like(new, given)
        return jax.tree.unflatten(treedef, us), new


def _check_real(part: Any, arrays: PyTree) -> None:
    for index, leaf in enumerate(jax.tree.leaves(arrays)):
        if jnp.iscomplexobj(leaf):
            raise TypeError(
                f"{name_of(part)}: {path_at(arrays, index)} is complex, and complex numbers have "
                "no bounds; wrap the optimizer in split_real_and_imaginary(...)."
            )


@functools.partial(jax.jit, static_argnums=5)
def _step(
    gs: list[Any],
    state: StepByLBFGSBState,
    ps: list[Any],
    value: Array,
    tol: Array,
    dtype: Any,  # of the scalars, which the key of the compiled form must have
) -> tuple[list[Array], StepByLBFGSBState]:
    """Return the updates and the state, all trees as lists of their leaves."""
    old = state
    low, high, x = state.lower, state.upper, state.params
    columns = [gs, ps, *(getattr(state, k) for k in _SLOTS[:5])]
    measured = engine.map_rows(_measure, columns, 1 / state.scale)
    slope, s_s, s_y, y_y, g_g, squared, far, near, absolute, size, outside = summed(measured)
    scale = jnp.where(state.started, state.scale, scale_of(size, value))
    squared = jnp.where(state.started, squared, scaled_square(squared, (far, near), scale))
    # A gradient whose square is 0 in this dtype may be longer than `tol`.
    length = jnp.where(squared > 0, scale * jnp.sqrt(squared), absolute * state.scale)
    value = value / scale

    is_finite = jnp.isfinite(value) & jnp.isfinite(slope) & jnp.isfinite(squared)
    is_over = state.converged | state.stalled | state.failed
    is_first = ~state.started
    search = more_thuente.advanced(state.search, value, jnp.where(is_finite, slope, jnp.nan))
    accepted = ~is_over & jnp.where(is_first, is_finite & (outside == 0), search.accepted)
    gave_up = ~is_over & ~is_first & search.failed
    restarts = gave_up & (state.pairs > 0)

    stored = accepted & ~is_first & is_curved(s_s, s_y, y_y, g_g)
    m = len(state.s_y)
    newest = jnp.mod(state.pairs, m)
    columns = [gs, ps, x, *(getattr(state, k) for k in ("updates", *_SLOTS[5:]))]
    kept = engine.map_rows(_keep, columns, accepted | is_first, stored, newest, 1 / scale)
    x, g, s, y = ([leaf[i] for leaf in kept] for i in range(4))
    theta = jnp.where(stored, y_y / s_y, state.theta)
    s_y = jnp.where(stored, state.s_y.at[newest].set(s_y), state.s_y)
    pairs = jnp.where(restarts, 0, state.pairs + stored.astype(state.pairs.dtype))

    trial, value = value, jnp.where(accepted, value, state.search.value)
    progress = progressed(state, accepted, value, squared, search.noise)
    converged = state.converged | (accepted & (length <= tol))
    # At the end of a search along the gradient: has the last trial become too short?
    is_close = jnp.abs(trial - old.search.value) <= old.search.noise
    ends = gave_up & ~restarts
    stalled = (ends & is_close) | (accepted & ~converged & (progress["idle"] >= PATIENCE))

    starts = (accepted | restarts) & ~converged
    box = Box(x, g, low, high)
    aim, slope, pairs = _aim(box, _memory(s, y, s_y, theta, pairs), state.target, pairs, starts)
    iterations = state.iterations + (accepted & ~is_first).astype(state.iterations.dtype)
    first, largest = lengths(box, aim, iterations == 0, pairs > 0)
    search = where(starts, more_thuente.begun(value, slope, first, largest), search)

    state = state._replace(
        count=safe_increment(state.count),
        iterations=iterations,
        pairs=pairs,
        started=state.started | accepted,
        converged=converged,
        stalled=state.stalled | stalled,
        failed=state.failed | (ends & ~is_close) | (is_first & ~is_finite & (outside == 0)),
        params=x,
        updates=g,
        target=aim,
        diff_params_memory=s,
        diff_updates_memory=y,
        s_y=s_y,
        theta=theta,
        scale=jnp.where(is_first & ~accepted, state.scale, scale),
        search=search,
        **progress,
    )
    is_over = state.converged | state.stalled | state.failed
    t = jnp.where(is_over | ~state.started, 0, search.t)
    us = engine.map_rows(bounds.update_towards, [gs, ps, x, aim, low, high], t)
    return us, tree.cast_like(state, old)


def _measure(
    g: Any,
    p: Any,
    low: Array,
    high: Array,
    x: Array,
    last_g: Array,
    aim: Array,
    per_scale: Array,
) -> tuple[Array, ...]:
    """Return the slope of the search, products of the new pair, and how the point lies."""
    g, p, per_scale = (cast(jnp.asarray(v), x.dtype) for v in (g, p, per_scale))
    g = g * per_scale
    s, y = p - x, g - last_g
    # p - clip(p - g, low, high), without the rounding of p - g.
    projected = jnp.clip(g, (p - high) * per_scale, (p - low) * per_scale)
    outside = jnp.sum((p < low) | (p > high), dtype=x.dtype)
    products = (g * (aim - x), s * s, s * y, y * y, last_g * last_g)
    squares = jnp.sum(projected * projected), *shifted_squares(projected)
    absolute = jnp.sum(jnp.abs(projected)), jnp.sum(jnp.abs(g))
    return *map(jnp.sum, products), *squares, *absolute, outside


def _keep(
    g: Any,
    p: Any,
    x: Array,
    last_g: Array,
    s: Array,
    y: Array,
    accepted: Array,
    stored: Array,
    newest: Array,
    per_scale: Array,
) -> tuple[Array, ...]:
    """Return x, the gradient there, and the memory after this point."""
    g, p = (cast(jnp.asarray(v), x.dtype) for v in (g, p))
    g = g * cast(per_scale, x.dtype)
    kept = put(s, p - x, newest, stored), put(y, g - last_g, newest, stored)
    return jnp.where(accepted, p, x), jnp.where(accepted, g, last_g), *kept


def _aim(
    box: Box, memory: Memory, old: list[Array], pairs: Array, starts: Array
) -> tuple[list[Array], Array, Array]:
    """Return the target of a new search, the slope towards it, and how many pairs still count.

    Where the memory leads uphill, or roundings spoil its matrices, it is forgotten.
    """

    def attempt(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        _, _, _, pairs = carry
        known = pairs > 0
        aim, slope = target(box, where(known, memory, memory.forgotten()))
        is_good = jnp.isfinite(slope) & (slope < 0)
        return is_good | ~known, aim, slope, jnp.where(is_good, pairs, 0)

    carry = (~starts, old, jnp.zeros_like(memory.theta), pairs)
    return lax.while_loop(lambda carry: ~carry[0], attempt, carry)[1:]


def _memory(s: list[Array], y: list[Array], s_y: Array, theta: Array, pairs: Array) -> Memory:
    has, later = order_of(pairs, len(s_y))
    scales = jnp.where(has, lax.rsqrt(jnp.where(has, s_y, 1)), 0)
    return Memory(s, y, scales, later, jnp.where(pairs > 0, theta, 1))

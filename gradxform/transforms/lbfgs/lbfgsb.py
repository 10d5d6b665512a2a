"""L-BFGS-B: L-BFGS between bounds, with its line search in the state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import transform
from gradxform.errors import name_of
from gradxform.leaves import path_at
from gradxform.numerics import cast, scalar_dtype
from gradxform.numerics.loops import loop_at_most
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.lbfgs import bounds
from gradxform.transforms.lbfgs.cauchy import Box
from gradxform.transforms.lbfgs.compact import Memory, order_of, sums_over_leaves
from gradxform.transforms.lbfgs.line_search import where
from gradxform.transforms.lbfgs.machine import (
    SearchingTransform,
    Step,
    Sums,
    Way,
    first_machine_fields,
    own_buffers,
)
from gradxform.transforms.lbfgs.more_thuente import MoreThuenteState
from gradxform.transforms.lbfgs.subspace import step_lengths, subspace_target
from gradxform.transforms.lbfgs.units import squares_in_range
from gradxform.types import Array, NonNegative, PyTree, Size, Slot, StaticTree


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
    direction: Slot  # like params, at least float32; e - x for the target e of the search
    diff_params_memory: Slot  # (memory_size, *shape) per parameter; the last steps s
    diff_updates_memory: Slot  # (memory_size, *shape) per parameter; the changes y of the gradient
    s_y: Array  # (memory_size,), at least float32; <s, y> of every pair
    theta: Array  # scalar, at least float32; <y, y> / <s, y> of the last pair, 0 before it
    scale: Array  # scalar, at least float32; a power of 2 by which gradients and values are divided
    last_value: Array  # scalar, at least float32; the value at the last point with progress
    last_squared: Array  # scalar, at least float32; the projected gradient's square there
    search: MoreThuenteState  # the search towards the target; its `value` is that at x
    unit: Array  # scalar, at least float32; a power of 2 by which lengths and values are divided
    squared: Array  # scalar, at least float32; |g|^2 at x, of the entries that no bound holds

    evaluated, exchanged = eval_methods_of("params")


# ---------------------------------------------------------------------------------- with bounds


_SLOTS = (
    "lower",
    "upper",
    "params",
    "updates",
    "direction",
    "diff_params_memory",
    "diff_updates_memory",
)


def _measure_point(gs: list[Any], ps: list[Any], state: StepByLBFGSBState) -> Sums:
    columns = [gs, ps, *(getattr(state, k) for k in _SLOTS[:5])]
    leaves = engine.map_rows(_measure_leaf, columns, 1 / state.scale, 1 / state.unit)
    slope, s_s, s_y, y_y, *rest = sums_over_leaves(leaves)
    absolute, size, moving, outside = rest[6:]
    return Sums(
        slope=slope,
        s_s=s_s,
        s_y=s_y,
        y_y=y_y,
        free=tuple(rest[:3]),
        projected=tuple(rest[3:6]),
        absolute=absolute,
        size=size,
        moving=moving,
        outside=outside,
    )


def _measure_leaf(
    g: Any,
    p: Any,
    low: Array,
    high: Array,
    x: Array,
    last_g: Array,
    d: Array,
    per_scale: Array,
    per_unit: Array,
) -> tuple[Array, ...]:
    """Return what `_measure_point` sums, of one leaf."""
    g, p, per_scale, per_unit = (cast(jnp.asarray(v), x.dtype) for v in (g, p, per_scale, per_unit))
    is_held = ((g <= 0) & (p >= high)) | ((g >= 0) & (p <= low))
    moving = jnp.sum(~is_held & (g != 0), dtype=x.dtype)
    outside = jnp.sum((p < low) | (p > high), dtype=x.dtype)
    g = g * per_scale
    s, y = (p - x) * per_unit, g - last_g
    # p - clip(p - g, low, high), without the rounding of p - g.
    below, above = bounds.bounds_as_steps(p, low, high, per_scale)
    projected = jnp.clip(g, -above, -below)
    products = map(jnp.sum, (g * d, s * s, s * y, y * y))
    sizes = jnp.sum(jnp.abs(projected)), jnp.sum(jnp.abs(g))
    free = squares_in_range(jnp.where(is_held, 0, g))
    return *products, *free, *squares_in_range(projected), *sizes, moving, outside


def _aim_search(
    state: StepByLBFGSBState, sums: Sums, step: Step
) -> tuple[StepByLBFGSBState, Array, Array, Array, Array]:
    """Return the state with the direction to the target of the model, and how to search along it.

    Where the memory leads uphill, or roundings spoil its matrices, it is forgotten.
    """
    s_y = jnp.where(step.stored, state.s_y.at[step.newest].set(sums.s_y), state.s_y)
    box = _box_around_point(state)
    memory = _memory(state, s_y, step)

    def attempt(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        _, _, _, pairs = carry
        known = pairs > 0
        aim, slope = subspace_target(box, where(known, memory, memory.forgotten()))
        is_good = jnp.isfinite(slope) & (slope < 0)
        return is_good | ~known, aim, slope, jnp.where(is_good, pairs, 0)

    carry = (~step.starts, state.direction, jnp.zeros_like(memory.theta), step.pairs)
    _, aim, slope, pairs = loop_at_most(2, lambda carry: ~carry[0], attempt, carry)
    is_begin = (state.iterations == 0) & ~step.is_raised
    first, largest = step_lengths(box, aim, step.reach, step.is_known, is_begin)
    state = state._replace(s_y=s_y, direction=aim, started=state.started | step.accepted)
    return state, slope, pairs, first, largest


def _box_around_point(state: StepByLBFGSBState) -> Box:
    """Return the box as it lies around the accepted point, which is its origin."""
    walls = [state.params, state.lower, state.upper]
    leaves = engine.map_rows(bounds.bounds_as_steps, walls, 1 / state.unit)
    low, high = ([leaf[i] for leaf in leaves] for i in (0, 1))
    return Box([jnp.zeros_like(x) for x in state.params], state.updates, low, high)


def _memory(state: StepByLBFGSBState, s_y: Array, step: Step) -> Memory:
    has, later = order_of(step.pairs, len(s_y))
    scales = jnp.where(has, lax.rsqrt(jnp.where(has, s_y, 1)), 0)
    return Memory(state.diff_params_memory, state.diff_updates_memory, scales, later, step.theta)


def _move_params(gs: list[Any], ps: list[Any], state: StepByLBFGSBState, t: Array) -> list[Array]:
    columns = [gs, ps, state.params, state.direction, state.lower, state.upper]
    return engine.map_rows(bounds.update_along, columns, t, state.unit)


@transform
class step_by_lbfgsb(SearchingTransform):
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

    The pair (s, y) of the changes of x and g is stored first. In the first search t begins at
    min(1, 1 / |e - x|), or at 1 if all entries have two bounds.

    B is the matrix of L-BFGS of the last `memory_size` pairs, and a multiple of I before the first
    one: I itself, unless `step_by_lbfgs` would find -g too short or too long a step. The Cauchy
    point is the first minimum of the model along the path x - r g, on which an entry that reaches
    its bound stays there. If the projected minimum leads uphill, e is the last point inside the
    bounds on the way to it. The steps are those of SciPy's L-BFGS-B. The parameters and all points
    that are asked for are between the bounds.

    The line search, the three flags, the `scale` and the `unit` of the state, and what happens at
    values that are not finite are those of `step_by_lbfgs`; |g| is there the length of the
    projected gradient, x - clip(x - g, lower, upper). Evaluate and save
    `eval_params(state, params)`, which is x.

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
    way = Way(_SLOTS, 5, _measure_point, _aim_search, _move_params)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lower", "upper"):
            bounds.check(self, name, getattr(self, name))

    def init(self, params):
        """Return the bounds and an empty memory, with the parameters as the accepted point."""
        self.check_numbers(params)
        lower, upper = bounds.resolved(self, params, self.lower, self.upper)
        state = StepByLBFGSBState(
            started=jnp.zeros((), jnp.bool_),
            lower=lower,
            upper=upper,
            s_y=jnp.ones(self.memory_size, scalar_dtype()),
            **first_machine_fields(params, self.memory_size),
        )
        return own_buffers(state)

    def check_numbers(self, arrays: PyTree) -> None:
        """Require real parameters or gradients."""
        for index, leaf in enumerate(jax.tree.leaves(arrays)):
            if jnp.iscomplexobj(leaf):
                raise TypeError(
                    f"{name_of(self)}: {path_at(arrays, index)} is complex, and complex numbers "
                    "have no bounds; wrap the optimizer in split_real_and_imaginary(...)."
                )

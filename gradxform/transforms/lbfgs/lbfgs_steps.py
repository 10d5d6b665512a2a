"""L-BFGS with its line search in the state: each update takes one value and one gradient."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import transform
from gradxform.linalg import weighted_sum
from gradxform.numerics import cast, real_dtype, scalar_dtype
from gradxform.numerics.roots import root
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.lbfgs.compact import sums_over_leaves
from gradxform.transforms.lbfgs.lbfgs import inner, two_loops
from gradxform.transforms.lbfgs.machine import (
    SearchingTransform,
    Step,
    Sums,
    Way,
    first_machine_fields,
    own_buffers,
)
from gradxform.transforms.lbfgs.more_thuente import LARGEST, MoreThuenteState
from gradxform.transforms.lbfgs.units import squares_in_range
from gradxform.types import Array, NonNegative, Size, Slot


class StepByLBFGSState(NamedTuple):
    """State of `step_by_lbfgs`."""

    count: Array  # int32 scalar; the number of updates, each with one value and one gradient
    iterations: Array  # int32 scalar; the number of searches that ended with an accepted point
    pairs: Array  # int32 scalar; how many pairs were stored since the memory was last forgotten
    idle: Array  # int32 scalar; the number of accepted points since the last one with progress
    converged: Array  # boolean scalar; whether the gradient is at most `tol` long
    stalled: Array  # boolean scalar; whether roundings prevent progress
    failed: Array  # boolean scalar; whether no trial along the gradient has a lower value
    params: Slot  # like params, at least float32; the accepted point x
    updates: Slot  # like params, at least float32; the gradient there
    direction: Slot  # like params, at least float32; the direction d of the search
    diff_params_memory: Slot  # (memory_size, *shape) per parameter; the last steps s
    diff_updates_memory: Slot  # (memory_size, *shape) per parameter; the changes y of the gradient
    s_y: Array  # (memory_size, memory_size), at least float32; every <s_i, y_j>
    y_y: Array  # (memory_size, memory_size), at least float32; every <y_i, y_j>
    scale: Array  # scalar, at least float32; a power of 2 by which gradients and values are divided
    squared: Array  # scalar, at least float32; |g|^2 at x
    last_value: Array  # scalar, at least float32; the value at the last point with progress
    last_squared: Array  # scalar, at least float32; |g|^2 there
    search: MoreThuenteState  # the search along d; its `value` is that at x
    unit: Array  # scalar, at least float32; a power of 2 by which lengths and values are divided
    theta: Array  # scalar, at least float32; <y, y> / <s, y> of the last pair, 0 before it

    evaluated, exchanged = eval_methods_of("params")


# ------------------------------------------------------------------------------- without bounds


_SLOTS = ("params", "updates", "direction", "diff_params_memory", "diff_updates_memory")


def _measure(gs: list[Any], ps: list[Any], state: StepByLBFGSState) -> Sums:
    """Return what is known of a point: one sum over the leaves, which is one exchange on a mesh."""
    columns = [gs, ps, *(getattr(state, k) for k in _SLOTS)]
    leaves = engine.map_rows(_products, columns, 1 / state.scale, 1 / state.unit)
    (total,) = sums_over_leaves([(leaf,) for leaf in leaves])
    slope, far, near, size, moving = total[:5]
    own, memory = total[5:14].reshape(3, 3), total[14:].reshape(2, len(state.s_y), 3)
    gradient = own[2, 2], far, near
    return Sums(
        slope=slope,
        s_s=own[0, 0],
        s_y=own[0, 1],
        y_y=own[1, 1],
        free=gradient,
        projected=gradient,
        absolute=size,
        size=size,
        moving=moving,
        outside=jnp.zeros_like(slope),
        of_memory=(own, memory),
    )


def _products(
    g: Any,
    p: Any,
    x: Array,
    last_g: Array,
    d: Array,
    s: Array,
    y: Array,
    per_scale: Array,
    per_unit: Array,
) -> Array:
    """Return what `_measure` sums: numbers, then products with the new s, y and g."""
    g, p, per_scale, per_unit = (cast(jnp.asarray(v), x.dtype) for v in (g, p, per_scale, per_unit))
    moving = jnp.sum(g != 0, dtype=real_dtype(x.dtype))
    g = g * per_scale
    new = jnp.stack([(p - x) * per_unit, g - last_g, g])
    _, far, near = squares_in_range(g)
    numbers = inner(d[None], g[None])[0, 0], far, near, jnp.sum(jnp.abs(g)), moving
    products = [inner(rows, new).reshape(-1) for rows in (new, s, y)]
    return jnp.concatenate([jnp.stack(numbers), *products])


def _aim(
    state: StepByLBFGSState, sums: Sums, step: Step
) -> tuple[StepByLBFGSState, Array, Array, Array, Array]:
    """Return the state with the direction -H g, and the slope along it."""
    own, (of_s, of_y) = sums.of_memory
    state = _remembered(state, own, of_s, of_y, step)
    m, indices = len(state.s_y), jnp.arange(len(state.s_y), dtype=jnp.int32)
    is_new, has = step.stored & (indices == step.newest), indices < step.pairs
    s_g, y_g = (jnp.where(is_new, own[i, 2], x[:, 2]) for i, x in enumerate((of_s, of_y)))
    s_y, y_y = (
        jnp.concatenate([matrix, column[:, None]], axis=1)
        for matrix, column in ((state.s_y, s_g), (state.y_y, y_g))
    )
    weights = jnp.where(has, 1 / jnp.where(has, jnp.diagonal(state.s_y), 1), 0)
    gamma = 1 / step.theta
    order = jnp.mod(step.pairs + indices, m)
    of_s, of_y = two_loops(s_y, y_y, weights, gamma, order)
    slope = -(gamma * own[2, 2] + jnp.sum(of_s * s_g) + jnp.sum(of_y * y_g))

    # Roundings may turn a direction of many pairs upwards. Then the memory is forgotten.
    keeps = (step.pairs > 0) & (slope < 0) & jnp.isfinite(slope)
    slope = jnp.where(keeps, slope, -step.squared * gamma)
    of_s, of_y = (jnp.where(keeps, w, 0) for w in (of_s, of_y))
    columns = [state.updates, state.direction, state.diff_params_memory, state.diff_updates_memory]
    directions = engine.map_rows(_direct, columns, step.starts, gamma, of_s, of_y)
    size = root(step.squared)
    first = jnp.minimum(1, step.reach / jnp.where(size > 0, size, 1) * step.theta)
    first = jnp.where(step.is_known, 1, first)
    pairs = jnp.where(keeps | ~step.starts, step.pairs, 0)
    return state._replace(direction=directions), slope, pairs, first, jnp.asarray(LARGEST)


def _remembered(
    state: StepByLBFGSState, own: Array, of_s: Array, of_y: Array, step: Step
) -> StepByLBFGSState:
    """Return the state with the products of the new pair, if it is stored."""
    at, s_y, y_y = step.newest, state.s_y, state.y_y
    new_s_y = s_y.at[:, at].set(of_s[:, 1]).at[at].set(of_y[:, 0]).at[at, at].set(own[0, 1])
    new_y_y = y_y.at[:, at].set(of_y[:, 1]).at[at].set(of_y[:, 1]).at[at, at].set(own[1, 1])
    return state._replace(
        s_y=jnp.where(step.stored, new_s_y, s_y), y_y=jnp.where(step.stored, new_y_y, y_y)
    )


def _direct(
    g: Array, d: Array, s: Array, y: Array, starts: Array, of_g: Array, of_s: Array, of_y: Array
) -> Array:
    """Return the direction of one leaf: another combination of g and the memory, if any starts."""
    new = cast(of_g, d.dtype) * g + weighted_sum(of_s, s) + weighted_sum(of_y, y)
    return jnp.where(starts, -new, d)


def _move(gs: list[Any], ps: list[Any], state: StepByLBFGSState, t: Array) -> list[Array]:
    columns = [gs, ps, state.params, state.direction]
    return engine.map_rows(_lbfgs_step_of_leaf, columns, t, state.unit)


def _lbfgs_step_of_leaf(g: Any, p: Any, x: Array, d: Array, t: Array, unit: Array) -> Array:
    """Return the update of one leaf that leads to x + t d, in the dtype of the gradient."""
    p, t, unit = (cast(jnp.asarray(v), x.dtype) for v in (p, t, unit))
    g = jnp.asarray(g)
    return cast(x - p + jnp.where(t != 0, t * d * unit, 0), g.dtype)


@transform
class step_by_lbfgs(SearchingTransform):
    """Emit the whole step of L-BFGS to the next point at which it needs the loss.

    Update rule, all parameters in one vector, with x the accepted point, g its gradient, d the
    direction and t a step length; p are the parameters, `value` and the gradient are those at p. If
    t satisfies the strong Wolfe conditions, p is accepted:

        x <- p;    g <- gradient;    d <- -H g;    t <- 1        (if p is accepted)
        t <- another one                                         (if not)
        u = x + t d - p

    The pair (s, y) of the changes of x and g is stored first. The first search goes along -g and
    begins at t = min(1, 1 / |g|), unless that step promises a decrease that roundings of the value
    would hide, or one of a million times the value: then it is as long as to promise so much.

    H is that of `scale_by_lbfgs`, of the last `memory_size` pairs. The line search is that of Moré
    and Thuente with the constants of SciPy's L-BFGS-B, and takes one trial at each update: the loss
    is in a program once, and under `vmap` every problem goes on by itself. Near a minimum, where
    values differ by roundings only, the approximate conditions of Hager and Zhang go by the slopes.

    A value or gradient that is not finite shortens the step. A search that fails forgets the
    memory, and the gradient is tried, divided by the curvature <y, y> / <s, y> of the last pair. A
    pair is stored if <s, y> > eps |s| (|y| + |g|), with eps the machine epsilon.

    The parameters are those that the search wants to see next: evaluate and save
    `eval_params(state, params)`, which is x. The run is over once one of three flags of the state
    is set; from then on the parameters are x:

    - `converged`: |g| <= tol.
    - `stalled`: ten points in a row lowered neither the value, beyond roundings, nor |g| by a
      tenth; or the steps along the gradient became too short to change the value.
    - `failed`: the first value or gradient is not finite, or all trials along the gradient led to
      values that are higher or not finite.

    Where the first gradient is so long or so short that squares would leave the range of float32,
    it is divided by a power of 2, the `scale` of the state; and where the value over the gradient
    is, lengths are divided by another one, its `unit`. So a loss is minimized as well times a
    constant, or in other units of the parameters.

    Every update needs the same loss: on batches that differ, values cannot be compared. JAX gives
    the conjugate of the gradient that descends: for complex parameters, conjugate it first, as
    `jax.tree.map(jnp.conj, grads)`; `minimize` does that.

    Args:
      memory_size: how many pairs are kept, at least 1.
      tol: the length |g| of the gradient at which the run has converged, at least 0.

    Raises:
      TypeError: at update, without `value`, or if it is not a scalar.
      ValueError: at update, if no parameters are given, or with a state of another memory size.

    Reference: Liu and Nocedal, On the limited memory BFGS method for large scale optimization,
    1989; Moré and Thuente, Line search algorithms with guaranteed sufficient decrease, 1994; Hager
    and Zhang, A new conjugate gradient method with guaranteed descent and an efficient line search,
    2005; Chen et al., Large-scale L-BFGS using MapReduce, 2014, for the inner products.
    """

    memory_size: Size = 10
    tol: NonNegative = 0.0

    State = StepByLBFGSState
    way = Way(_SLOTS, 3, _measure, _aim, _move)
    handles_complex = True

    def init(self, params):
        """Return an empty memory, with the parameters as the accepted point."""
        products = jnp.zeros((self.memory_size, self.memory_size), scalar_dtype())
        return own_buffers(
            StepByLBFGSState(
                s_y=products, y_y=products, **first_machine_fields(params, self.memory_size)
            )
        )

"""L-BFGS with its line search in the state: each update takes one value and one gradient."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg, tree
from gradxform.base import ArrayRule, transform
from gradxform.errors import require_at_least
from gradxform.leaves import align_params, align_slot, check_shapes
from gradxform.numerics import (
    add,
    at_least_float32,
    cast,
    promote,
    safe_increment,
    scalar,
    scalar_dtype,
)
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms import more_thuente
from gradxform.transforms.lbfgs import check_memory, empty_memory, inner, two_loops
from gradxform.transforms.lbfgs_shared import (
    is_curved,
    progressed,
    put,
    scale_of,
    scaled_square,
    shifted_squares,
)
from gradxform.transforms.line_search import where
from gradxform.transforms.more_thuente import MoreThuenteState
from gradxform.transforms.tree_rules import as_loss, copied
from gradxform.types import Array, NonNegative, Params, PyTree, Size, Slot, Updates

__all__ = [
    "step_by_lbfgs",
    "StepByLBFGSState",
]

# So many accepted points without progress are a stall. Progress is a lower value, beyond roundings,
# or a gradient that is shorter by a tenth.
PATIENCE = 10

ACCEPTED_INSTEAD = "eval_params(state, params) is the accepted point."


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

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the accepted point."""
        return {"params": self.params}

    def exchanged(self, name: str, params: Params) -> "StepByLBFGSState":
        """Return the state that keeps `params` in its place."""
        return self._replace(params=copied(params))


class _Next(NamedTuple):
    """What a step decides: scalars, and the weights of the memory in the direction."""

    accepted: Array  # whether the parameters become the accepted point
    stored: Array  # whether the last pair enters the memory
    starts: Array  # whether a search starts, along a new direction
    newest: Array  # where in the memory the last pair belongs
    t: Array  # the step length to try; 0 to return to the accepted point
    per_scale: Array  # what the gradient is multiplied by
    of_g: Array
    of_s: Array
    of_y: Array


@transform
class step_by_lbfgs(ArrayRule):
    """Emit the whole step of L-BFGS to the next point at which it needs the loss.

    Update rule, all parameters in one vector, with x the accepted point, g its gradient, d the
    direction and t a step length; p are the parameters, `value` and the gradient are those at p. If
    t satisfies the strong Wolfe conditions, p is accepted:

        x <- p;    g <- gradient;    d <- -H g;    t <- 1        (if p is accepted)
        t <- another one                                         (if not)
        u = x + t d - p

    The pair (s, y) of the changes of x and g is stored first. Without a pair, t begins at
    min(1, 1 / |g|).

    H is that of `scale_by_lbfgs`, of the last `memory_size` pairs. The line search is that of Moré
    and Thuente with the constants of SciPy's L-BFGS-B, and takes one trial at each update: the loss
    is in a program once, and under `vmap` every problem goes on by itself. Near a minimum, where
    values differ by roundings only, the approximate conditions of Hager and Zhang go by the slopes.

    A value or gradient that is not finite shortens the step. A search that fails forgets the
    memory, and the gradient is tried. A pair is stored if <s, y> > eps |s| (|y| + |g|), with eps
    the machine epsilon.

    The parameters are those that the search wants to see next: evaluate and save
    `eval_params(state, params)`, which is x. The run is over once one of three flags of the state
    is set; from then on the parameters are x:

    - `converged`: |g| <= tol.
    - `stalled`: ten points in a row lowered neither the value, beyond roundings, nor |g| by a
      tenth; or the steps along the gradient became too short to change the value.
    - `failed`: the first value or gradient is not finite, or all trials along the gradient led to
      values that are higher or not finite.

    Where the first gradient is so long or so short that its square leaves the range of float32, g
    and the values are divided by a power of 2, the `scale` of the state, and so is `1` in the
    formula of the first t.

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
    locality = "tree"
    needs_params = True
    sets_params = True
    undoes_moves = True
    leaves_path = ACCEPTED_INSTEAD
    handles_complex = True

    def __post_init__(self):
        require_at_least(self, 1, "memory_size")

    def init(self, params: Params) -> StepByLBFGSState:
        """Return an empty memory, with the parameters as the accepted point."""
        m = self.memory_size
        no, infinite = jnp.zeros((), jnp.bool_), scalar(jnp.inf)
        return StepByLBFGSState(
            count=zero_count(),
            iterations=zero_count(),
            pairs=zero_count(),
            idle=zero_count(),
            converged=no,
            stalled=jnp.copy(no),
            failed=jnp.copy(no),
            params=copied(params),
            updates=zeros_like(params),
            direction=zeros_like(params),
            diff_params_memory=empty_memory(params, m),
            diff_updates_memory=empty_memory(params, m),
            s_y=jnp.zeros((m, m), scalar_dtype()),
            y_y=jnp.zeros((m, m), scalar_dtype()),
            scale=scalar(1.0),
            squared=infinite,
            last_value=jnp.copy(infinite),
            last_squared=jnp.copy(infinite),
            search=jax.tree.map(jnp.copy, more_thuente.begun(infinite, scalar(-1.0), 1.0)),
        )

    def prepare(
        self, updates: Updates, state: StepByLBFGSState, params: Params, *, value: Any
    ) -> tuple[Any, ...]:
        """Return the state with its scalars advanced, and what the step does."""
        value = as_loss(self, value)
        check_memory(self, state.s_y)
        old, products = state, self._products(updates, state, params)
        s, y, g, d = products[-4:]
        is_first = state.count == 0
        scale = jnp.where(is_first, scale_of(y[0], value), state.scale)
        squared = jnp.where(is_first, scaled_square(g[2], (g[0], g[1]), scale), g[2])
        trial = value = value / scale
        is_finite = jnp.isfinite(value) & jnp.isfinite(squared)
        # A gradient whose square is 0 in this dtype may be longer than `tol`.
        length = jnp.where(squared > 0, scale * jnp.sqrt(squared), y[0] * state.scale)
        is_over = state.converged | state.stalled | state.failed

        slope = jnp.where(is_finite, d[2], jnp.nan)
        search = more_thuente.advanced(state.search, value, slope)
        accepted = ~is_over & jnp.where(is_first, is_finite, search.accepted)
        gave_up = ~is_over & ~is_first & search.failed
        restarts = gave_up & (state.pairs > 0)

        stored = accepted & ~is_first & is_curved(s[0], s[1], y[1], state.squared)
        state, newest, of_g = self._remembered(state, products, stored)
        of_s, of_y, slope = self._weights(state, products, stored, of_g, newest)
        # Roundings may turn a direction of many pairs upwards.
        keeps = accepted & (slope < 0) & jnp.isfinite(slope)
        pairs = jnp.where(restarts | (accepted & ~keeps), 0, state.pairs)
        has_pair = keeps & (pairs > 0)

        squared = jnp.where(accepted, squared, state.squared)
        value = jnp.where(accepted, value, state.search.value)
        slope = jnp.where(keeps, slope, -squared)
        starts = accepted | restarts
        # 1 / |g|, of the loss before it is divided, or at most 1.
        first_t = jnp.minimum(jnp.maximum(1, scale), lax.rsqrt(squared))
        first_t = jnp.where(has_pair, 1, first_t)
        search = where(starts, more_thuente.begun(value, slope, first_t), search)

        progress = progressed(state, accepted, value, squared, search.noise)
        # At the end of a search along the gradient: has the last trial become too short?
        is_close = jnp.abs(trial - old.search.value) <= old.search.noise
        ends = gave_up & ~restarts
        converged = state.converged | (accepted & (length <= self.tol))
        stalled = (ends & is_close) | (accepted & ~converged & (progress["idle"] >= PATIENCE))
        state = state._replace(
            count=safe_increment(state.count),
            iterations=state.iterations + (accepted & ~is_first).astype(state.count.dtype),
            pairs=pairs,
            converged=converged,
            stalled=state.stalled | stalled,
            failed=state.failed | (ends & ~is_close) | (is_first & ~is_finite),
            scale=cast(scale, state.scale.dtype),
            squared=squared,
            **progress,
            search=tree.cast_like(search, old.search),
        )
        is_over = state.converged | state.stalled | state.failed
        return state, *_Next(
            accepted=accepted,
            stored=stored,
            starts=starts,
            newest=newest,
            t=jnp.where(is_over, 0, search.t),
            per_scale=1 / scale,
            of_g=jnp.where(keeps, of_g, 1),
            of_s=jnp.where(has_pair, of_s, 0),
            of_y=jnp.where(has_pair, of_y, 0),
        )

    def rule(
        self,
        g: Array,
        x: Array,
        last_g: Array,
        d: Array,
        s: Array,
        y: Array,
        p: Array,
        *decided: Array,
    ) -> tuple[Array, ...]:
        """Return the step to the next point, and the memory with the last pair if it is stored."""
        step = _Next(*decided)
        g = g * cast(step.per_scale, g.dtype)
        s, y = (
            put(memory, new - old, step.newest, step.stored)
            for memory, new, old in ((s, p, x), (y, g, last_g))
        )
        x, last_g = (
            jnp.where(step.accepted, cast(new, old.dtype), old)
            for new, old in ((p, x), (g, last_g))
        )
        new_d = cast(step.of_g, d.dtype) * last_g
        for w, memory in ((step.of_s, s), (step.of_y, y)):
            new_d = new_d + jnp.tensordot(
                cast(w, memory.dtype), memory, axes=1, precision=linalg.HIGHEST
            )
        d = jnp.where(step.starts, -new_d, d)
        t = cast(step.t, d.dtype)
        return x - p + jnp.where(t > 0, t * d, 0), x, last_g, d, s, y

    # ------------------------------------------------------------------------ the inner products

    def _products(self, updates: Updates, state: StepByLBFGSState, params: Params) -> Array:
        """Return the products of all s, all y, the new s, y and g, and d with the new s, y and g.

        A matrix (2 memory_size + 4, 3), summed over the leaves: on a mesh, one exchange.
        """
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params).leaves
        names = ("params", "updates", "direction", "diff_params_memory", "diff_updates_memory")
        slots = [align_slot(self, updates, treedef, state, name).leaves for name in names]
        for name, slot in zip(names[:3], slots, strict=False):
            check_shapes(self, updates, slot, f"the state's {name} has")
        per_leaf = engine.map_rows(_leaf_products, [gs, ps, *slots], 1 / state.scale)
        zeros = jnp.zeros((2 * self.memory_size + 4, 3), scalar_dtype())
        return functools.reduce(add, per_leaf, zeros)

    def _remembered(
        self, state: StepByLBFGSState, products: Array, stored: Array
    ) -> tuple[StepByLBFGSState, Array, Array]:
        """Return the state with the products of the new pair, its place, and gamma."""
        m = self.memory_size
        s_y, y_y, newest = state.s_y, state.y_y, jnp.mod(state.pairs, m)
        s_new, y_new = products[2 * m], products[2 * m + 1]
        new_s_y = s_y.at[:, newest].set(products[:m, 1]).at[newest].set(products[m : 2 * m, 0])
        new_y_y = y_y.at[:, newest].set(products[m : 2 * m, 1])
        new_y_y = new_y_y.at[newest].set(products[m : 2 * m, 1])
        s_y = jnp.where(stored, new_s_y.at[newest, newest].set(s_new[1]), s_y)
        y_y = jnp.where(stored, new_y_y.at[newest, newest].set(y_new[1]), y_y)
        pairs = state.pairs + stored.astype(state.pairs.dtype)
        last = jnp.mod(pairs - 1, m)
        gamma = jnp.where(pairs > 0, s_y[last, last] / jnp.where(pairs > 0, y_y[last, last], 1), 1)
        return state._replace(s_y=s_y, y_y=y_y, pairs=pairs), newest, gamma

    def _weights(
        self, state: StepByLBFGSState, products: Array, stored: Array, gamma: Array, newest: Array
    ) -> tuple[Array, Array, Array]:
        """Return the weights of every s and every y in H g, and the slope of -H g."""
        m, indices = self.memory_size, jnp.arange(self.memory_size, dtype=jnp.int32)
        is_new = stored & (indices == newest)
        s_g = jnp.where(is_new, products[2 * m, 2], products[:m, 2])
        y_g = jnp.where(is_new, products[2 * m + 1, 2], products[m : 2 * m, 2])
        s_y, y_y = (
            jnp.concatenate([matrix, column[:, None]], axis=1)
            for matrix, column in ((state.s_y, s_g), (state.y_y, y_g))
        )
        has = indices < state.pairs
        weights = jnp.where(has, 1 / jnp.where(has, jnp.diagonal(state.s_y), 1), 0)
        order = jnp.mod(state.pairs + indices, m)
        of_s, of_y = two_loops(s_y, y_y, weights, gamma, order)
        slope = -(gamma * products[2 * m + 2, 2] + jnp.sum(of_s * s_g) + jnp.sum(of_y * y_g))
        return of_s, of_y, slope


def _leaf_products(
    g: Any, p: Any, x: Array, last_g: Array, d: Array, s: Array, y: Array, per_scale: Array
) -> Array:
    """Return the products of one leaf; see `step_by_lbfgs._products`.

    Products with s and y that occur twice are once the sum of |g|, and its shifted squares.
    """
    dtype = promote(s.dtype, at_least_float32(jnp.asarray(g).dtype))
    g, p = (cast(jnp.asarray(v), dtype) for v in (g, p))
    g = g * cast(per_scale, dtype)
    new = jnp.stack([p - cast(x, dtype), g - cast(last_g, dtype), g])
    far, near = shifted_squares(g)
    own = inner(new, new).at[(1, 2, 2), (0, 0, 1)].set(jnp.stack([jnp.sum(jnp.abs(g)), far, near]))
    rows = [inner(s, new), inner(y, new), own, inner(d[None], new)]
    return scalar(jnp.concatenate(rows))

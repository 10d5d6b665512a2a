"""The state machine of `step_by_lbfgs` and `step_by_lbfgsb`: one trial of a search at each update.

What bounds change is in a `Way`: what is measured at a point, where a search goes, and the step.

Gradients are divided by the `scale` of the state and lengths by its `unit`, and values by both.
These are powers of 2, so that nothing is rounded, and 1 unless squares would leave the range of
float32. What is said of g, s, y, d and values here is said of the divided ones.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, tree
from gradxform.base import Transform
from gradxform.errors import name_of, require_at_least
from gradxform.leaves import align_params, align_slot, check_shapes, is_abstract, require_params
from gradxform.leaves.states import check_state, laid_like
from gradxform.numerics import cast, over, safe_increment, scalar, scalar_dtype
from gradxform.numerics.roots import root
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.lbfgs import more_thuente
from gradxform.transforms.lbfgs.lbfgs import check_memory, empty_memory
from gradxform.transforms.lbfgs.line_search import where
from gradxform.transforms.lbfgs.units import first_step, power_of, square_of_multiple
from gradxform.transforms.tree_rules import as_loss, copied_params
from gradxform.types import Array, Params, PyTree

__all__ = []

# So many accepted points without progress are a stall. Progress is a lower value, beyond roundings,
# or a gradient that is shorter by a tenth.
PATIENCE = 10

ACCEPTED_INSTEAD = "eval_params(state, params) is the accepted point."


class Sums(NamedTuple):
    """The sums over all entries that describe a point."""

    slope: Array  # <d, g>
    s_s: Array  # |s|^2, for the step s from the accepted point
    s_y: Array  # <s, y>, for the change y of the gradient
    y_y: Array  # |y|^2
    free: tuple[Array, ...]  # of the entries of g that no bound holds: see `lbfgs_units`
    projected: tuple[Array, ...]  # of the gradient that is to vanish
    absolute: Array  # the sum of its magnitudes
    size: Array  # the sum of |g|
    moving: Array  # the number of entries that no bound holds and whose gradient is not 0
    outside: Array  # the number of entries beyond their bounds
    of_memory: Any = None  # products of the memory with s, y and g, if the way needs them


class Step(NamedTuple):
    """The decisions of a step about its point, and the numbers that a new search needs."""

    accepted: Array  # whether the parameters become the accepted point
    stored: Array  # whether the last pair enters the memory
    starts: Array  # whether a search starts
    newest: Array  # where in the memory the last pair belongs
    pairs: Array  # how many pairs there are with it
    squared: Array  # |g|^2 of the entries that no bound holds, at the accepted point
    theta: Array  # the curvature of the model before its first pair
    is_known: Array  # whether that curvature is one of a pair
    is_raised: Array  # whether the first step is longer than |g|
    reach: Array  # how long a step may be at first while no curvature is known


class Way(NamedTuple):
    """The parts of a step that differ with bounds; all trees are lists of their leaves.

    Attributes:
      slots: the names of the state's slots, those like the parameters first.
      alike: how many of them are like the parameters.
      measure: from gradients, parameters and state to `Sums`.
      aim: from the state after the point, what was measured there and `Step` to the state with a
        direction; the slope along it; how many pairs it is of; the first step length and the
        largest one.
      move: from gradients, parameters, state and the step length to updates.
    """

    slots: tuple[str, ...]
    alike: int
    measure: Callable[..., Sums]
    aim: Callable[..., tuple[Any, Array, Array, Array, Array]]
    move: Callable[..., list[Array]]


class SearchingTransform(Transform):
    """A transform that leads its parameters from trial to trial of a search, in its `way`."""

    State: Any
    way: Way
    memory_size: int
    tol: Any

    locality = "tree"
    sets_params = True
    undoes_moves = True
    leaves_path = ACCEPTED_INSTEAD

    def __post_init__(self):
        require_at_least(self, 1, "memory_size")

    def check_numbers(self, arrays: PyTree) -> None:
        """Raise for parameters or gradients that the way cannot take."""

    def update(self, updates, state, params=None, *, value=None, **extra):
        """Return the step to the next point, and the state after the value and gradient here."""
        require_params(self, params)
        if value is None:
            raise TypeError(
                f"{name_of(self)}: needs the extra argument 'value'; call update(updates, state, "
                "params, value=loss)."
            )
        self.check_numbers(updates)
        given = state
        state = check_state(self, state, self.State)
        check_memory(self, state.s_y)
        value = as_loss(self, value)
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params).leaves
        way = self.way
        slots = {name: align_slot(self, updates, treedef, state, name) for name in way.slots}
        for name in way.slots[: way.alike]:
            check_shapes(self, updates, slots[name].leaves, f"the state's {name} has")
        if not gs:
            return updates, state._replace(count=safe_increment(state.count))
        leaves = state._replace(**{name: slot.leaves for name, slot in slots.items()})
        us, new = _advanced(way, gs, leaves, ps, value, scalar(self.tol), scalar_dtype())
        new = new._replace(**{k: slot.rebuilt(getattr(new, k)) for k, slot in slots.items()})
        return jax.tree.unflatten(treedef, us), laid_like(new, given)


def first_machine_fields(params: Params, memory_size: int) -> dict[str, Any]:
    """Return the fields that every state begins with: an empty memory, and no accepted point."""
    no, infinite, zero = jnp.zeros((), jnp.bool_), scalar(jnp.inf), scalar(0.0)
    return {
        "count": zero_count(),
        "iterations": zero_count(),
        "pairs": zero_count(),
        "idle": zero_count(),
        "converged": no,
        "stalled": no,
        "failed": no,
        "params": copied_params(params),
        "updates": zeros_like(params),
        "direction": zeros_like(params),
        "diff_params_memory": empty_memory(params, memory_size),
        "diff_updates_memory": empty_memory(params, memory_size),
        "scale": scalar(1.0),
        "unit": scalar(1.0),
        "theta": zero,
        "squared": infinite,
        "last_value": infinite,
        "last_squared": infinite,
        "search": more_thuente.begun_search(infinite, scalar(-1.0), 1.0),
    }


def own_buffers(state: Any) -> Any:
    """Return a state in which every leaf has a buffer of its own, which may be donated."""
    return jax.tree.map(lambda x: x if is_abstract(x) else jnp.copy(x), state)


class _Point(NamedTuple):
    """The point that the parameters are at, measured in the units of the run."""

    value: Array
    squared: Array  # |g|^2 of the gradient that is to vanish
    free: Array  # |g|^2 of the entries that no bound holds
    length: Array  # of the gradient that is to vanish, in the user's own units
    scale: Array  # the units, as in the state
    unit: Array
    factor: Array  # brings into the units what was measured without them


class _Verdict(NamedTuple):
    """The verdict of the line search on the point."""

    search: Any  # after the point
    is_finite: Array  # whether the value and the gradient are
    begins: Array  # whether this is the first point, from which a search may start
    accepted: Array  # whether it becomes the accepted point
    restarts: Array  # whether the search has failed, so that its memory is forgotten
    ends: Array  # whether a search along the gradient has failed


@functools.partial(jax.jit, static_argnums=(0, 6))
def _advanced(
    way: Way,
    gs: list[Any],
    state: Any,
    ps: list[Any],
    value: Array,
    tol: Array,
    dtype: Any,  # of the scalars, which the key of the compiled form must have
) -> tuple[list[Array], Any]:
    """Return the updates and the state, all trees as lists of their leaves."""
    old, sums = state, way.measure(gs, ps, state)
    started = jnp.isfinite(state.last_squared)
    point = _point_in_units(state, sums, started, value)
    verdict = _judged(state, sums, started, point)
    accepted = verdict.accepted

    # A pair needs two accepted points.
    stored = accepted & started & _is_pair_curved(sums, state.squared)
    theta = jnp.where(stored, sums.y_y / jnp.where(stored, sums.s_y, 1), state.theta)
    newest, pairs = _memory_ring(state, stored, verdict.restarts)
    kept = _kept(gs, ps, state, accepted, stored, newest, point.factor)
    here = jnp.where(accepted, point.value, state.search.value)
    progress = _progress(state, accepted, here, point.squared, verdict.search.noise)
    flags = _flags(state, sums, point, verdict, progress["idle"], tol)

    # The next search begins where this one ended, or from the old point without a memory.
    free = jnp.where(accepted, point.free, state.squared)
    units = {"scale": point.scale, "unit": point.unit}
    units = {k: jnp.where(started | accepted, x, 1) for k, x in units.items()}
    is_far = accepted & started & (state.search.t >= more_thuente.LARGEST)
    last = jnp.where(is_far, root(sums.s_s), 0)
    first_theta, reach, is_raised = first_step(here, free, last, **units)
    step = Step(
        accepted=accepted,
        stored=stored,
        starts=(accepted | verdict.restarts) & ~flags["converged"],
        newest=newest,
        pairs=pairs,
        squared=free,
        theta=jnp.where(theta > 0, theta, first_theta),
        is_known=theta > 0,
        is_raised=is_raised & (theta == 0),
        reach=reach,
    )
    moved_on = accepted & started
    iterations = jnp.where(moved_on, safe_increment(state.iterations), state.iterations)
    state = state._replace(iterations=iterations, theta=theta, squared=free, **units, **kept)
    state, slope, pairs, first, largest = way.aim(state, sums, step)
    begun = more_thuente.begun_search(here, slope, first, largest)
    search = where(step.starts, begun, verdict.search)
    count = safe_increment(state.count)
    state = state._replace(count=count, pairs=pairs, search=search, **flags, **progress)
    goes_on = jnp.isfinite(state.last_squared) & ~_is_machine_over(state)
    us = way.move(gs, ps, state, jnp.where(goes_on, state.search.t, 0))
    return us, tree.cast_like(state, old)


def _is_machine_over(state: Any) -> Array:
    return state.converged | state.stalled | state.failed


def _point_in_units(state: Any, sums: Sums, started: Array, value: Array) -> _Point:
    """Return the point in the units of the run, which the first point gives."""
    scale = jnp.where(started, state.scale, power_of(sums.size))
    unit = jnp.where(started, state.unit, power_of(over(jnp.abs(value), sums.size, 0)))
    # What was measured at the first point was not divided by them.
    factor = jnp.where(started, 1, 1 / scale)
    squared, free = (square_of_multiple(x, factor) for x in (sums.projected, sums.free))
    # A gradient whose square is 0 in this dtype may be longer than `tol`.
    length = jnp.where(squared > 0, scale * root(squared), sums.absolute * state.scale)
    return _Point(value / unit / scale, squared, free, length, scale, unit, factor)


def _judged(state: Any, sums: Sums, started: Array, point: _Point) -> _Verdict:
    """Return what becomes of the search at the point."""
    is_over = _is_machine_over(state)
    is_finite = jnp.isfinite(point.value + sums.slope + point.squared + point.free)
    slope = jnp.where(is_finite, sums.slope, jnp.nan)
    search = more_thuente.advanced_search(state.search, point.value, slope)
    begins = ~is_over & ~started & (sums.outside == 0)
    accepted = jnp.where(started, ~is_over & search.accepted, begins & is_finite)
    gave_up = ~is_over & started & search.failed
    restarts = gave_up & (state.pairs > 0)
    return _Verdict(search, is_finite, begins, accepted, restarts, gave_up & ~restarts)


def _memory_ring(state: Any, stored: Array, restarts: Array) -> tuple[Array, Array]:
    """Return where in the memory the last pair belongs, and how many pairs there are with it."""
    m = len(state.s_y)
    pairs = jnp.where(stored, _one_more_pair(state.pairs, m), state.pairs)
    return jnp.mod(state.pairs, m), jnp.where(restarts, 0, pairs)


def _flags(
    state: Any, sums: Sums, point: _Point, verdict: _Verdict, idle: Array, tol: Array
) -> dict[str, Array]:
    """Return the fields of the state that say whether the run is over, and why."""
    is_short = (point.length <= tol) & ((point.length > 0) | (sums.moving == 0))
    converged = state.converged | (verdict.accepted & is_short)
    # At the end of a search along the gradient: has the last trial become too short?
    is_close = jnp.abs(point.value - state.search.value) <= state.search.noise
    is_idle = verdict.accepted & ~converged & (idle >= PATIENCE)
    is_worse = verdict.begins & ~verdict.is_finite
    return {
        "converged": converged,
        "stalled": state.stalled | (verdict.ends & is_close) | is_idle,
        "failed": state.failed | (verdict.ends & ~is_close) | is_worse,
    }


# ------------------------------------------------------------------------------- pairs and points


def _is_pair_curved(sums: Sums, squared: Array) -> Array:
    """Return whether a pair is worth storing: whether <s, y> is more than roundings.

    Args:
      sums: |s|^2, <s, y> and |y|^2.
      squared: |g|^2 for the gradient g before the step.
    """
    s_s, s_y, y_y = sums.s_s, sums.s_y, sums.y_y
    bound = jnp.finfo(s_y.dtype).eps * root(s_s) * (root(y_y) + root(squared))
    return (s_y > bound) & jnp.isfinite(s_y + y_y + bound)


def _one_more_pair(pairs: Array, m: int) -> Array:
    """Return `pairs + 1`, or where that would overflow a number with the same place in the ring."""
    last = jnp.iinfo(pairs.dtype).max
    return jnp.where(pairs == last, m + (last + 1) % m, safe_increment(pairs))


def _kept(
    gs: list[Any],
    ps: list[Any],
    state: Any,
    accepted: Array,
    stored: Array,
    newest: Array,
    factor: Array,
) -> dict[str, list[Array]]:
    """Return x, the gradient there, and the memory after this point."""
    names = ("params", "updates", "diff_params_memory", "diff_updates_memory")
    columns = [gs, ps, *(getattr(state, k) for k in names)]
    scalars = accepted, stored, newest, factor / state.scale, 1 / state.unit
    leaves = engine.map_rows(_keep_leaf, columns, *scalars)
    return {k: [leaf[i] for leaf in leaves] for i, k in enumerate(names)}


def _keep_leaf(
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
    per_unit: Array,
) -> tuple[Array, ...]:
    """Return x, the gradient there, and the memory of one leaf after this point."""
    g, p, per_scale, per_unit = (cast(jnp.asarray(v), x.dtype) for v in (g, p, per_scale, per_unit))
    g = g * per_scale
    kept = (
        _put_in_memory(s, (p - x) * per_unit, newest, stored),
        _put_in_memory(y, g - last_g, newest, stored),
    )
    return jnp.where(accepted, p, x), jnp.where(accepted, g, last_g), *kept


def _put_in_memory(memory: Array, new: Array, place: Array, stored: Array) -> Array:
    """Return a leaf's memory with a new array at a place, if it is stored."""
    last = lax.dynamic_index_in_dim(memory, place, 0, keepdims=False)
    new = jnp.where(stored, cast(new, memory.dtype), last)
    return lax.dynamic_update_index_in_dim(memory, new, place, 0)


def _progress(
    state: Any, accepted: Array, value: Array, squared: Array, noise: Array
) -> dict[str, Array]:
    """Return the fields of the state that say how long there has not been progress.

    Args:
      state: the state before.
      accepted: whether the point is accepted.
      value: the value at the accepted point.
      squared: the square of the gradient that is to vanish, there.
      noise: differences of values up to this one are roundings.
    """
    # Before the first accepted point both are infinite.
    lower = (state.last_value - value > noise) | (squared < 0.81 * state.last_squared)
    lower = accepted & lower
    return {
        "idle": jnp.where(lower, 0, state.idle + accepted.astype(state.idle.dtype)),
        "last_value": jnp.where(lower, value, state.last_value),
        "last_squared": jnp.where(lower, squared, state.last_squared),
    }

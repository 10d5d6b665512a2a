"""Promises of wrappers: what they hold knows where the parameters go."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import Transform, call_update, locality_of, transform
from gradxform.distributed.averaging.model_average import model_average
from gradxform.distributed.replicas.replicas import Replicas
from gradxform.leaves import is_hole, path_str, with_paths
from gradxform.testing.case import Case, transforms_by_field
from gradxform.testing.promise import (
    Broken,
    Skipped,
    as_numpy,
    check_close,
    promise,
    run,
    transform_of,
)
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, PyTree, Slot, Updates
from gradxform.values import replace
from gradxform.wrappers.average import moving_average, stochastic_weight_average
from gradxform.wrappers.guard import ApplyIfFiniteState, apply_if_finite
from gradxform.wrappers.lookahead import lookahead
from gradxform.wrappers.narrow.narrow_params import master_weights
from gradxform.wrappers.parts import all_parts, exact_part

STEPS = 5
NEAR = 1e-5
AXIS = "replicas"


class CopyState(NamedTuple):
    """State of `_copying`."""

    inner_state: Any  # the inner state
    copy: Slot  # where the parameters should be


@transform
class _copying(Transform):
    """Keep a copy of the parameters, add the inner updates to it, and lead to it.

    If it does not learn of a move, its next step undoes the move.
    """

    inner: Any

    holds = (("inner", "inner_state"),)
    follows = ("copy",)

    @property
    def locality(self) -> str:
        """That of the inner transform."""
        return locality_of(self.inner)

    def init(self, params):
        """Return the copy."""
        return CopyState(self.inner.init(params), jax.tree.map(jnp.copy, params))

    def update(self, updates, state, params=None, **extra):
        """Return updates that lead to the copy."""
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        copy = jax.tree.map(lambda c, u: c + u.astype(c.dtype), state.copy, updates)
        updates = jax.tree.map(lambda u, c, p: (c - p).astype(u.dtype), updates, copy, params)
        return updates, CopyState(inner_state, copy)


@promise(
    "A wrapper that changes the updates of what it holds tells it: state = "
    "told_change(self.inner, state, params, updates, changed), from "
    "gradxform.wrappers.changed_steps; and it names what it "
    'holds, as holds = (("inner", "inner_state"),).'
)
def what_is_inside_knows_the_parameters(case: Case) -> None:
    """Inside a wrapper, averages and copies of the parameters follow those that result."""
    recording = _around(case)
    with_recorders = jax.jit(recording.bound.update)
    p = case.params()
    grads = case.gradients(p, STEPS)
    end, *_ = run(case.bound, p, grads)
    state = recording.bound.init(p)
    for g in grads:
        before = _recorder_states(state)
        updates, state = with_recorders(g, state, p)
        old, p = p, apply_updates(p, updates)
        _check_records(before, _recorder_states(state), old, p)
    _check_near("params", _arrays_by_path(p), _arrays_by_path(end), "without the recorders")


def _around(case: Case) -> Case:
    """Return the case with recorders of the parameters around the transform that it holds."""
    return _with_copy(case, lambda tx: moving_average(stochastic_weight_average(tx, 0, 2), 0.5))


def _with_copy(case: Case, wrap: Callable[[Any], Any]) -> Case:
    """Return the case with a copy of the parameters, and a wrapper, around what it holds."""
    holding = with_inside(case, lambda tx: wrap(_copying(tx)))
    if not case.holds_optimizer:
        raise Skipped("what it holds does not see the parameters and their gradients")
    return holding


def with_inside(case: Case, wrap: Callable[[Any], Any], depth: int = 1) -> Case:
    """Return the case with a wrapper around the one transform that it holds.

    With a depth of 2, around the one that this one holds.
    """
    transform_of(case)  # skips those of other libraries
    try:
        return dataclasses.replace(case, tx=_wrapped(case.tx, wrap, depth))
    except ValueError as error:
        raise Skipped(f"it refuses what is put inside: {error}") from error


def _wrapped(tx: Any, wrap: Callable[[Any], Any], depth: int) -> Any:
    inner_transforms = transforms_by_field(tx)
    if len(inner_transforms) != 1:
        raise Skipped("it does not hold one transform")
    ((field, inner),) = inner_transforms.items()
    new = wrap(inner) if depth == 1 else _wrapped(inner, wrap, depth - 1)
    return replace(tx, **{field: new})


@promise(
    'A wrapper passes moves on to what it holds: holds = (("inner", "inner_state"),), or a method '
    "`moved`."
)
def what_is_inside_is_told_of_moves(case: Case) -> None:
    """A copy of the parameters inside a wrapper moves when something else moves them."""
    copying = _with_copy(case, lambda tx: tx)
    p = case.params()
    (g,) = case.gradients(p, 1)
    updates, state = jax.jit(copying.bound.update)(g, copying.bound.init(p), p)
    p = apply_updates(p, updates)
    new = jax.tree.map(lambda x: x / 2, p)
    state = copying.tx.moved(state, p, new)
    _check_near("the copy", *_in_one_form(_copy_in(state), new), "the parameters")


@promise(
    "A wrapper around others, and inside others, tells what it holds of every change: see "
    "`told_change` and `holds` in CONTRIBUTING.md."
)
def moves_are_known_on_both_sides(case: Case) -> None:
    """A copy inside follows the parameters with `lookahead`, masters or an average of replicas."""
    both_sides: dict[str, Callable[[Any], Any]] = {
        "lookahead": lambda tx: lookahead(tx, 2, 0.5),
        "masters": master_weights,
        "an average over replicas": lambda tx: model_average(tx, AXIS, period=2),
    }
    count = 0
    for name, wrap in both_sides.items():
        for side in ("around", "inside"):
            try:
                copying = _with_copy(case, wrap if side == "inside" else lambda tx: tx)
                tx = wrap(copying.tx) if side == "around" else copying.tx
                if name == "masters":  # some refuse them only in `init`, which sees the parameters
                    jax.eval_shape(tx.init, case.params())
            except (Skipped, ValueError, TypeError):  # refused, with an error that says why
                continue
            _check_copies(dataclasses.replace(case, tx=tx), f"the copy, {name} {side}")
            count += 1
    if not count:
        raise Skipped("it holds nothing that records the parameters, or refuses all of these")


def _check_copies(case: Case, name: str) -> None:
    """Require the copy to equal the parameters that result, on each of two replicas if any."""
    is_narrow = exact_part(case.tx) is not None

    def one(g: Updates, state: OptState, p: Params) -> tuple[Params, OptState]:
        updates, state = case.bound.update(g, state, p)
        return apply_updates(p, updates), state

    p = case.params(jnp.bfloat16 if is_narrow else None)
    grads = case.gradients(p, 4, jnp.float32)
    init, step, near = case.bound.init, jax.jit(one), 2**-7 if is_narrow else NEAR
    exchanges = any(getattr(part, "exchanges", ()) for part in all_parts(case.tx))
    if exchanges:
        replicas = Replicas(AXIS, n=2, mode="vmap")
        init, step, p = replicas.wrap(init), replicas.wrap(one), replicas.replicate(p)
    state = init(p)
    for g in grads:
        if exchanges:
            g = jax.tree.map(lambda x: jnp.stack([x, x / 2]), g)
        p, state = step(g, state, p)
        found = jax.tree.map(as_numpy, (_copy_in(state), p))
        each = (
            [jax.tree.map(lambda x, i=i: x[i], found) for i in range(2)] if exchanges else [found]
        )
        for copy, params in each:
            _check_near(name, *_in_one_form(copy, params), "the parameters", near)


@promise(
    "Nothing of a skipped step may stay in a state: hand on the states that `update` gets, and "
    "select, do not multiply by 0, where a step is left out."
)
def a_nan_goes_no_further_than_a_guard(case: Case) -> None:
    """`apply_if_finite` around it keeps parameters and state, and inside it the inner state."""
    _with_copy(case, lambda tx: tx)  # skips what does not hold an optimizer
    if any(getattr(part, "exchanges", ()) for part in all_parts(case.tx)):
        raise Skipped("a guard around it needs its axes")
    p = case.params()
    g, after = case.gradients(p, 2)
    grads = [g, jax.tree.map(lambda x: x * jnp.asarray(jnp.nan, x.dtype), g), after]
    with contextlib.suppress(ValueError):  # it may refuse a guard
        around = dataclasses.replace(case, tx=apply_if_finite(case.tx, 3)).bound
        step = jax.jit(around.update)
        _, before = step(grads[0], around.init(p), p)
        updates, state = step(grads[1], before, p)
        check_close("updates", updates, jax.tree.map(jnp.zeros_like, updates), 0.0)
        check_close("state", state.inner_state, before.inner_state, 0.0, what=", as before the NaN")
    with contextlib.suppress(ValueError, Skipped):
        inside = _with_copy(case, lambda tx: apply_if_finite(tx, 3)).bound
        step, state = jax.jit(inside.update), inside.init(p)
        for g in grads:
            updates, state = step(g, state, p)
            if not all(np.all(np.isfinite(x)) for x in _arrays_by_path(updates).values()):
                return  # what holds it computes with the NaN, too
            _check_finite_inside("the state inside the guard", _state_in_guard(state))


def _state_in_guard(state: OptState) -> PyTree:
    """Return the state inside a guard, at any depth of a state."""
    flat = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, ApplyIfFiniteState))
    return next(x.inner_state for x in flat if isinstance(x, ApplyIfFiniteState))


def _check_finite_inside(name: str, tree: PyTree) -> None:
    for path, x in _arrays_by_path(tree).items():
        if not np.all(np.isfinite(x)):
            raise Broken("a NaN", expected="numbers", leaf=f"{name}, {path_str(path)}")


def _copy_in(state: OptState) -> PyTree:
    """Return the copy of the parameters at any depth of a state."""
    flat = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, CopyState))
    (copy_state,) = (x for x in flat if isinstance(x, CopyState))
    return copy_state.copy


def _recorder_states(state: OptState) -> tuple[Any, Any, Any]:
    """Return the states of the two averages and of the copy, at any depth of a state."""

    def is_it(x: Any) -> bool:
        return isinstance(getattr(getattr(x, "inner_state", None), "inner_state", None), CopyState)

    (outer,) = (x for x in jax.tree.leaves(state, is_leaf=is_it) if is_it(x))
    return outer, outer.inner_state, outer.inner_state.inner_state


def _check_records(before: Any, after: Any, old: Params, new: Params) -> None:
    """Require the records after a step to be those of the parameters before and after it."""
    (average, mean, _), (new_average, new_mean, copy_state) = before, after
    _check_near("the copy", *_in_one_form(copy_state.copy, new), "the parameters")
    first, last = int(average.num_updates), int(new_average.num_updates)
    # How far each moves towards the parameters: half the way at every step, and the mean of every
    # second step by its share in the steps so far.
    of_average = 0.5 if last else 0.0
    of_mean = 0.0 if last % 2 else 1 / (last // 2 + 1) if last else 0.0
    for name, old_state, new_state, share in (
        ("the moving average", average, new_average, of_average),
        ("the mean", mean, new_mean, of_mean),
    ):
        was, ends = _in_one_form(old_state.average, new)
        _, starts = _in_one_form(old_state.average, old)
        # Without a step inside, a move of the parameters moves the end of the last step.
        expected = {
            path: x + share * (ends[path] - (x if first < last else starts[path]))
            for path, x in was.items()
        }
        _check_near(name, _in_one_form(new_state.average, new)[0], expected, "of the parameters")


def _arrays_by_path(tree: PyTree) -> dict[Any, Any]:
    return {path: as_numpy(x) for path, x in with_paths(tree) if not is_hole(x)}


def _in_one_form(slot: PyTree, params: Params) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return a slot, and the parameters in its form: some leaves, or all in one vector."""
    ours, theirs = _arrays_by_path(slot), _arrays_by_path(params)
    if not set(ours) <= set(theirs):
        theirs = {path: np.concatenate([np.ravel(x) for x in theirs.values()]) for path in ours}
    return ours, {path: theirs[path] for path in ours}


def _check_near(
    name: str, got: dict[Any, Any], expected: dict[Any, Any], what: str, near: float = NEAR
) -> None:
    for path, x in got.items():
        off = np.abs(x - expected[path])
        if np.any(off > near + near * np.abs(expected[path])) or np.any(np.isnan(off)):
            i = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape)
            raise Broken(
                f"{x[i]:.6g}",
                expected=f"{expected[path][i]:.6g}, {what}",
                leaf=f"{name}{''.join(f'[{k!r}]' for k in path)}",
            )

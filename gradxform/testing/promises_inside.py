"""A promise of wrappers: what they hold knows where the parameters go."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import Transform, call_update, locality_of, transform
from gradxform.leaves import is_hole, with_paths
from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, as_numpy, promise, run
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, PyTree, Slot, Updates
from gradxform.values import fields_of, replace
from gradxform.wrappers.average import moving_average, stochastic_weight_average

STEPS = 5
NEAR = 1e-5


class CopyState(NamedTuple):
    """State of `_copying`."""

    inner_state: Any  # the inner state
    copy: Slot  # like the parameters; where they should be


@transform
class _copying(Transform):
    """Keep a copy of the parameters, add the inner updates to it, and lead to it.

    If it is not told of a move, its next step undoes it.
    """

    inner: Any

    holds = (("inner", "inner_state"),)
    follows = ("copy",)

    @property
    def locality(self) -> str:
        """That of the inner transform."""
        return locality_of(self.inner)

    def init(self, params: Params) -> CopyState:
        """Return the copy."""
        return CopyState(self.inner.init(params), jax.tree.map(jnp.copy, params))

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, CopyState]:
        """Return the way to the copy."""
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        copy = jax.tree.map(lambda c, u: c + u.astype(c.dtype), state.copy, updates)
        updates = jax.tree.map(lambda u, c, p: (c - p).astype(u.dtype), updates, copy, params)
        return updates, CopyState(inner_state, copy)


@promise(
    "A wrapper that changes the updates of what it holds tells it: state = told(self.inner, "
    "state, params, updates, changed), from gradxform.wrappers.changed_steps; and it names what it "
    'holds, as holds = (("inner", "inner_state"),).'
)
def what_is_inside_knows_the_parameters(case: Case) -> None:
    """Averages and copies of the parameters inside a wrapper are of the parameters that result."""
    recording = _around(case)
    with_recorders = jax.jit(recording.bound.update)
    p = case.params()
    grads = case.gradients(p, STEPS)
    end, *_ = run(case.bound, p, grads)
    state = recording.bound.init(p)
    for g in grads:
        before = _recorded(state)
        updates, state = with_recorders(g, state, p)
        old, p = p, apply_updates(p, updates)
        _check_records(before, _recorded(state), old, p)
    _check("params", _arrays(p), _arrays(end), "without what records them")


def _around(case: Case) -> Case:
    """Return the case with what records the parameters around the transform that it holds."""
    if case.foreign or not isinstance(case.tx, Transform):
        raise Skipped("other libraries do not promise this")
    held = {k: x for k, x in fields_of(case.tx).items() if isinstance(x, Transform)}
    if len(held) != 1:
        raise Skipped("it does not hold one transform")
    if not case.holds_optimizer:
        raise Skipped("what it holds does not see the parameters and their gradients")
    ((field, inner),) = held.items()
    try:
        recorder = moving_average(stochastic_weight_average(_copying(inner), 0, 2), 0.5)
        return dataclasses.replace(case, tx=replace(case.tx, **{field: recorder}))
    except ValueError as error:
        raise Skipped("it refuses what records the parameters") from error


def _recorded(state: OptState) -> tuple[Any, Any, Any]:
    """Return the states of the two averages and of the copy, at any depth of a state."""

    def is_it(x: Any) -> bool:
        return isinstance(getattr(getattr(x, "inner_state", None), "inner_state", None), CopyState)

    (found,) = (x for x in jax.tree.leaves(state, is_leaf=is_it) if is_it(x))
    return found, found.inner_state, found.inner_state.inner_state


def _check_records(before: Any, after: Any, old: Params, new: Params) -> None:
    """Require the records after a step to be those of the parameters before and after it."""
    (average, mean, _), (new_average, new_mean, copied) = before, after
    _check("the copy", *_beside(copied.copy, new), "the parameters")
    first, last = int(average.num_updates), int(new_average.num_updates)
    of_average = 0.5 if last else 0.0
    of_mean = 0.0 if last % 2 else 1 / (last // 2 + 1) if last else 0.0
    for name, one, then, share in (
        ("the moving average", average, new_average, of_average),
        ("the mean", mean, new_mean, of_mean),
    ):
        was, ends = _beside(one.average, new)
        _, starts = _beside(one.average, old)
        # Without a step inside, what moves the parameters moves the end of the last step.
        expected = {
            path: x + share * (ends[path] - (x if first < last else starts[path]))
            for path, x in was.items()
        }
        _check(name, _beside(then.average, new)[0], expected, "of the parameters")


def _arrays(tree: PyTree) -> dict[Any, Any]:
    return {path: as_numpy(x) for path, x in with_paths(tree) if not is_hole(x)}


def _beside(slot: PyTree, params: Params) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return a slot, and the parameters in its form: some leaves, or all in one vector."""
    ours, theirs = _arrays(slot), _arrays(params)
    if not set(ours) <= set(theirs):
        theirs = {path: np.concatenate([np.ravel(x) for x in theirs.values()]) for path in ours}
    return ours, {path: theirs[path] for path in ours}


def _check(name: str, got: dict[Any, Any], expected: dict[Any, Any], what: str) -> None:
    for path, x in got.items():
        off = np.abs(x - expected[path])
        if np.any(off > NEAR + NEAR * np.abs(expected[path])) or np.any(np.isnan(off)):
            i = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape)
            raise Broken(
                f"{x[i]:.6g}",
                expected=f"{expected[path][i]:.6g}, {what}",
                leaf=f"{name}{''.join(f'[{k!r}]' for k in path)}",
            )

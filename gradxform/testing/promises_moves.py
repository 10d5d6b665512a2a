"""Promises about parameters that something else moves, and about where the steps lead."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import Transform
from gradxform.leaves.storage import is_stored
from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, as_numpy, promise
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, PyTree, Updates
from gradxform.wrappers.parts import all_parts

NEAR = 1e-4  # how far off a place may be, relative to a move


@promise(
    'A slot that is a copy of the parameters moves with them: follows = ("slot",), or a method '
    '`moved`. A wrapper passes moves on: holds = (("inner", "inner_state"),).'
)
def copies_move_with_the_parameters(case: Case) -> None:
    """What is a copy of the parameters at first, and pulls at them, moves when they are moved."""
    tx, p = _ours(case), case.params()
    if _any_part(tx, "undoes_moves"):
        raise Skipped("it goes on from a place of its own")
    (g,) = case.gradients(p, 1)
    new, state = _moved(p), tx.init(p)
    moved = tx.moved(state, p, new)
    updates, _ = case.compiled(g, moved, new)
    paths = _copies(state, p)
    still = [path for path in paths if path in _copies(moved, p)]
    for path in still:
        carried = jax.tree_util.tree_map_with_path(
            lambda at, x, path=path: _with_moves(x, p, new) if at == path else x, moved
        )
        if not _all_parallel(updates, case.compiled(g, carried, new)[0]):
            raise Broken(
                "where the parameters were before",
                expected="where something else has moved them",
                leaf="state" + jax.tree_util.keystr(path),
            )


def _copies(state: OptState, p: Params) -> list[Any]:
    """Return the paths of arrays in a state that equal a parameter."""
    arrays = [as_numpy(x) for x in jax.tree.leaves(p) if jnp.size(x) > 1]
    flat, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_stored)
    return [
        path
        for path, x in flat
        if not is_stored(x) and any(np.array_equal(as_numpy(x), a) for a in arrays)
    ]


def _with_moves(x: Any, p: Params, new: Params) -> Any:
    pairs = zip(jax.tree.leaves(p), jax.tree.leaves(new), strict=True)
    return next(b.astype(x.dtype) for a, b in pairs if np.array_equal(as_numpy(x), as_numpy(a)))


def _all_parallel(a: Updates, b: Updates) -> bool:
    """Whether the updates of each array differ by no more than a factor, such as a step size."""
    for x, y in zip(
        map(as_numpy, jax.tree.leaves(a)), map(as_numpy, jax.tree.leaves(b)), strict=True
    ):
        lengths = np.linalg.norm(x) * np.linalg.norm(y)
        if abs(np.vdot(x, y)) < 0.99 * lengths:
            return False
    return True


def _ours(case: Case) -> Any:
    if case.foreign or not isinstance(case.tx, Transform):
        raise Skipped("other libraries do not promise this")
    return case.tx


def _any_part(tx: Any, trait: str) -> bool:
    return any(getattr(part, trait, False) for part in all_parts(tx))


def _moved(p: Params) -> Params:
    """Return the parameters, each entry moved by a share of its own towards 0, within bounds."""
    rng = np.random.default_rng(5)

    def move(x: Any) -> Any:
        return x * jnp.asarray(rng.uniform(0.5, 0.9, x.shape), x.dtype)

    return jax.tree.map(move, p)


@promise(
    "Declare undoes_moves, sets_params, leaves_path or records_params, of "
    "gradxform/base/traits.py, accordingly."
)
def says_where_its_steps_lead(case: Case) -> None:
    """Its traits say whether a step undoes moves, sets the parameters, or leaves their path."""
    tx, p = _ours(case), case.params()
    (g,) = case.gradients(p, 1)
    _check_undoing(case, tx, p, g)
    _check_setting(case, tx, p, g)
    _check_path(case, tx, p, g)


def _step(case: Case, g: Updates, state: OptState, p: Params) -> tuple[Params, OptState]:
    updates, state = case.compiled(g, state, p)
    return apply_updates(p, updates), state


def _distance(a: PyTree, b: PyTree) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(
        (float(np.max(np.abs(as_numpy(x) - as_numpy(y)), initial=0.0)) for x, y in pairs),
        default=0.0,
    )


def _check_undoing(case: Case, tx: Any, p: Params, g: Updates) -> None:
    """A step undoes a move, of which it is told, if it leads to the place of one without it."""
    p, state = _step(case, g, tx.init(p), p)
    new = _moved(p)
    shares = []
    to, from_new = (p, state), (new, tx.moved(state, p, new))
    for h in case.gradients(p, 4):
        to, from_new = (_step(case, h, state, x) for x, state in (to, from_new))
        shares.append(_distance(to[0], from_new[0]) / _distance(p, new))
    says = _any_part(tx, "undoes_moves")
    if shares[0] < 0.1 and not says:
        raise Broken("undoes_moves = False", expected="True: a step takes a move back")
    if says and not tx.inner_transforms() and not case.extra and min(shares) > 0.95:
        raise Broken("undoes_moves = True", expected="False: a step does not take a move back")


def _check_setting(case: Case, tx: Any, p: Params, g: Updates) -> None:
    """A step sets the parameters if one without a gradient takes back where they are moved."""
    if _any_part(tx, "undoes_moves") or _any_part(tx, "sets_params"):
        return
    zero = jax.tree.map(jnp.zeros_like, g)
    to, state = _step(case, g, tx.init(p), p)
    still, _ = _step(case, zero, state, to)
    for away in (_moved(to), jax.tree.map(lambda x: -4 * x, to)):
        back, _ = _step(case, zero, tx.moved(state, to, away), away)
        if _distance(still, to) <= NEAR * _distance(to, away) < _distance(back, away):
            raise Broken("sets_params = False", expected="True: what leads elsewhere is taken back")


def _check_path(case: Case, tx: Any, p: Params, g: Updates) -> None:
    """Every other step leaves the path if the next one takes it back, whatever it was."""
    if case.extra or _any_part(tx, "leaves_path"):
        return
    h = jax.tree.map(lambda x: -x / 2, g)
    thirds, fourths, of_seconds = (
        [_after(case, p, grads) for grads in runs]
        for runs in (
            ([g, g, g], [g, g, h]),
            ([g, g, g, g], [g, g, h, g]),
            ([g, g, g, g], [g, h, g, g]),
        )
    )
    size = _distance(*thirds)
    if _distance(*fourths) <= NEAR * size and 0 < NEAR * size < _distance(*of_seconds):
        raise Broken("leaves_path = False", expected="True: the fourth step takes the third back")


def _after(case: Case, p: Params, grads: list[Updates]) -> Params:
    """Return the parameters after some steps."""
    state = case.tx.init(p)
    for g in grads:
        p, state = _step(case, g, state, p)
    return p

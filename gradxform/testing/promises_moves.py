"""Promises about parameters that something else moves, and about where the steps lead."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.leaves.storage import is_stored
from gradxform.testing.case import Case, as_dtype, transforms_by_field
from gradxform.testing.promise import Broken, Skipped, as_numpy, promise, run, transform_of
from gradxform.transforms.scaling import scale
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, PyTree, Updates
from gradxform.values import replace
from gradxform.wrappers.compose import chain
from gradxform.wrappers.parts import all_parts, exact_part

STEPS = 7
NEAR = 1e-4  # how far off a place may be, as a share of a move


@promise(
    'A slot that is a copy of the parameters moves with them: follows = ("slot",), or a method '
    '`moved`. A wrapper passes moves on: holds = (("inner", "inner_state"),).'
)
def copies_move_with_the_parameters(case: Case) -> None:
    """A slot that is a copy of the parameters, and pulls at them, moves when they are moved."""
    tx, p = transform_of(case), case.params()
    if _any_part(tx, "undoes_moves"):
        raise Skipped("it goes on from a place of its own")
    grads = case.gradients(p, STEPS)
    new, state = _moved_params(p), tx.init(p)
    for _ in range(2):  # a copy may be taken at the first step
        after = tx.moved(state, p, new)
        for path in sorted(set(_copies(state, p)) & set(_copies(after, p)), key=str):
            right = jax.tree_util.tree_map_with_path(
                lambda at, x, path=path: _with_moves(x, p, new) if at == path else x, after
            )
            if _pulls(case, grads, (p, new), after, right):
                raise Broken(
                    "where the parameters were before",
                    expected="where something else has moved them",
                    leaf="state" + jax.tree_util.keystr(path),
                )
        _, state = case.compiled(grads[0], state, p)


def _pulls(
    case: Case, grads: list[Updates], way: tuple[Params, Params], a: OptState, b: OptState
) -> bool:
    """Whether steps from two states differ along the way that something has moved parameters."""
    p_of_a = p_of_b = way[1]
    for g in grads:
        (u, a), (v, b) = case.compiled(g, a, p_of_a), case.compiled(g, b, p_of_b)
        if any(map(_is_along, *map(jax.tree.leaves, (u, v, *way)))):
            return True
        p_of_a, p_of_b = apply_updates(p_of_a, u), apply_updates(p_of_b, v)
    return False


def _is_along(u: Any, v: Any, old: Any, new: Any) -> bool:
    # A single entry is left out: any difference of it is along its move, or against it.
    difference, way = as_numpy(u) - as_numpy(v), as_numpy(new) - as_numpy(old)
    lengths = np.linalg.norm(difference) * np.linalg.norm(way)
    is_along = lengths > NEAR and abs(np.vdot(difference, way)) > 0.9 * lengths
    return way.size > 1 and bool(is_along)


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
    """Return the new value of the parameter that `x` equals."""
    pairs = zip(jax.tree.leaves(p), jax.tree.leaves(new), strict=True)
    return next(b.astype(x.dtype) for a, b in pairs if np.array_equal(as_numpy(x), as_numpy(a)))


def _any_part(tx: Any, trait: str) -> bool:
    return any(getattr(part, trait, False) for part in all_parts(tx))


def _moved_params(p: Params) -> Params:
    """Return the parameters with each entry moved towards 0, where bounds allow it, by a share."""
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
    tx, p = transform_of(case), case.params()
    (g,) = case.gradients(p, 1)
    _check_undoing(case, tx, p, g)
    _check_setting(case, tx, p, g)
    _check_path(case, tx, p, g)
    _check_record(case, tx, p)


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
    """A step undoes a move that it learns of if it leads where it would without the move."""
    p, state = _step(case, g, tx.init(p), p)
    new = _moved_params(p)
    shares = []
    to, from_new = (p, state), (new, tx.moved(state, p, new))
    for h in case.gradients(p, 4):
        to, from_new = (_step(case, h, state, x) for x, state in (to, from_new))
        shares.append(_distance(to[0], from_new[0]) / (_distance(p, new) or 1.0))
    says = _any_part(tx, "undoes_moves")
    # Wrong only if one step takes back nine tenths of a move, or four take back less than a
    # twentieth. Rules in between, such as those that decay the parameters, may say either.
    if shares[0] < 0.1 and not says:
        raise Broken("undoes_moves = False", expected="True: a step takes a move back")
    if says and not tx.inner_transforms() and not case.extra and min(shares) > 0.95:
        raise Broken("undoes_moves = True", expected="False: a step does not take a move back")


def _check_setting(case: Case, tx: Any, p: Params, g: Updates) -> None:
    """A step sets the parameters if without a gradient it takes back a move of them."""
    if _any_part(tx, "undoes_moves") or _any_part(tx, "sets_params") or case.extra:
        return
    tx = _with_plain_step(case)
    if tx is None:
        return
    dtype = jnp.bfloat16 if exact_part(tx) is not None else None
    p, g = as_dtype(p, dtype), as_dtype(g, dtype)
    step = jax.jit(tx.update)
    updates, state = step(g, tx.init(p), p)
    to = apply_updates(p, updates)
    zero = jax.tree.map(jnp.zeros_like, g)
    still = apply_updates(to, step(zero, state, to)[0])
    # Nearer to 0, and far beyond it: a set such as a ball takes back only what leaves it.
    for away in (_moved_params(to), jax.tree.map(lambda x: -4 * x, to)):
        back = apply_updates(away, step(zero, tx.moved(state, to, away), away)[0])
        if _distance(still, to) <= NEAR * _distance(to, away) < _distance(back, away):
            raise Broken("sets_params = False", expected="True: what leads elsewhere is taken back")


def _with_plain_step(case: Case) -> Any:
    """Return the transform with gradient descent in place of the one in it, if there is one."""
    inner_transforms = transforms_by_field(case.tx)
    if not inner_transforms:
        return case.tx
    if len(inner_transforms) != 1 or not case.holds_optimizer:
        return None
    with contextlib.suppress(TypeError, ValueError):
        tx = replace(case.tx, **{k: scale(-0.1) for k in inner_transforms})
        jax.eval_shape(tx.init, case.params())
        return tx
    return None


def _check_path(case: Case, tx: Any, p: Params, g: Updates) -> None:
    """Every other step leaves the path if the next one takes it back, whatever it was."""
    if case.extra or _any_part(tx, "leaves_path"):
        return
    h = jax.tree.map(lambda x: -x / 2, g)
    thirds, fourths, of_seconds = (
        [_params(case, p, grads) for grads in runs]
        for runs in (
            ([g, g, g], [g, g, h]),
            ([g, g, g, g], [g, g, h, g]),
            ([g, g, g, g], [g, h, g, g]),
        )
    )
    # The runs of each pair differ in one gradient: the last one, the one before, the second. A rule
    # that merely forgets gradients takes back a difference in the second one, too.
    size = _distance(*thirds)
    if _distance(*fourths) <= NEAR * size and 0 < NEAR * size < _distance(*of_seconds):
        raise Broken("leaves_path = False", expected="True: the fourth step takes the third back")


def _params(case: Case, p: Params, grads: list[Updates]) -> Params:
    """Return the parameters after some steps."""
    state = case.tx.init(p)
    for g in grads:
        p, state = _step(case, g, state, p)
    return p


def _check_record(case: Case, tx: Any, p: Params) -> None:
    """A slot that follows the parameters does so too if a chain changes the updates after it."""
    inner_transforms = transforms_by_field(tx)
    if len(inner_transforms) != 1 or case.extra or _any_part(tx, "records_params"):
        return
    ((field, inner),) = inner_transforms.items()
    halved = scale(0.5)
    grads = case.gradients(p, STEPS)
    # It may refuse what changes its updates, or need an axis that is not bound.
    with contextlib.suppress(ValueError, NameError):
        if not _slots_like(tx, jax.eval_shape(tx.init, p), p):
            return
        chained, changed_inside = chain(tx, halved), replace(tx, **{field: chain(inner, halved)})
        _, updates, last = run(tx, p, grads)
        if any(map(_distance, run(inner, p, grads)[1], updates)):
            return  # it does not pass the updates on
        new = _moved_params(p)
        *_, last_of_new = run(tx, new, grads)
        of_old, of_new = (_slots_like(tx, state, p) for state in (last, last_of_new))
        names = [k for k, x in of_old.items() if _holds_params(x, of_new[k], p, new)]
        if not names:
            return
        ends = run(chained, p, grads)[2][0], run(changed_inside, p, grads)[2]
        slots, expected = (_slots_like(tx, state, p) for state in ends)
        for name in names:
            if _distance(slots[name], expected[name]) > NEAR:
                field = name.partition("[")[0]
                raise Broken(
                    "records_params = False",
                    expected=f"True: {name} follows the run",
                    remedy=f"Declare follows = ({field!r},) and records_params = True, and let "
                    "`moved` lead the slot to where the parameters are; `Averager` of "
                    "gradxform/wrappers/average.py does so.",
                )


def _slots_like(tx: Any, state: OptState, p: Params) -> dict[str, PyTree]:
    """Return the fields of a wrapper's own state with one array like each parameter.

    A field may hold a dict of several.
    """
    inner_states = {name for _, name in tx.holds}
    own = {k: getattr(state, k) for k in getattr(state, "_fields", ()) if k not in inner_states}
    for field, slots in [*own.items()]:
        if isinstance(slots, dict):
            own |= {f"{field}[{k!r}]": slot for k, slot in slots.items()}
    return {k: slot for k, slot in own.items() if _form(slot) == _form(p)}


def _form(tree: PyTree) -> tuple[Any, list[Any]]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [getattr(x, "shape", None) for x in leaves]


def _holds_params(slot: Any, of_new: Any, old: Params, new: Params) -> bool:
    """Whether a slot is elsewhere, in the same direction, where the parameters are elsewhere."""
    shares = []
    for x, y, a, b in zip(*map(jax.tree.leaves, (slot, of_new, old, new)), strict=True):
        difference, way = as_numpy(y) - as_numpy(x), as_numpy(b) - as_numpy(a)
        length = float(np.vdot(way, way).real)
        share = float(np.vdot(way, difference).real) / length if length else 0.0
        shares.append(share * bool(np.linalg.norm(difference - share * way) <= 0.1 * length**0.5))
    return bool(shares) and min(shares) > 0.05

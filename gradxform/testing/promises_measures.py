"""Promises of wrappers: what counts, measures and clips, inside of them and after them."""

import contextlib
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.distributed.wire.decisions import differing_results
from gradxform.leaves import is_hole, path_str, with_paths
from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, as_numpy, check_close, promise, run
from gradxform.testing.promises_inside import with_inside
from gradxform.testing.rounding import sway
from gradxform.transforms.clipping import clip_by_global_norm
from gradxform.transforms.scaling import ScaleByScheduleState, scale_by_schedule
from gradxform.tree.apply import apply_updates
from gradxform.tree.state import get, get_all_with_path
from gradxform.types import OptState, Params, PyTree, Updates
from gradxform.values import fields_of
from gradxform.wrappers.changed_steps import told_change
from gradxform.wrappers.checks import Guard
from gradxform.wrappers.compose import chain
from gradxform.wrappers.finite import sizes_of
from gradxform.wrappers.monitor import snapshot
from gradxform.wrappers.parts import all_parts, inner_parts, records_params

STEPS = 5
NEAR = 1e-5
GIVEN, CLIPPED, MADE = "given", "clipped", "made"


class _Look(NamedTuple):
    """What a counter and snapshots in a state say after a step."""

    count: int
    trees: dict[str, dict[Any, Any]]  # for each snapshot the arrays by path
    updates: dict[Any, Any]  # the arrays of the updates that result, by path


def _same(tree: PyTree) -> PyTree:
    return tree


def _one(count: Any) -> Any:
    return jnp.ones((), jnp.float32)


def _looking(*parts: Any) -> Any:
    """Return a chain with a counter, and snapshots of what it gets and of what it makes of that."""
    counter = scale_by_schedule(_one)
    return chain(counter, snapshot(GIVEN, _same), *parts, snapshot(MADE, _same))


@promise(
    "Run what it holds once for a step that is taken, hand on the state that it returns, and keep "
    "the one that it had where a step is left out. Declare counts_inner_steps, zeros_unless, and "
    "of a guard looks_at_gradients, passes_gradients and flags_vary, of gradxform/base/traits.py, "
    "accordingly."
)
def what_is_inside_takes_the_inner_steps(case: Case) -> None:
    """A counter, a snapshot and a clip inside count, see and bound what it hands to its inside."""
    p = case.params()
    grads = case.gradients(p, STEPS)
    looking = with_inside(case, _looking)
    looks = _check_inside(case, looking, 1, p, grads)
    _check_measured_counts(case, case.tx, looks, p, grads)
    _check_start(case, looks[0], p)
    if isinstance(case.tx, Guard):
        _check_guard(case, looking, p, grads, looks)
    with contextlib.suppress(Skipped):  # what it holds may itself hold one
        deeper = with_inside(case, _looking, 2)
        looks = _check_inside(case, deeper, 2, p, grads)
        _check_measured_counts(case, inner_parts(case.tx)[0], looks, p, grads)


def _check_inside(
    case: Case, looking: Case, depth: int, p: Params, grads: list[Updates]
) -> list[tuple[_Look, OptState]]:
    """Check what is seen at some depth, and return it."""
    _check_form(looking, p, grads[0])
    looks = _looks(looking, p, grads)
    _check_unseen(case, looking, p, grads)
    _check_clip(case, depth, p, grads, looks)
    return looks


def _check_form(case: Case, p: Params, g: Updates) -> None:
    """Skip what hands on updates of another form than that of the parameters inside."""
    try:
        jax.eval_shape(case.compiled, g, case.bound.init(p), p)
    except ValueError as error:
        if str(error).startswith("snapshot:"):
            raise Skipped(f"it hands on another form than the parameters: {error}") from error
        raise


def _looks(case: Case, p: Params, grads: list[Updates]) -> list[tuple[_Look, OptState]]:
    """Return what is seen inside at first and after each step, with the states."""
    state = case.bound.init(p)
    looks = [(_look(state, {}), state)]
    for g in grads:
        updates, state = case.compiled(g, state, p)
        p = apply_updates(p, updates)
        looks.append((_look(state, _arrays(updates)), state))
    return looks


def _look(state: OptState, updates: dict[Any, Any]) -> _Look:
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, ScaleByScheduleState))
    counter = next(x for x in leaves if isinstance(x, ScaleByScheduleState))
    # What runs its inner transform on a center too has two of each; those of the steps come first.
    seen = {name: get_all_with_path(state, name) for name in (GIVEN, CLIPPED, MADE)}
    trees = {name: _arrays(found[0][1]) for name, found in seen.items() if found}
    return _Look(int(counter.count), trees, updates)


def _arrays(tree: PyTree) -> dict[Any, Any]:
    return {path: as_numpy(x) for path, x in with_paths(tree) if not is_hole(x)}


def _check_start(case: Case, first: tuple[_Look, OptState], p: Params) -> None:
    """Require a snapshot to begin with the parameters, where they are in their own places."""
    given, params = first[0].trees[GIVEN], _arrays(p)
    if case.holds_optimizer and set(given) <= set(params):
        _check("the first snapshot inside", given, params, "the parameters")


def _check_measured_counts(
    case: Case, tx: Any, looks: list[tuple[_Look, OptState]], p: Params, grads: list[Updates]
) -> None:
    """Require a step inside to be one or none, and the updates and the state to tell which."""
    numbers = [*case.extra_of(grads[0], p).values(), *fields_of(case.tx).values()]
    steps = [int(x) + 1 for x in numbers if _is_integer(x)]
    for ((before, _), (after, state)), g in zip(itertools.pairwise(looks), grads, strict=True):
        taken = after.count - before.count
        if after.count in steps and (taken not in (0, 1) or before.count == after.count):
            continue  # the caller says at which step it is
        if taken not in (0, 1):
            raise Broken(f"{taken} steps", expected="one or none", leaf="the count inside")
        if not taken:
            given = before.trees[GIVEN]
            _check("the snapshot inside", after.trees[GIVEN], given, "as before a step left out", 0)
        made, gradients = after.trees[MADE], _arrays(g)
        is_step = any(map(np.any, after.updates.values()))
        passes = _are_equal(after.updates, gradients)
        is_wrong = is_step and not passes
        if taken:
            changes = any(np.any(x != gradients.get(path, x)) for path, x in made.items())
            is_wrong = any(map(np.any, made.values())) and (not is_step or (passes and changes))
        if is_wrong and case.holds_optimizer:
            raise Broken(
                "what it is given" if passes else "a step" if is_step else "zeros",
                expected="those of the step inside" if taken else "zeros, or those that are given",
                leaf=f"updates, where {taken} steps are counted inside",
            )
        _check_fields(tx, state, after.count, bool(taken))


def _check_fields(tx: Any, state: OptState, count: int, taken: bool) -> None:
    """Require the fields that say whether a step is taken, and how many there were, to be right."""
    fields = state._asdict() if hasattr(state, "_asdict") else {}
    unless = fields.get(tx.zeros_unless, 0)
    if taken and int(unless):
        raise Broken(
            f"{int(unless)} after a step inside",
            expected="0, as zeros_unless says",
            leaf=f"state.{tx.zeros_unless}",
        )
    for field in {*tx.step_fields} & {*fields} if tx.counts_inner_steps else ():
        if int(fields[field]) != count:
            raise Broken(
                f"{int(fields[field])}",
                expected=f"{count}, the steps inside, as counts_inner_steps says",
                leaf=f"state.{field}",
            )


def _are_equal(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    return set(a) == set(b) and all(np.array_equal(x, b[path]) for path, x in a.items())


def _is_integer(x: Any) -> bool:
    is_array = isinstance(x, jax.Array) and not x.ndim and jnp.issubdtype(x.dtype, jnp.integer)
    return isinstance(x, int) or is_array


def _check_unseen(case: Case, looking: Case, p: Params, grads: list[Updates]) -> None:
    """Require the parameters to be those without a counter and a snapshot."""

    def end(p: Params, grads: list[Updates]) -> Params:
        return run(case.bound, p, grads, case.compiled)[0]

    got = run(looking.bound, p, grads, looking.compiled)[0]
    what = " without a counter and a snapshot inside"
    slack = functools.partial(sway, end, p, grads)
    check_close("params", got, end(p, grads), NEAR, what=what, sway=slack)


def _check_clip(
    case: Case, depth: int, p: Params, grads: list[Updates], looks: list[tuple[_Look, OptState]]
) -> None:
    """Require a clip inside to bound what it is given there, over all of it."""
    sizes = [_norm(look.trees[GIVEN]) for look, _ in looks[1:] if look.count]
    if not sizes or not 0 < max(sizes) < np.inf:
        return
    bound = max(sizes) / 2
    limited = with_inside(
        case,
        lambda tx: _looking(clip_by_global_norm(bound), snapshot(CLIPPED, _same), tx),
        depth,
    )
    for look, _ in _looks(limited, p, grads)[1:]:
        if look.count:
            given, clipped = look.trees[GIVEN], look.trees[CLIPPED]
            factor = min(1.0, bound / max(_norm(given), 1e-30))
            expected = {path: x * factor for path, x in given.items()}
            _check("what a clip inside hands on", clipped, expected, f"of a norm below {bound:.4g}")


def _norm(arrays: dict[Any, Any]) -> float:
    return float(np.sqrt(sum(np.sum(np.abs(x) ** 2) for x in arrays.values())))


def _check(
    name: str, got: dict[Any, Any], expected: dict[Any, Any], what: str, near: float = NEAR
) -> None:
    for path, x in got.items():
        y = expected[path]
        is_near = np.isclose(x, y, near, near * np.max(np.abs(y), initial=0.0), equal_nan=True)
        if not np.all(is_near):
            i = np.unravel_index(int(np.argmin(is_near)), x.shape)
            raise Broken(
                f"{x[i]:.6g}", expected=f"{y[i]:.6g}, {what}", leaf=f"{name}, {path_str(path)}"
            )


# ----------------------------------------------------------------------------------- guards


def _check_guard(
    case: Case,
    looking: Case,
    p: Params,
    grads: list[Updates],
    looks: list[tuple[_Look, OptState]],
) -> None:
    """Require a guard to say what it looks at, and what it hands on."""
    tx: Any = case.tx
    pairs = zip(itertools.pairwise(looks), grads, strict=True)
    given = [(b.trees[GIVEN], _arrays(g)) for ((a, _), (b, _)), g in pairs if a.count < b.count]
    passes = all(_is_multiple(*pair) for pair in given)
    bad = [_times(g, jnp.nan) for g in grads]
    sees = _looks(looking, p, bad)[-1][0].count < looks[-1][0].count
    varies = _depends_on_extra(case, looks[-1][1], p, grads[0])
    for name, is_so, what in (
        ("passes_gradients", passes, "what it hands on is a multiple of the gradients"),
        ("looks_at_gradients", sees, "it leaves out what is not finite"),
        ("flags_vary", varies or sees, "its flags depend on extra arguments"),
    ):
        says = getattr(tx, name) or (name == "flags_vary" and sees)
        if says != is_so and given:
            raise Broken(f"{name} = {says}", expected=f"{is_so}: whether {what}")


def _is_multiple(got: dict[Any, Any], gradients: dict[Any, Any]) -> bool:
    if set(got) != set(gradients):
        return False
    u, g = (np.concatenate([np.ravel(x[path]) for path in got]) for x in (got, gradients))
    share = np.real(np.vdot(g, u)) / max(np.real(np.vdot(g, g)), 1e-30)
    return bool(np.all(np.abs(u - share * g) <= 1e-4 * np.max(np.abs(u), initial=0.0)))


def _depends_on_extra(case: Case, state: OptState, p: Params, g: Updates) -> bool:
    """Whether the flags of a guard are computed from its extra arguments."""
    tx: Any = case.tx
    sizes = sizes_of(g) if tx.looks_at_gradients else None
    extra = {k: jnp.asarray(x) for k, x in case.extra_of(g, p).items() if not callable(x)}
    program = jax.make_jaxpr(lambda extra: tx.flags(state, extra, sizes))(extra)
    return any(differing_results(program, [True] * len(extra), ""))


# ------------------------------------------------------------------------ what comes after it


def _half(count: Any) -> Any:
    return 0.5 ** (1 + jnp.asarray(count, jnp.float32))


_HALVING = scale_by_schedule(_half)


def _times(tree: PyTree, factor: Any) -> PyTree:
    return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype), tree)


@promise(
    "Return the updates in the structure and the dtypes of the gradients at every step, also where "
    "a step is left out; a part that records the parameters is told of what becomes of them."
)
def what_comes_after_takes_its_updates(case: Case) -> None:
    """A clip, a snapshot and a counter after it bound, see and count its own updates."""
    with_inside(case, lambda tx: tx)  # skips what does not hold a transform
    p = case.params()
    grads = case.gradients(p, STEPS)
    _, alone, _ = run(case.bound, p, grads, case.compiled)
    bound = max(map(_norm, map(_arrays, alone))) / 2
    if not 0 < bound < np.inf:
        raise Skipped("its updates are zeros")
    clip, look, counter = clip_by_global_norm(bound), snapshot(CLIPPED, _same), _HALVING
    is_set = any(getattr(part, "sets_params", False) for part in all_parts(case.tx))
    after = (look,) if is_set else (clip, look, counter)  # nothing may change where it leads
    followed = dataclasses.replace(case, tx=chain(case.tx, *after))
    state, its_state = followed.bound.init(p), case.bound.init(p)
    for n, g in enumerate(grads):
        updates, state = followed.compiled(g, state, p)
        own, its_state = case.compiled(g, its_state, p)
        factor = min(1.0, bound / max(_norm(_arrays(own)), 1e-30))
        clipped = own if is_set else _times(own, factor)
        changed = own if is_set else _times(clipped, _half(n))
        _check("the snapshot after it", _arrays(get(state, CLIPPED)), _arrays(clipped), "clipped")
        _check("updates", _arrays(updates), _arrays(changed), f"clipped, times {_half(n)}")
        if records_params(case.tx):
            its_state = told_change(case.tx, its_state, p, own, changed)
        p = apply_updates(p, updates)
    check_close("its state", state[0], its_state, 1e-4, what=", told of what became of its updates")

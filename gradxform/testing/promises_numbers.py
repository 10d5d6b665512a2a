"""Promises about numbers: correct, reproducible, and never NaN without reason."""

import contextlib
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.base import ArrayRule
from gradxform.testing.case import Case
from gradxform.testing.promise import (
    Broken,
    Skipped,
    as_numpy,
    check_close,
    check_types,
    is_key,
    leaves_of,
    promise,
    run,
    wide_numbers,
)
from gradxform.testing.references import TreeReference, as_tree
from gradxform.testing.rounding import sway
from gradxform.tree.apply import apply_updates
from gradxform.types import Params, PyTree, Updates
from gradxform.wrappers.parts import all_parts, exact_part

STEPS = 7
# The tolerance in float64 relative to that in float32: a little more than the ratio of their
# roundings.
WIDE = 5e-8


@promise(
    "Follow the paper in both, then look at signs, at whether the count is 0 or 1 in the first "
    "step, and at what is updated before it is used."
)
def follows_its_reference(case: Case) -> None:
    """Seven steps in float32 are those of the NumPy reference in float64."""
    if case.reference is None:
        raise Skipped("it does not have a reference, or its numbers are random")
    _follow(case, jnp.float32, STEPS, case.rtol, case.compiled)


def _follow(case: Case, dtype: Any, steps: int, rtol: float, update: Any = None) -> None:
    """Require some steps in one dtype to equal those of the reference, if there is one."""
    if case.reference is None:
        return
    reference = as_tree(case.reference)
    tree = case.params(dtype)
    grads = case.gradients(tree, steps, dtype)
    start, wide_grads = jax.tree.map(as_numpy, (tree, grads))
    follow = functools.partial(_run_reference, reference)
    end, expected_updates = follow(start, wide_grads)
    slack = functools.cache(lambda: sway(follow, start, wide_grads))
    with_slack = dtype == jnp.float32  # float64 must follow the reference more exactly
    params, all_updates, _ = run(case.bound, tree, grads, update)
    for t, (u, expected) in enumerate(zip(all_updates, expected_updates, strict=True)):
        check_close(
            "updates",
            u,
            expected,
            rtol,
            what=f" by the reference at step {t + 1}",
            sway=(lambda t=t: slack()[1][t]) if with_slack else None,
        )
    # Relative to the way that the parameters have gone, and at least a hundredth of their size:
    # relative to the size alone, short ways would pass whatever they are.
    movement = [
        max(np.max(np.abs(b - first), initial=0.0), np.max(np.abs(b), initial=0.0) * 1e-2)
        for b, first in zip(jax.tree.leaves(end), jax.tree.leaves(start), strict=True)
    ]
    check_close(
        "params",
        params,
        end,
        0,
        [2 * rtol * m for m in movement],
        f" by the reference after {steps} steps",
        (lambda: slack()[0]) if with_slack else None,
    )


def _run_reference(
    reference: TreeReference, tree: Params, grads: list[Updates]
) -> tuple[Params, list[Updates]]:
    """Return the parameters after all steps, and the updates of every step."""
    ps, treedef = jax.tree.flatten(tree)
    state, all_updates = reference.start([p.copy() for p in ps]), []
    for t, g in enumerate(grads, 1):
        updates, state = reference.step(jax.tree.leaves(g), state, ps, t)
        all_updates.append(jax.tree.unflatten(treedef, map(np.asarray, updates)))
        ps = [p + u for p, u in zip(ps, updates, strict=True)]
    return jax.tree.unflatten(treedef, ps), all_updates


@promise(
    "Name no dtype: make the scalars of a step with gradxform.numerics.scalar, those of a state in "
    "its scalar_dtype(), and slots with gradxform.slots.zeros_like."
)
def scalars_are_as_wide_as_the_leaves(case: Case) -> None:
    """With float64 parameters nothing is rounded to 32 bits; with float32 ones nothing is wider."""
    if case.foreign:
        raise Skipped("other libraries choose their own dtypes")
    if case.narrow:
        raise Skipped("one of its slots is set to 16 bits")
    with jax.enable_x64(True):
        for p_dtype, g_dtype in ((jnp.float32, jnp.float32), (jnp.float64, jnp.float32)):
            tree = case.params(p_dtype)
            (g,) = case.gradients(tree, 1, g_dtype)
            state = case.bound.init(tree)
            trace = jax.make_jaxpr(case.bound.update, return_shape=True)
            program, (_, after) = trace(g, state, tree)
            check_types("state", after, jax.eval_shape(lambda s: s, state))
            wide = next(wide_numbers(program), None) if p_dtype == jnp.float32 else None
            if wide is not None:
                raise Broken(wide, expected="no float64 with float32 parameters")
        if any(map(jnp.iscomplexobj, jax.tree.leaves(case.params()))):
            return  # complex gradients are drawn, and stay, in 64 bits
        steps = case, jnp.float64, 3
        update = jax.jit(case.bound.update)
        try:
            _follow(*steps, WIDE * case.rtol, update)
        except Broken:
            try:
                _follow(*steps, case.rtol, update)
            except Broken:
                return  # wrong in float32 too, which `follows_its_reference` reports
            raise


@promise(
    "Let nothing depend on whether a value is traced: no Python state, no branch on a number, no "
    "NumPy on arrays."
)
def jit_changes_nothing(case: Case) -> None:
    """Steps with and without `jax.jit` give the same parameters, updates and state."""
    tree = case.params()
    grads = case.gradients(tree, 3)
    eager = run(case.bound, tree, grads)
    run_compiled = functools.partial(run, case.bound, update=case.compiled)
    results = run_compiled(tree, grads)
    slack = functools.cache(lambda: sway(run_compiled, tree, grads))
    for i, name in enumerate(("params", "updates", "state")):
        check_close(
            name, results[i], eager[i], 1e-5, what=" without jit", sway=lambda i=i: slack()[i]
        )


@promise(
    "Compute in float32 (an ArrayRule does by itself) and make slots with gradxform.slots.zeros_"
    "like or full_like, which widen 16-bit parameters."
)
def narrow_parameters_have_wide_slots(case: Case) -> None:
    """Updates in bfloat16 are those of float32, rounded; no slot is narrower than 32 bits."""
    if case.foreign:
        raise Skipped("other libraries choose their own dtypes")
    if case.narrow:
        raise Skipped("one of its slots is set to 16 bits")
    tree = case.params(jnp.bfloat16)
    g = case.gradients(tree, 1)[0]
    updates, state = case.compiled(g, case.bound.init(tree), tree)
    _check_exactness(case.tx, tree, updates)
    if exact_part(case.tx) is not None:
        raise Skipped("its updates lead to rounded parameters")
    _check_begins_small(case, tree, g)

    def first(tree: Params, g: Updates) -> Updates:
        return case.compiled(g, case.bound.init(tree), tree)[0]

    wide = jax.tree.map(_widened, (tree, g))
    allowed = [1e-6] * len(jax.tree.leaves(updates))
    check_close(
        "updates", updates, first(*wide), 1e-2, allowed, " in float32", lambda: sway(first, *wide)
    )
    for path, leaf in leaves_of("state", state).items():
        if leaf.dtype in (jnp.bfloat16, jnp.float16):
            raise Broken(str(leaf.dtype), expected="float32", leaf=path)


def _check_exactness(tx: Any, tree: Params, updates: Updates) -> None:
    """Require updates wider than their parameters exactly where `exact_updates` says so."""
    pairs = zip(jax.tree.leaves(updates), jax.tree.leaves(tree), strict=True)
    wide = any(u.dtype.itemsize > p.dtype.itemsize for u, p in pairs)
    says = exact_part(tx) is not None
    if wide != says:
        raise Broken(
            f"exact_updates = {says}",
            expected=f"{wide}: updates are {'wider than' if wide else 'as wide as'} parameters",
            leaf="updates",
            remedy="Declare exact_updates, of gradxform/base/traits.py, accordingly.",
        )


def _check_begins_small(case: Case, tree: Params, g: Updates) -> None:
    """Require `begins_small` of a rule whose steps stay small because 16-bit parameters stay."""
    says = any(getattr(part, "begins_small", False) for part in all_parts(case.tx))
    wide_g, wide_tree = jax.tree.map(_widened, g), jax.tree.map(_widened, tree)
    stays, narrow = _moves_after(case, tree, g, 20)
    _, wide = _moves_after(case, wide_tree, wide_g, 20)
    _, first = _moves_after(case, wide_tree, wide_g, 1)
    is_missing = stays and wide > 2 * narrow and not says
    # Other hyperparameters than the defaults may begin with a larger step.
    is_wrong = says and _with_defaults(case.tx) == case.tx and wide < 1.5 * first
    if is_missing or is_wrong:
        raise Broken(
            f"begins_small = {says}",
            expected=f"{not says}: the 20th step is {wide:.2g} in float32 and {narrow:.2g} in "
            f"bfloat16, the first {first:.2g}",
            remedy="Declare begins_small, of gradxform/base/traits.py, accordingly.",
        )


def _with_defaults(tx: Any) -> Any:
    with contextlib.suppress(TypeError):
        return type(tx)()
    return None


def _moves_after(case: Case, tree: Params, g: Updates, steps: int) -> tuple[bool, float]:
    """Return whether some steps leave the parameters in place, and the size of the last update."""
    params, state, updates = tree, case.bound.init(tree), g
    for _ in range(steps):
        updates, state = case.compiled(g, state, params)
        params = apply_updates(params, updates)
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(tree), strict=True)
    stays = all(bool(jnp.all(new == old)) for new, old in pairs)
    return stays, max(float(jnp.max(jnp.abs(u))) for u in jax.tree.leaves(updates))


@promise(
    "Where a rule squares or takes signs, |g|^2 and numerics.sign are right for complex numbers: "
    "then handles_complex = True. Others leave it False, and are refused."
)
def turns_with_complex_numbers_or_refuses(case: Case) -> None:
    """Gradients and parameters turned in the complex plane turn the updates, or are refused."""
    if not isinstance(case.tx, ArrayRule) or case.extra or case.examples is not None:
        raise Skipped("it is not a rule, or its extra arguments are real")
    phase = np.exp(0.7j)

    def turned(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.asarray(as_numpy(x) * phase, jnp.complex64), tree)

    tree = case.params()
    grads = case.gradients(tree, 3)
    if any(jnp.iscomplexobj(x) for x in jax.tree.leaves((tree, grads))):
        raise Skipped("it has complex parameters already")
    if not case.tx.handles_complex:
        with contextlib.suppress(TypeError):
            run(case.tx, turned(tree), [turned(g) for g in grads[:1]], case.compiled)
            raise Broken("no error", expected="TypeError, as handles_complex = False says")
        return
    first = case.tx.init(jax.tree.map(jnp.zeros_like, tree))
    if any(is_key(x) or np.any(np.asarray(x)) for x in jax.tree.leaves(first)):
        raise Skipped("its state begins with numbers of its own")
    _, updates, _ = run(case.tx, tree, grads, case.compiled)
    _, got, _ = run(case.tx, turned(tree), [turned(g) for g in grads], case.compiled)
    check_close("updates", got, turned(updates), 1e-2, what=", turned as the gradients are")


def _widened(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


EXTREMES = {
    "zero": lambda p: jnp.zeros_like(p),
    "tiny": lambda p: jnp.full_like(p, jnp.finfo(p.dtype).tiny),
    "huge": lambda p: jnp.full_like(p, jnp.finfo(p.dtype).max),
}


@promise(
    "Guard what divides: an eps, or jnp.where on the denominator before the division (after it "
    "is too late for inf * 0); sum squares in float32, and bound what is squared: "
    "numerics.overflow.bounded_square."
)
def extremes_stay_finite(case: Case) -> None:
    """All-zero, tiny and the largest gradients have finite updates, in float32 and in float16.

    An infinity is right where the reference is beyond the range of the dtype.
    """
    if case.foreign:
        raise Skipped("other libraries do not promise this")
    for dtype in (jnp.float32, jnp.float16):
        tree = case.params(dtype)
        # In one of the two, an array is empty. The other has the shapes that are compiled already.
        if dtype == jnp.float16 and case.tree is None and not case.names_leaves:
            tree["empty"] = jnp.zeros((0, 3), dtype)
        start = case.bound.init(tree)
        for kind, make in EXTREMES.items():
            if kind == "huge" and not case.huge_ok:
                continue
            share = float(case.huge_ok) if kind == "huge" else 1.0
            extremes = jax.tree.map(lambda p, make=make, share=share: make(p) * share, tree)
            state, g = start, case.like(extremes)
            for step in range(2):
                updates, state = case.compiled(g, state, tree)
                for index, (path, u) in enumerate(leaves_of("updates", updates).items()):
                    values = as_numpy(u)
                    if np.all(np.isfinite(values)):
                        continue
                    if _is_beyond(case, tree, g, step, index, u):
                        continue
                    raise Broken(
                        "NaN" if np.any(np.isnan(values)) else "an infinity",
                        expected=f"finite numbers of {kind} gradients in {jnp.dtype(dtype)}",
                        leaf=path,
                    )


@promise(
    "Make slots with gradxform.slots and copies with transforms.tree_rules.copied_params: for a "
    "complex parameter, a real dtype means the complex one that holds it."
)
def drops_no_imaginary_part(case: Case) -> None:
    """Complex parameters are refused, or nothing is cast to a real dtype on its way."""
    if case.foreign or case.tree is not None or case.extra or case.examples is not None:
        raise Skipped("it is of other parameters, or its extra arguments are real")
    tree = jax.tree.map(lambda p: lax.complex(p, p), case.params(jnp.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        with contextlib.suppress(TypeError, ValueError):
            jax.eval_shape(case.tx.update, tree, case.tx.init(tree), tree)


def _is_beyond(
    case: Case, tree: Params, g: Updates, step: int, index: int, update: jax.Array
) -> bool:
    """Whether an update is infinite only where the reference is beyond the range of its dtype."""
    values, largest = as_numpy(update), 0.99 * float(jnp.finfo(update.dtype).max)
    if case.reference is None or np.any(np.isnan(values)):
        return False
    reference = as_tree(case.reference)
    ps, gs = (list(map(as_numpy, jax.tree.leaves(x))) for x in (tree, g))
    index -= sum(not x.size for x in gs[:index])  # references need not know of empty arrays
    ps, gs = ([x for x in xs if x.size] for xs in (ps, gs))
    state, updates = reference.start([p.copy() for p in ps]), gs
    with np.errstate(all="ignore"):
        for t in range(1, step + 2):
            updates, state = reference.step(gs, state, ps, t)
    expected = np.broadcast_to(updates[index], values.shape)
    is_right = (np.abs(expected) > largest) & (np.sign(expected) == np.sign(values))
    return bool(np.all(is_right | np.isfinite(values)))


@promise("Use only operations of jax.numpy, and do not depend on the size of the batch.")
def vmaps_over_gradients(case: Case) -> None:
    """`jax.vmap` over three gradients equals three updates."""
    tree = case.params()
    grads = case.gradients(tree, 3)
    state = case.bound.init(tree)
    batch = jax.tree.map(lambda *x: jnp.stack(x), *grads)
    batch_updates, _ = jax.jit(jax.vmap(case.bound.update, (0, None, None)))(batch, state, tree)

    def update(tree: Params, g: Updates) -> Updates:
        return case.compiled(g, state, tree)[0]

    for i, g in enumerate(grads):
        updates = jax.tree.map(lambda x, i=i: x[i], batch_updates)
        slack = functools.partial(sway, update, tree, g)
        check_close("updates", updates, update(tree, g), 1e-5, what=" alone", sway=slack)

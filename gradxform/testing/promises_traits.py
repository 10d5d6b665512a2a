"""Promises about traits: what a transform declares about its state, updates and steps."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.leaves.states import holds_states, slot_fields
from gradxform.testing.case import Case, transforms_by_field
from gradxform.testing.promise import Broken, Skipped, as_numpy, promise, transform_of
from gradxform.tree.apply import apply_updates
from gradxform.types import Params, PyTree, Updates
from gradxform.values import fields_of, replace

STEPS = 4
# What a slot may average, computed from a gradient, by its name in `averages_of`.
AVERAGED = {"g": lambda g: g, "|g|^2": lambda g: np.abs(g) ** 2}


@promise("Declare averages_of, step_fields or set_by, of gradxform/base/traits.py, accordingly.")
def says_what_its_state_holds(case: Case) -> None:
    """Its traits name the averages, the counts of steps and the constants in its state."""
    tx, first = _with_own_state(case)
    p = case.params()
    grads = case.gradients(p, STEPS)
    states = [first, *(s for _, s in _outcomes(case, p, grads))]
    # A field that counts only some steps shows itself at zeros, spikes and NaNs.
    odd = [_scaled(g, factor) for g, factor in zip(grads, (1.0, 0.0, 1e4, jnp.nan), strict=True)]
    odd_states = [first, *(s for _, s in _outcomes(case, p, odd))]
    _check_step_fields(tx, states, odd_states)
    _check_averages(tx, states, grads)
    _check_constants(case, tx, [*states, *odd_states])
    if case.holds_optimizer:
        _check_holds(tx, first, p)


def _check_holds(tx: Any, state: Any, p: Params) -> None:
    """Require `holds` to name the fields of the state that have states of what it holds."""
    for name, inner in transforms_by_field(tx).items():
        expected = [jax.tree.structure(inner.init(p))] if _takes_params(inner, p) else []
        for field in state._fields:
            structure = jax.tree.structure(getattr(state, field))
            held_fields = {place for _, place in tx.holds}
            if field not in held_fields and structure in expected and structure.num_leaves:
                raise Broken(
                    f"holds = {tx.holds}",
                    expected=f"({name!r}, {field!r}) in it",
                    leaf=f"state.{field}",
                    remedy="Declare holds, of gradxform/base/traits.py, accordingly.",
                )


def _takes_params(tx: Any, p: Params) -> bool:
    """Whether a transform takes these parameters, rather than some, or others, or an axis."""
    try:
        jax.eval_shape(tx.init, p)
    except (NameError, TypeError, ValueError):  # of an axis, or of parameters
        return False
    return True


def _with_own_state(case: Case) -> tuple[Any, Any]:
    """Return the transform and its first state, if it has one that its parts do not have."""
    tx, p = transform_of(case), case.params()
    state = tx.init(p)
    if not hasattr(state, "_fields"):
        raise Skipped("it does not have a state of its own")
    parts = [part for part in tx.inner_transforms() if _takes_params(part, p)]
    if type(state) in [type(part.init(p)) for part in parts]:
        raise Skipped("its state is that of its part")
    return tx, state


def _outcomes(case: Case, p: Params, grads: Sequence[Updates]) -> Iterator[tuple[Updates, Any]]:
    """Yield the updates and the state of each step."""
    state = case.bound.init(p)
    for g in grads:
        updates, state = case.compiled(g, state, p)
        p = apply_updates(p, updates)
        yield updates, state


def _scaled(tree: PyTree, factor: float) -> PyTree:
    return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype), tree)


def _check_step_fields(tx: Any, states: Sequence[Any], odd_states: Sequence[Any]) -> None:
    """Require the fields that count the steps to be named in `step_fields`, and no others."""
    counting = []
    for field in states[0]._fields:
        if not _is_count(getattr(states[0], field)):
            continue
        counts, odd = ([int(getattr(s, field)) for s in run] for run in (states, odd_states))
        counts_all = all(n == list(range(n[0], n[0] + len(n))) for n in (counts, odd))
        counting += [field] * counts_all
        if field in tx.step_fields and counts_all == tx.counts_inner_steps:
            raise Broken(
                f"counts of {counts}, and with zeros, spikes and NaNs among the gradients {odd}",
                expected="to name fields of some steps only"
                if tx.counts_inner_steps
                else "to name fields that count every step",
                leaf=f"state.{field}",
            )
        # A wrapper that gathers gradients takes a step where the field of `zeros_unless` is 0.
        steps_so_far = (
            [
                sum(int(getattr(s, tx.zeros_unless)) == 0 for s in states[1 : i + 1])
                for i in range(len(states))
            ]
            if tx.zeros_unless
            else None
        )
        if counts == steps_so_far and not counts_all and field not in tx.step_fields:
            raise Broken(
                f"step_fields = {tx.step_fields}",
                expected=f"{field!r} in it, which counts the steps that are taken",
                leaf=f"state.{field}",
            )
    # A wrapper may count its own steps, which begin with it, and not those of the run.
    if counting and not tx.inner_transforms() and not set(counting) & set(tx.step_fields):
        raise Broken(
            f"step_fields = {tx.step_fields}",
            expected=f"one of {counting} in it, which count every step",
            leaf="state",
        )


def _is_count(x: Any) -> bool:
    return isinstance(x, jax.Array) and x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.signedinteger)


def _check_averages(tx: Any, states: Sequence[Any], grads: Sequence[Updates]) -> None:
    """Require `averages_of` to name averages only, and all where a state has little else."""
    names = dict(tx.averages_of)
    averages: dict[str, str] = {}
    for field in slot_fields(type(states[0])):
        slots = [_leaf_arrays(getattr(s, field)) for s in states]
        for name, f in AVERAGED.items():
            decays = _decays(slots, [[f(x) for x in _leaf_arrays(g)] for g in grads])
            if names.get(field) == name and decays is None:
                raise Broken(
                    "something else",
                    expected=f"an average of {name}, as averages_of says",
                    leaf=f"state.{field}",
                )
            if decays is not None and decays[0] > 0 and np.ptp(decays) < 1e-3:
                averages.setdefault(field, name)
    # Only a rule without other slots: one that begins at 0 beside an average that goes on, with a
    # count of many steps, would seem to be as old.
    others = {*states[0]._fields} - {*averages, *names, *tx.step_fields, *dict(tx.set_by)}
    # Where all entries are 0 or 1, g and |g|^2 are the same.
    of_ones = all(np.all(x * x == x) for g in grads for x in _leaf_arrays(g))
    if not others and not of_ones and not set(averages) <= set(names):
        raise Broken(f"averages_of = {tx.averages_of}", expected=f"{averages}", leaf="state")


def _leaf_arrays(tree: PyTree) -> list[Any]:
    return [as_numpy(x) for x in jax.tree.leaves(tree)]


def _decays(slots: list[list[Any]], terms: list[list[Any]]) -> list[float] | None:
    """Return b of each step in a <- b a + (1 - b) f, if there is one for all entries."""
    decays = []
    for old, new, f in zip(slots, slots[1:], terms, strict=False):
        if [x.shape for x in new] != [x.shape for x in f]:
            return None
        # Relative to the largest entry: rounding makes small ones uncertain.
        way, move = (
            np.concatenate([np.ravel(a - b) for a, b in zip(x, old, strict=True)]) for x in (f, new)
        )
        share = float(np.real(np.vdot(way, move) / max(float(np.real(np.vdot(way, way))), 1e-30)))
        if not 0 < share <= 1 + 1e-5 or np.max(np.abs(move - share * way)) > 1e-4 * share * np.max(
            np.abs(way)
        ):
            return None
        decays.append(1 - share)
    return decays


def _check_constants(case: Case, tx: Any, states: Sequence[Any]) -> None:
    """Require `set_by` to name the fields that an argument sets and no step changes, and keys."""
    for field, name in tx.set_by:
        begins, says = _numbers(getattr(states[0], field)), getattr(tx, name)
        is_number = isinstance(says, int | float) and not _is_any_key(getattr(states[0], field))
        if is_number and not _equal_numbers(begins, [np.asarray(says)]):
            raise Broken(
                f"{begins}", expected=f"{name} = {says}, as set_by says", leaf=f"state.{field}"
            )
    for name, value in fields_of(tx).items():
        other = _with_another_number(tx, name, value)
        state = None if other is None else other.init(case.params())
        if type(state) is not type(states[0]):
            continue
        for field in _fields_that_stay(states):
            if (field, name) not in tx.set_by and _keeps_difference(case, states[0], state, field):
                raise Broken(
                    f"set_by = {tx.set_by}",
                    expected=f"({field!r}, {name!r}) in it",
                    leaf=f"state.{field}",
                )


def _fields_that_stay(states: Sequence[Any]) -> Iterator[str]:
    """Yield the fields of a state that no step changes, and those of keys."""
    for field in set(states[0]._fields) - set(slot_fields(type(states[0]))):
        values = [_numbers(getattr(s, field)) for s in states]
        if _is_any_key(getattr(states[0], field)) or all(
            _equal_numbers(values[0], x) for x in values
        ):
            yield field


def _keeps_difference(case: Case, state: Any, other: Any, field: str) -> bool:
    """Whether a field differs from another transform's, and a step does not undo that."""
    ours, theirs = (_numbers(getattr(s, field)) for s in (state, other))
    if ours is None or theirs is None or _equal_numbers(ours, theirs):
        return False
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return False
    p = case.params()
    (g,) = case.gradients(p, 1)
    _, after = case.compiled(g, state._replace(**{field: getattr(other, field)}), p)
    return not _equal_numbers(_numbers(getattr(after, field)), ours)


def _with_another_number(tx: Any, name: str, value: Any) -> Any:
    """Return the transform with another number or key in a field, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    for number in (value + 1, value / 2, value * 2):
        with contextlib.suppress(TypeError, ValueError):
            if (other := replace(tx, **{name: type(value)(number)})) != tx:
                return other
    return None


def _numbers(x: Any) -> list[Any] | None:
    """Return the numbers and keys in a field of a state, or None if it has states of parts."""
    if holds_states(x):
        return None
    return [np.asarray(jax.random.key_data(a) if _is_any_key(a) else a) for a in jax.tree.leaves(x)]


def _is_any_key(x: Any) -> bool:
    dtype = getattr(x, "dtype", np.dtype(bool))
    return jnp.issubdtype(dtype, jax.dtypes.prng_key) or (dtype == jnp.uint32 and x.shape == (2,))


def _equal_numbers(a: list[Any] | None, b: list[Any] | None) -> bool:
    if a is None or b is None or len(a) != len(b):
        return False
    return all(x.shape == y.shape and bool(np.all(x == y)) for x, y in zip(a, b, strict=True))


@promise("Declare keeps_updates or zeros_unless, of gradxform/base/traits.py, accordingly.")
def says_what_its_updates_are(case: Case) -> None:
    """Its updates are those that it gets, or zeros, exactly when its traits say so."""
    tx, p = transform_of(case), case.params()
    grads = case.gradients(p, 7)
    odd = [*grads, _scaled(grads[0], 1e4), _scaled(grads[1], jnp.nan)]
    is_same = all(_same_tree(u, g) for g, (u, _) in zip(odd, _outcomes(case, p, odd), strict=True))
    if is_same and not tx.keeps_updates and not tx.inner_transforms():
        raise Broken("the updates that it gets", expected="other updates, or keeps_updates = True")
    if tx.keeps_updates and not is_same:
        raise Broken("other updates than it gets", expected="those, as keeps_updates says")
    with contextlib.suppress(Skipped):
        _check_zeros(*_with_own_state(case), list(_outcomes(case, p, grads)))


def _check_zeros(tx: Any, state: Any, outcomes: Sequence[tuple[Updates, Any]]) -> None:
    """Require `zeros_unless` to name the field that is 0 after every update that is not zeros."""
    zeros = [not any(np.any(x) for x in _leaf_arrays(updates)) for updates, _ in outcomes]
    between = any(zeros[i] and not zeros[i + 1] for i in range(len(zeros) - 1))
    fields = [k for k in state._fields if _is_count(getattr(state, k))]
    for field in fields:
        numbers = [int(getattr(s, field)) for _, s in outcomes]
        if field == tx.zeros_unless:
            if any(n and not zero for n, zero in zip(numbers, zeros, strict=True)):
                raise Broken(
                    f"updates that are not zeros beside {field} of {numbers}",
                    expected="zeros, as zeros_unless says",
                    leaf=f"state.{field}",
                )
        elif tx.zeros_unless is None and between and [bool(n) for n in numbers] == zeros:
            raise Broken(
                "zeros_unless = None",
                expected=f"{field!r}, which is 0 after updates that are not zeros",
            )


def _same_tree(a: PyTree, b: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=False)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.shape == y.shape and bool(jnp.all((x == y) | ((x != x) & (y != y)))) for x, y in pairs
    )

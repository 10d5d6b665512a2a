"""Run neighbouring rules together: prepare each, lift them over the leaves, put the slots back.

Rules are known here by their attributes (`rule`, `prepare`, `locality`, ...), which `base.py`
describes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.engine import lift, one_leaf, rows
from gradxform.errors import name_of, shown
from gradxform.leaves import (
    Aligned,
    align,
    flatten_updates,
    is_hole,
    like_params,
    path_at,
    path_str,
    require_params,
    with_paths,
)
from gradxform.leaves.row_sparse import coalesced, is_row_sparse
from gradxform.leaves.states import check_state, slot_fields, state_kind, used_slots
from gradxform.leaves.storage import are_arrays_here, as_kept, as_seen, has_stored, is_stored
from gradxform.numerics import ScheduleError, cast, has_64_bits, scalar_dtype
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.values import fields_of, put_live, take_live
from gradxform.values.content import flaw_of
from gradxform.values.extra_args import accepted_by, routed_extra
from gradxform.values.memory import Memory


def _wrong_slot(
    rules: Sequence[Any], states: Sequence[OptState], updates: PyTree, params: PyTree | None
) -> str | None:
    """Return a message naming the first slot whose shape `init` would not produce, or None."""
    need = "the gradient has" if params is None else "this parameter needs"
    for rule, state in zip(rules, states, strict=True):
        wanted = jax.eval_shape(rule.init, like_params(updates if params is None else params))
        for k in slot_fields(type(wanted)):
            had = dict(with_paths(getattr(state, k), is_stored))
            for path, leaf in with_paths(getattr(wanted, k), is_stored):
                old = had.get(path)
                if old is None or is_hole(leaf) or is_hole(old):
                    continue
                if jnp.shape(old) != leaf.shape:
                    return (
                        f"{name_of(rule)}: the state's {k} of {path_str(path)} has shape "
                        f"{jnp.shape(old)}, {need} {leaf.shape}. Was this state made for other "
                        "parameters?"
                    )
    return None


def _field_with_schedule(rule: Any, error: ScheduleError) -> str:
    """Return the name of the field that holds the schedule of an error, with a colon."""
    return next((f"{k}: " for k, v in fields_of(rule).items() if v is error.schedule), "")


def _with_live_scalars(rule: Any) -> Any:
    """Return the rule with its live numbers as wide as the other scalars of the step."""
    numbers: list[Any] = []
    bare = take_live(rule, numbers)
    return put_live(bare, tuple(map(_as_scalar, numbers))) if numbers else rule


def _as_scalar(x: Any) -> Any:
    return cast(x, scalar_dtype()) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _map_scalars(
    f: Callable[..., Any], slots: Sequence[str], state: OptState, *others: OptState
) -> OptState:
    """Map `f` over the scalars of a rule's state: its fields that are arrays and not slots."""
    scalars = [
        k
        for k in getattr(state, "_fields", ())
        if k not in slots and all(isinstance(getattr(x, k), jax.Array) for x in (state, *others))
    ]
    return state._replace(**{k: f(*(getattr(x, k) for x in (state, *others))) for k in scalars})


class _Step(NamedTuple):
    """The arguments that the rules of a run share."""

    updates: Updates
    treedef: Any  # the structure of the updates
    params: Params | None
    extra: dict[str, Any]
    is_sparse: bool  # whether some leaf is a RowSparse
    is_wide: bool  # whether there may be scalars of 64 bits


class _RuleReady(NamedTuple):
    """A rule with all that it needs to meet the leaves."""

    part: lift.BoundRule
    state: OptState  # with its scalars advanced, and the slots as they were
    slots: tuple[str, ...]  # their names


def run_rules(
    rules: Sequence[Any],
    updates: Updates,
    states: Sequence[OptState],
    params: Params | None,
    extra: dict[str, Any],
    is_last: bool = False,
) -> tuple[PyTree, list[OptState]]:
    """Run neighbouring rules over a tree, together; only the first may look at all updates.

    If `is_last`, nothing comes after them, and the parameters after the updates are returned in
    place of these.
    """
    if is_last:
        require_params(rules[0], params)
    leaves, treedef = flatten_updates(updates)
    is_sparse = any(map(is_row_sparse, leaves))
    if is_sparse:
        leaves = [coalesced(g) for g in leaves]
        updates = jax.tree.unflatten(treedef, leaves)
    seen = params
    if is_last and has_stored(params):
        seen = jax.tree.map(as_seen, params, is_leaf=is_stored)
    step = _Step(updates, treedef, seen, extra, is_sparse, has_64_bits())
    ready = [_rule_ready(rule, state, step) for rule, state in zip(rules, states, strict=True)]
    try:
        new_updates, new_slots = lift.map_leaves(
            [part for part, _, _ in ready], updates, leaves, treedef, params, is_last
        )
    except (TypeError, ValueError):
        # To compare every slot's shape costs a trace of `init`: only an error makes it worthwhile.
        reason = _wrong_slot(rules, states, updates, params)
        if reason is None:
            raise
        raise ValueError(reason) from None
    new_states = []
    for (part, state, names), slots in zip(ready, new_slots, strict=True):
        trees = map(Aligned.rebuilt, part.slots, slots)
        new_states.append(state._replace(**dict(zip(names, trees, strict=True))))
    return new_updates, new_states


class RulesAfter(NamedTuple):
    """Rules by entry, the last of a chain, ready to follow a rule for matrices on any array."""

    rules: tuple[Any, ...]  # without the live numbers in their fields
    live: tuple[Any, ...]
    scalars: tuple[tuple[Any, ...], ...]  # of each rule
    trees: tuple[Aligned, ...]  # the parameters, and the slots of all rules
    states: tuple[OptState, ...]  # with their scalars advanced

    def moved(self, dtype: Any, u: Array, p: Array, *slots: Array) -> list[Array]:
        """Return the parameter and the slots after an update, which is rounded to a dtype."""
        rest = iter(slots)
        groups = tuple(tuple(next(rest) for _ in self._names(k)) for k in range(len(self.rules)))
        none = (None,) * len(self.rules)
        given = self.live, cast(u, dtype), p, groups, ((),) * len(self.rules), self.scalars
        p, new = one_leaf.apply_rules(self.rules, none, True, *given)
        return [p, *(x for group in new for x in group)]

    def rebuilt(self, leaves: Sequence[list[Array]]) -> tuple[PyTree, list[OptState]]:
        """Return the parameters and the states, from the new leaves of each tree."""
        params, *slots = map(Aligned.rebuilt, self.trees, leaves)
        rest = iter(slots)
        states = [
            state._replace(**{name: next(rest) for name in self._names(k)})
            for k, state in enumerate(self.states)
        ]
        return params, states

    def _names(self, k: int) -> tuple[str, ...]:
        names = slot_fields(type(self.states[k]))
        return used_slots(self.rules[k], self.states[k], names)


def rules_after(
    rules: Sequence[Any],
    updates: Updates,
    states: Sequence[OptState],
    params: Params,
    extra: dict[str, Any],
) -> RulesAfter | None:
    """Return the last rules of a chain, if they may run on the matrices of a rule before them.

    The updates are those before that rule. None where one of these looks at more than an entry,
    acts on some leaves only, or has slots in another form.
    """
    leaves, treedef = flatten_updates(updates)
    stored = has_stored(params) or any(map(has_stored, states))
    by_entry = all(rule.locality == "entry" and rule.statics is None for rule in rules)
    if stored or not by_entry or any(map(is_row_sparse, leaves)):
        return None
    step = _Step(updates, treedef, params, extra, False, has_64_bits())
    ready = [_rule_ready(rule, state, step) for rule, state in zip(rules, states, strict=True)]
    live: list[Any] = []
    bare = [rule if rule.is_static else take_live(rule, live) for (rule, *_), _, _ in ready]
    parts = [part for part, _, _ in ready]
    shared = [x for part in parts for x in part.shared]
    if any(part.active is not None for part in parts) or lift.PerLeaf in map(type, shared):
        return None
    slots = [x for part in parts for x in part.slots]
    ps = align(rules[0], updates, treedef, params, "the parameters have")
    for i, (p, g) in enumerate(zip(ps.leaves, leaves, strict=True)):
        lift.check_addable(updates, i, p, g)
    trees = ps, *slots
    scalars = tuple(part.shared for part in parts)
    return RulesAfter(tuple(bare), tuple(live), scalars, trees, tuple(x for _, x, _ in ready))


def _rule_ready(rule: Any, state: OptState, step: _Step) -> _RuleReady:
    """Check a rule's state, and have the rule prepare the scalars of the step."""
    updates, treedef, params = step.updates, step.treedef, step.params
    if rule.needs_params and params is None:
        require_params(rule, params)
    like = updates if params is None else params
    kind = rule.__dict__.get("_state_kind")  # noted by init
    if kind is None:
        kind = state_kind(rule, like)
    if type(state) is not kind:
        state = check_state(rule, state, kind)
    names = slot_fields(kind)
    if rule.unused_slots or getattr(kind, "_field_defaults", None):
        names = used_slots(rule, state, names)
    mask = rule.active and rule.active(like)
    if mask is not None:
        mask = align(rule, updates, treedef, mask, "the mask has").leaves
    if step.is_sparse:
        rows.check_rule(rule, updates, mask, bool(names))
    if not rule.is_static:
        rule = _with_live_scalars(rule)
    old = state
    if step.is_wide:
        state = _map_scalars(_as_scalar, names, state)
    accepts = accepted_by(type(rule), "prepare")
    extra = routed_extra(rule, accepts, step.extra) if step.extra or accepts.needed else {}
    tree = rule.locality == "tree"
    seen = _state_seen(state, names) if tree else state
    try:
        prepared = rule.prepare(updates if tree else None, seen, params, **extra)
    except ScheduleError as error:
        raise TypeError(f"{name_of(rule)}: {_field_with_schedule(rule, error)}{error}") from None
    first = prepared[0] if isinstance(prepared, tuple) and prepared else None
    if getattr(first, "_fields", ()) != getattr(state, "_fields", None):
        raise TypeError(
            f"{name_of(rule)}: prepare must return (state, *scalars), with the new state first; "
            f"got {shown(prepared)}."
        )
    new, *scalars = prepared
    state = new if seen is state else _state_kept(new, seen, state, names)
    if step.is_wide:  # no leaf of a state ever changes its dtype
        state = _map_scalars(lambda new, old: cast(new, old.dtype), names, state, old)
    slots = [
        align(rule, updates, treedef, getattr(state, k), f"the state's {k} has") for k in names
    ]
    statics = None if rule.statics is None else _statics(rule, updates)
    return _RuleReady(
        lift.BoundRule(rule, tuple(slots), tuple(scalars), mask, statics), state, names
    )


def _state_seen(state: OptState, names: Sequence[str]) -> OptState:
    """Return the state as `prepare` of a rule for trees sees it, which may read the slots."""
    slots = {k: getattr(state, k) for k in names}
    leaves = jax.tree.leaves(slots, is_leaf=is_stored)
    if are_arrays_here(leaves):
        return state
    return state._replace(**jax.tree.map(as_seen, slots, is_leaf=is_stored))


def _state_kept(new: OptState, seen: OptState, old: OptState, names: Sequence[str]) -> OptState:
    """Return what `prepare` returned, its slots in the form of the old ones."""

    def kept(k: str) -> PyTree:
        leaves, treedef = jax.tree.flatten(getattr(old, k), is_leaf=is_stored)
        pairs = zip(
            jax.tree.leaves(getattr(seen, k)), jax.tree.leaves(getattr(new, k)), strict=True
        )
        each = zip(leaves, pairs, strict=True)
        return treedef.unflatten([x if a is b else as_kept(b, x) for x, (a, b) in each])

    return new._replace(**{k: kept(k) for k in names})


def _statics(rule: Any, updates: PyTree) -> list[lift.Static]:
    """Return what a rule must know of each leaf before it runs."""
    values = rule.statics(updates)
    # A rule that remembers them for a structure returns the same list again. The entry keeps the
    # list, so that no other object can get its id.
    entry = _STATICS.get(id(values))
    if entry is not None and entry[0] is values:
        return entry[1]
    for i, x in enumerate(values):
        flaw = flaw_of(x)
        if flaw is not None:
            raise TypeError(
                f"{name_of(rule)}: static of {path_at(updates, i)} must be a value, got {flaw}"
            )
    statics = [lift.Static(x) for x in values]
    _STATICS.keep(id(values), (values, statics))
    return statics


_STATICS: Memory[int, tuple[list[Any], list[lift.Static]]] = Memory()

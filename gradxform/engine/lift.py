"""Lift rules for one array to an update of a tree: the only tree map that rules ever meet.

The rules of a run are lifted together. Leaves go through in chunks. Each chunk is one call of a
compiled function whose static argument is the tuple of rules, so that rules are traced once for
each signature of a leaf, not once for each leaf.
"""

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._jax.versions import Tracer
from gradxform.engine.calls import compiled_calls
from gradxform.engine.chunks import chunked, is_traced, leaf_signatures, places, signature
from gradxform.engine.cuts import Cut, cuts_of, exchange_now
from gradxform.engine.one_leaf import apply_rules
from gradxform.engine.rounds import OnPiece, in_rounds
from gradxform.engine.rows import check_shape, check_slot, check_stored, put_rows, take_rows
from gradxform.engine.storage import TouchedRows
from gradxform.errors import name_of
from gradxform.leaves import Aligned, align, dtype_of, path_at
from gradxform.leaves.row_sparse import RowSparse, is_row_sparse
from gradxform.leaves.storage import StoredArray
from gradxform.leaves.trees import remedy_or_leave_out
from gradxform.types import PyTree
from gradxform.values import take_live
from gradxform.values.content import key_of


class PerLeaf(NamedTuple):
    """A scalar of the step that differs from leaf to leaf, in the order of the updates' leaves."""

    values: list[Any]


class Static(tuple[Any]):
    """A value that is part of a leaf's signature, by its key: 1, 1.0 and True are three."""

    value: Any

    def __new__(cls, value: Any) -> "Static":
        """Return the tuple of the key, which hashes and compares without a call."""
        self = tuple.__new__(cls, (key_of(value),))
        self.value = value
        return self


class BoundRule(NamedTuple):
    """One rule of a run with its slots and scalars for this step."""

    rule: Any
    slots: tuple[Aligned, ...]
    shared: tuple[Any, ...]  # its scalars
    active: list[bool] | None  # for each leaf whether the rule acts on it; None: on all
    statics: list["Static"] | None  # what the rule must know of each leaf; None: nothing


class LeafView(NamedTuple):
    """One leaf, as the rules of a run see it."""

    on: tuple[int, ...]  # which of the rules act on it
    g: Any  # the gradient; the touched rows of a row-sparse one
    p: Any  # the parameter, or the touched rows of it; None without parameters
    slots: tuple[tuple[Any, ...], ...]  # of each rule that acts, as the rule sees them
    scalars: tuple[tuple[Any, ...], ...]  # of each, those that differ from leaf to leaf
    statics: tuple[Static | None, ...]  # of each, what it must know of the leaf
    touched: tuple[tuple[TouchedRows, ...], ...] | None  # of each, the slots seen by rows; or None
    rows: RowSparse | None  # the row-sparse gradient
    apart: bool  # whether several slices of it may belong to one row, and stay apart


def map_leaves(
    parts: Sequence[BoundRule],
    updates: PyTree,
    leaves: list[Any],
    treedef: Any,
    params: PyTree | None,
    is_last: bool = False,
) -> tuple[PyTree, list[list[list[Any]]]]:
    """Run the rules of `parts`, in order, over every leaf.

    Args:
      parts: the rules with their slots and scalars.
      updates: the gradients, or the updates of the part before.
      leaves: the leaves of `updates`.
      treedef: the structure around them.
      params: the parameters, or None if the caller has none.
      is_last: whether nothing comes after the rules, so that their updates are added at once.

    Returns:
      The new updates, or the new parameters if `is_last`, and for every part and every slot the
      list of new leaves.
    """
    gs = list(leaves)
    ps: list[Any] = [None] * len(gs)
    aligned = None
    if params is not None:
        aligned = align(parts[0].rule, updates, treedef, params, "the parameters have")
        ps = aligned.leaves
    if is_last:
        for i, (p, u) in enumerate(zip(ps, gs, strict=True)):
            check_addable(updates, i, p, u)
    views = _views(parts, updates, gs, ps)
    # A copy, because leaves on which a rule does not act keep its slots.
    new = [[list(slot.leaves) for slot in part.slots] for part in parts]
    for i, (u, results) in _run(parts, updates, views, is_last):
        leaf = views[i]
        gs[i] = u if leaf.rows is None else leaf.rows.with_values(u)
        if is_last and leaf.rows is not None:
            gs[i] = gs[i].add_to(ps[i])
        if leaf.touched is not None:
            pairs = zip(leaf.touched, results, strict=True)
            results = [[*map(TouchedRows.store, *pair)] for pair in pairs]
        for k, fresh in zip(leaf.on, results, strict=True):
            for slot, x in zip(new[k], fresh, strict=True):
                slot[i] = x
    if is_last and aligned is not None:
        return aligned.rebuilt(gs), new
    return jax.tree.unflatten(treedef, gs), new


def check_addable(updates: PyTree, i: int, p: Any, u: Any) -> None:
    """Require that a parameter takes an update, the i-th of `updates`, without losing a part."""
    old, new = dtype_of(p), dtype_of(u)
    for kind in (jnp.inexact, jnp.complexfloating):
        if jnp.issubdtype(new, kind) and not jnp.issubdtype(old, kind):
            raise TypeError(
                f"apply_updates: the update of {path_at(updates, i)} has dtype {new}, "
                f"which a parameter of dtype {old} cannot take."
            )


def _views(
    parts: Sequence[BoundRule], updates: PyTree, gs: list[Any], ps: list[Any]
) -> list[LeafView]:
    """Return the leaves as the rules see them.

    This runs for every leaf of every update. Where the rules see all leaves alike, what they need
    to know of one is made once.
    """
    by_rule = []  # for each rule, the slots of every leaf
    alike = not any(map(is_row_sparse, gs))
    for part in parts:
        columns = [slot.leaves for slot in part.slots]
        by_rule.append(zip(*columns, strict=True) if columns else [()] * len(gs))
        alike &= part.active is None and part.statics is None
        alike &= PerLeaf not in map(type, part.shared)
    leaves = zip(gs, ps, zip(*by_rule, strict=True), strict=True)
    if not alike:
        return [_view(parts, updates, i, *leaf) for i, leaf in enumerate(leaves)]
    on, none, nothing = tuple(range(len(parts))), (None,) * len(parts), ((),) * len(parts)
    return [LeafView(on, g, p, slots, nothing, none, None, None, False) for g, p, slots in leaves]


def _view(
    parts: Sequence[BoundRule], updates: PyTree, i: int, g: Any, p: Any, slots: Sequence[Any]
) -> LeafView:
    """Return leaf `i` as the rules see it; for a row-sparse leaf, the touched rows."""
    on = tuple([k for k, part in enumerate(parts) if part.active is None or part.active[i]])
    scalars = tuple(
        [tuple([x.values[i] for x in parts[k].shared if isinstance(x, PerLeaf)]) for k in on]
    )
    statics = tuple([None if (x := parts[k].statics) is None else x[i] for k in on])
    slots, touched = tuple([slots[k] for k in on]), None
    if not isinstance(g, RowSparse):
        return LeafView(on, g, p, slots, scalars, statics, None, None, False)
    rows = g
    check_shape(parts[0].rule, updates, i, p)
    for k, group in zip(on, slots, strict=True):
        for slot in group:
            where = path_at(updates, i)
            check_slot(parts[k].rule, rows, slot, where)
            check_stored(parts[k].rule, rows, slot, where)
    p = None if p is None else take_rows(rows, p)
    # Slices that stay apart look their rows up themselves.
    if not rows.raw:
        touched = tuple([tuple([TouchedRows(rows, x) for x in group]) for group in slots])
        slots = tuple([tuple([x.load() for x in group]) for group in touched])
    return LeafView(on, rows.values, p, slots, scalars, statics, touched, rows, rows.raw)


class _LiftedRules(NamedTuple):
    """The rules of a run, as the static argument of compiled calls and what goes with it."""

    rules: tuple[Any, ...]  # without the live numbers in their fields
    live: tuple[Any, ...]  # those numbers
    scalars: tuple[
        tuple[Any, ...], ...
    ]  # of each rule; None in the places of those of single leaves
    is_last: bool  # whether updates that are dense are added to the parameters
    # By the indices of the rules that act on a leaf: those rules and their scalars, and whether
    # they are brief.
    acting: dict[tuple[int, ...], tuple[tuple[Any, ...], tuple[Any, ...]]]
    brief: dict[tuple[int, ...], bool]


def _run(
    parts: Sequence[BoundRule], updates: PyTree, leaves: list[LeafView], is_last: bool
) -> list[tuple[int, tuple[Any, Any]]]:
    """Return for each leaf on which a rule acts its index, its update and its new slots.

    With `is_last`, of all leaves, and the new parameter in place of a dense update.
    """
    rules, live, scalars = [], [], []
    for part in parts:
        rules.append(part.rule if part.rule.is_static else take_live(part.rule, live))
        shared = part.shared
        if PerLeaf in map(type, shared):
            shared = tuple([None if isinstance(x, PerLeaf) else x for x in shared])
        scalars.append(shared)
    acting = {
        on: (tuple([rules[k] for k in on]), tuple([scalars[k] for k in on]))
        for on in {leaf.on for leaf in leaves}
    }
    run = _LiftedRules(tuple(rules), tuple(live), tuple(scalars), is_last, acting, {})
    kinds: dict[Any, int] = {}  # of leaves, by what those that share a trace have in common
    rows = [(leaf.g, leaf.p, *itertools.chain(*leaf.slots)) for leaf in leaves]
    signed = iter(leaf_signatures(itertools.chain(*rows)))
    kind_of = [
        kinds.setdefault((leaf.on, leaf.statics, *itertools.islice(signed, len(row))), len(kinds))
        for leaf, row in zip(leaves, rows, strict=True)
    ]
    for k in range(len(kinds)):  # the first leaf stands for all of its kind
        i = kind_of.index(k)
        g, p = leaves[i].g, leaves[i].p
        check_gradient(rules, updates, i, g)
        if p is not None and jnp.shape(g) != jnp.shape(p):
            raise ValueError(
                f"{name_of(rules[0])}: gradient of {path_at(updates, i)} has shape {jnp.shape(g)}, "
                f"the parameter has {jnp.shape(p)}."
            )
    if exchange_now() is not None and _may_need_sums(parts, leaves):
        return _run_on_pieces(run, updates, leaves, kind_of)
    results: list[tuple[int, tuple[Any, Any]]] = []
    where = places([leaf.g for leaf in leaves])
    beside = [
        (leaf.on, place, leaf.apart, leaf.rows is not None)
        for leaf, place in zip(leaves, where, strict=True)
    ]
    signatures = list(kinds)
    given = signature((run.live, run.scalars))
    for chunk, alike in chunked(kind_of, beside):
        group = [leaves[i] for i in chunk]
        if group[0].apart:
            results += zip(chunk, [_slice_by_slice(run, leaf) for leaf in group], strict=True)
        elif group[0].on or is_last:
            own = tuple([kind_of[i] for i in chunk])
            key = own, given, *[signatures[k] for k in dict.fromkeys(own)]
            repeated = [own.count(k) > 1 for k in own]
            results += zip(chunk, _run_chunk(run, group, key, repeated, alike), strict=True)
    return results


def _may_need_sums(parts: Sequence[BoundRule], leaves: list[LeafView]) -> bool:
    """Whether a rule, or the form in which a slot is kept, may need sums over whole arrays."""
    for part in parts:
        if part.rule.sees_pieces:
            return True
    groups = itertools.chain.from_iterable([leaf.slots for leaf in leaves])
    for x in itertools.chain.from_iterable(groups):
        if isinstance(x, StoredArray) and x.needs_means:
            return True
    return False


def _run_on_pieces(
    run: _LiftedRules, updates: PyTree, leaves: list[LeafView], keys: list[Any]
) -> list[tuple[int, tuple[Any, Any]]]:
    """Return what `_run` does, by rules that may ask for sums over whole arrays."""
    often = collections.Counter(keys)
    on = [i for i, leaf in enumerate(leaves) if leaf.on or run.is_last]
    cuts = cuts_of(updates)
    calls = []
    for i in on:
        leaf = leaves[i]
        rules, scalars = run.acting[leaf.on]
        arrays = run.live, leaf.g, leaf.p, leaf.slots, leaf.scalars, scalars
        static = rules, leaf.statics, run.is_last and leaf.rows is None
        calls.append(OnPiece(static, cuts[i], arrays, often[keys[i]] > 1))
    return list(zip(on, in_rounds(apply_rules, calls), strict=True))


def _run_chunk(
    run: _LiftedRules, group: list[LeafView], key: Any, repeated: list[bool], alike: bool
) -> list[Any]:
    """Return the updates and the new slots of the leaves of a chunk, by one call.

    Args:
      run: the rules.
      group: the leaves.
      key: what they share with those of another chunk that may run by the same program.
      repeated: whether there is another leaf of the same kind, for each.
      alike: whether another chunk has leaves of the same kinds.
    """
    on, tracing = group[0].on, isinstance(group[0].g, Tracer)
    rules, scalars = run.acting[on]
    arrays = [(leaf.g, leaf.p, leaf.slots, leaf.scalars) for leaf in group]
    statics = tuple([leaf.statics for leaf in group])
    adds = run.is_last and group[0].rows is None  # rows are added afterwards
    arguments = statics, rules, adds, run.live, arrays, scalars
    # What is repeated in a chunk is traced once, as a call.
    called = tuple([_ONE.called if again else _ONE.plain for again in repeated])
    if not tracing:
        local = [leaf.scalars for leaf in group if any(leaf.scalars)]
        key = (*key, signature(local)) if local else key
        return _CHUNK.run(key, called, *arguments)
    if alike and on not in run.brief:
        run.brief[on] = _CHUNK.is_brief(len(group), called, *arguments)
    if alike and run.brief[on]:
        inlined = tuple([_ONE.inlined if again else _ONE.plain for again in repeated])
        return _CHUNK.inlined(inlined, *arguments)
    return _CHUNK.choose(alike, tracing, brief=False)(called, *arguments)


def _run_leaves(
    ones: Any, statics: Any, rules: Any, is_last: bool, live: Any, arrays: Any, scalars: Any
) -> list[Any]:
    leaves = zip(ones, statics, arrays, strict=True)
    return [one(rules, fixed, is_last, live, *leaf, scalars) for one, fixed, leaf in leaves]


_ONE = compiled_calls(apply_rules, static=3)
_CHUNK = compiled_calls(_run_leaves, static=4)


def _slice_by_slice(run: _LiftedRules, leaf: LeafView) -> tuple[Any, Any]:
    """Run rules on slices, several of which may belong to one row, each slice by itself."""
    rows: Any = leaf.rows
    g = rows.with_values(leaf.g)  # whole arrays are looked at here: padding must be zero
    new_slots = []
    each = zip(leaf.on, leaf.slots, leaf.scalars, leaf.statics, strict=True)
    for k, slots, local, fixed in each:
        rule, common = run.rules[k], run.scalars[k]
        by_slice = type(rule).slice_rule is not None
        inputs = slots if by_slice else tuple(take_rows(g, slot) for slot in slots)
        gradient = g if by_slice else g.values
        arrays = run.live, gradient, leaf.p, (inputs,), (local,), (common,)
        u, (new,) = apply_rules((rule,), (fixed,), False, *arrays)
        if not by_slice:
            new = tuple(put_rows(g, slot, x) for slot, x in zip(slots, new, strict=True))
        g = g.with_values(u)
        new_slots.append(new)
    return g.values, tuple(new_slots)


def check_gradient(
    rules: Sequence[Any], updates: PyTree, i: int, g: Any, what: str = "gradient of"
) -> None:
    """Require that rules are defined for the dtype of a leaf of `updates`, the i-th.

    Raises:
      TypeError: for integers, and for complex numbers where a rule does not handle them.
    """
    dtype = dtype_of(g)
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(
            f"{name_of(rules[0])}: {what} {path_at(updates, i)} has dtype {dtype}; only "
            "floating gradients can be transformed. "
            f"{remedy_or_leave_out(updates)}"
        )
    if jnp.issubdtype(dtype, jnp.complexfloating):
        for rule in rules:
            if not rule.handles_complex:
                raise TypeError(
                    f"{name_of(rule)}: {what} {path_at(updates, i)} has dtype "
                    f"{dtype}, for which this rule is not defined. Optimize its real and "
                    "imaginary parts as two parameters."
                )


def map_rows(
    one: Callable[..., Any],
    columns: Sequence[list[Any]],
    *scalars: Any,
    statics: Sequence[Any] | None = None,
    cuts: Sequence[Cut] | None = None,
) -> list[Any]:
    """Return `one(*row, *scalars)` for every row of several lists of leaves.

    Args:
      one: a function of a few operations on arrays, defined at module level (it is the key of a
        compiled call); it may return a tuple.
      columns: lists of leaves of equal length.
      *scalars: what every call gets.
      statics: for each row a value, which `one` gets as its last argument; rows for which it
        differs do not share a compiled call.
      cuts: for each row how its leaves are divided over devices (`cuts_of`), for a function that
        calls `array_sums` or the like.
    """
    fixed = (
        [None for _ in zip(*columns, strict=True)]
        if statics is None
        else list(map(Static, statics))
    )
    keys = list(zip(fixed, *map(leaf_signatures, columns), strict=True))
    if cuts is not None and exchange_now() is not None:
        often = collections.Counter(keys)
        rows = zip(keys, fixed, cuts, zip(*columns, strict=True), strict=True)
        calls = [OnPiece((one, x), cut, (row, scalars), often[k] > 1) for k, x, cut, row in rows]
        return in_rounds(_apply_to_row, calls)
    out: list[Any] = [None] * len(keys)
    brief = None  # unknown until two chunks are alike
    for chunk, alike in chunked(keys, places(columns[0]) if columns else ()):
        group = [tuple(column[i] for column in columns) for i in chunk]
        arguments = one, tuple(fixed[i] for i in chunk), group, scalars
        tracing = is_traced(group[0][0])
        if alike and tracing and brief is None:
            brief = _ROWS.is_brief(len(group), *arguments)
        if tracing:
            results = _ROWS.choose(alike, tracing, bool(brief))(*arguments)
        else:
            key = tuple([keys[i] for i in chunk]), signature(scalars)
            results = _ROWS.run(key, *arguments)
        for i, x in zip(chunk, results, strict=True):
            out[i] = x
    return out


def _apply_to_rows(one: Any, statics: Any, group: Any, scalars: Any) -> list[Any]:
    return [
        _apply_to_row(one, fixed, row, scalars) for row, fixed in zip(group, statics, strict=True)
    ]


def _apply_to_row(one: Any, fixed: Static | None, row: Any, scalars: Any) -> Any:
    return one(*row, *scalars) if fixed is None else one(*row, *scalars, fixed.value)


_ROWS = compiled_calls(_apply_to_rows, static=2)

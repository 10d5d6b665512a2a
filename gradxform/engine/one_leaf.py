"""Apply rules to one leaf: in float32 or wider, then cast back.

A rule sees arrays as wide as the gradient and the parameter together, at least float32. Its results
are cast back to the dtypes of the update and of the slots.
"""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.engine.folded import apply_folded
from gradxform.engine.rounds import cut_here, known_sums
from gradxform.engine.rows import reach_of
from gradxform.engine.tiles import Remade, Slots, apply_stored, goes_by_tiles
from gradxform.engine.together import in_one_pass
from gradxform.errors import name_of, shown
from gradxform.leaves import dtype_of
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import slot_fields
from gradxform.leaves.storage import are_arrays_here, as_seen, is_stored
from gradxform.numerics import at_least_float32, cast, promote, real_dtype, sum_as_first
from gradxform.numerics.overflow import cast_slot
from gradxform.types import Array
from gradxform.values import put_live


def apply_rules(
    rules: Sequence[Any],
    statics: Sequence[Any],
    is_last: bool,
    live: Sequence[Any],
    g: Any,
    p: Any,
    slots: Slots,
    local: Sequence[tuple[Any, ...]],
    shared: Sequence[tuple[Any, ...]],
) -> tuple[Any, Slots]:
    """Apply rules to one leaf, whose slots a state may store in another form or memory.

    The arguments are those of `apply_to_arrays`. If `is_last`, nothing comes after the rules, and
    the new parameter is returned in place of the update.
    """
    if are_arrays_here(itertools.chain((p,), *slots)):
        u, new = apply_to_arrays(rules, statics, live, g, p, slots, local, shared)
        if not is_last:
            return u, new
        return in_one_pass(g, sum_as_first(p, u), slots, new, _are_by_row(rules))
    parts = _parts_by_reach(rules, g, p)
    if len(parts) == 1:
        return _apply_to_stored(rules, statics, is_last, live, g, p, slots, local, shared)
    first = slice(parts[-1].start)
    again = is_last and _are_remade(rules[first], p, slots, parts[-1])
    u, all_new = g, []
    with known_sums() if again else contextlib.nullcontext([]) as sums:
        for part in parts[:-1]:
            given = live, u, as_seen(p), slots[part], local[part], shared[part]
            u, new = apply_rules(rules[part], statics[part], False, *given)
            all_new += new

    def remade(p: Any, turn: Any) -> Any:
        # Depending on the turn, it is made there, a tile at a time, and not held for all turns.
        now, _ = lax.optimization_barrier((g, jnp.asarray(turn)))
        with known_sums(sums):
            seen = tuple([tuple(map(as_seen, group)) for group in slots[first]])
            given = live, now, p, seen, local[first], shared[first]
            return apply_to_arrays(rules[first], statics[first], *given)[0]

    part = parts[-1]
    given = live, u, p if is_last else as_seen(p), slots[part], local[part], shared[part]
    u, new = _apply_to_stored(
        rules[part], statics[part], is_last, *given, remade if again else None
    )
    return u, (*all_new, *new)


def _apply_to_stored(
    rules: Sequence[Any],
    statics: Sequence[Any],
    is_last: bool,
    live: Sequence[Any],
    g: Any,
    p: Any,
    slots: Slots,
    local: Sequence[tuple[Any, ...]],
    shared: Sequence[tuple[Any, ...]],
    remade: Remade | None = None,
) -> tuple[Any, Slots]:
    """Apply rules that go through the leaf together; see `apply_rules` and `apply_stored`."""
    if are_arrays_here(itertools.chain((p,), *slots)):
        return apply_rules(rules, statics, is_last, live, g, p, slots, local, shared)

    def apply(g: Any, p: Any, slots: Any) -> tuple[Any, Slots]:
        return apply_to_arrays(rules, statics, live, g, p, slots, local, shared)

    scalars = [x for group in (*local, *shared) for x in group if x is not None]
    arguments = apply, rules, scalars, g, p, slots
    result = apply_folded(*arguments)
    if result is None:
        return apply_stored(*arguments, is_last, remade)
    u, new = result
    return (sum_as_first(p, u) if is_last else u), new


def _are_remade(rules: Sequence[Any], p: Any, slots: Slots, last: slice) -> bool:
    """Whether rules run again where rules after them, `last`, go by tiles.

    Their update is then not held in between. Their old slots are, and must be small beside it.
    """
    if is_stored(p) or cut_here().cuts or not goes_by_tiles(p, [*itertools.chain(*slots[last])]):
        return False
    if any(jnp.shape(x) == jnp.shape(p) for x in itertools.chain(*slots[: last.start])):
        return False
    return all(rule.by_entry_after_sums or reach_of(rule) == "entry" for rule in rules)


def _are_by_row(rules: Sequence[Any]) -> bool:
    return all(reach_of(rule) in ("entry", "row") for rule in rules)


def _parts_by_reach(rules: Sequence[Any], g: Any, p: Any) -> list[slice]:
    """Return the rules in parts: those that look at the whole leaf go through it apart.

    The others go by tiles. What goes from one part to the next is as wide as what rules see, so
    that nothing is rounded; a narrower gradient goes through all of them at once.
    """
    is_wide = dtype_of(g) == at_least_float32(promote(dtype_of(g), dtype_of(g if p is None else p)))
    if isinstance(g, RowSparse) or not is_wide:
        return [slice(None)]
    alike = itertools.groupby(range(len(rules)), lambda k: _are_by_row(rules[k : k + 1]))
    ends = list(itertools.accumulate(len(list(some)) for _, some in alike))
    return list(itertools.starmap(slice, zip([0, *ends], ends, strict=False)))


def apply_to_arrays(
    rules: Sequence[Any],
    statics: Sequence[Any],
    live: Sequence[Any],
    g: Any,
    p: Any,
    slots: Sequence[tuple[Any, ...]],
    local: Sequence[tuple[Any, ...]],
    shared: Sequence[tuple[Any, ...]],
) -> tuple[Any, tuple[tuple[Any, ...], ...]]:
    """Apply rules to one leaf, one after the other; return the update and the new slots.

    Args:
      rules: the rules, without the live numbers in their fields.
      statics: for each rule what it must know of the leaf, or None.
      live: those numbers.
      g: the gradient, an array, or slices of one for rules with a `slice_rule`.
      p: the parameter, or None.
      slots: for each rule the leaf's slots.
      local: for each rule the scalars of this leaf alone.
      shared: for each rule all its scalars, None in the places of those.
    """
    g_dtype = dtype_of(g)
    dtype = at_least_float32(g_dtype if p is None else promote(g_dtype, dtype_of(p)))
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    real = real_dtype(dtype) if is_complex else dtype

    def up(x: Array) -> Array:
        """Widen an array that the rule computes with; leave counters and keys alone."""
        if x.dtype == real or not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return cast(x, dtype if jnp.issubdtype(x.dtype, jnp.complexfloating) else real)

    slices = g if isinstance(g, RowSparse) else None
    u = cast(jnp.asarray(g) if slices is None else slices.values, dtype)
    wide_p = None if p is None else cast(jnp.asarray(p), dtype)
    live = tuple(map(up, live))
    out = []
    each = zip(rules, statics, slots, local, shared, strict=True)
    for rule, static, old, leaf_scalars, common in each:
        per_leaf = iter(leaf_scalars)
        scalars = [up(jnp.asarray(next(per_leaf) if x is None else x)) for x in common]
        last = scalars if static is None else [*scalars, static.value]
        live_rule = put_live(rule, live) if live else rule
        rule_now = live_rule.rule if slices is None else live_rule.slice_rule
        gradient = u if slices is None else slices.with_values(u)
        # Real numbers meet complex ones, also where JAX is told to be strict.
        mixing = jax.numpy_dtype_promotion("standard") if is_complex else contextlib.nullcontext()
        with mixing:
            result = rule_now(gradient, *_with_unused(rule, [*map(up, old)]), wide_p, *last)
        u, *new = result if isinstance(result, tuple) else (result,)
        if not hasattr(u, "dtype"):
            raise TypeError(
                f"{name_of(rule)}: rule must return the update and then its slots, got "
                f"{shown(result)}."
            )
        if rule.unused_slots:
            new = [x for x in new if x is not None]
        g_values = g if slices is None else g.values
        if [*map(jnp.shape, (u, *new))] != [*map(jnp.shape, (g_values, *old))]:
            raise _wrong_result(rule, g_values, u, old, new)
        out.append(tuple(map(cast_slot, new, old)))
        if u.dtype != dtype or getattr(u, "weak_type", False):
            u = cast(u, dtype)
    return cast(u, g_dtype), tuple(out)


def _with_unused(rule: Any, slots: list[Any]) -> list[Any]:
    """Return the slots with None in the places of those that the rule does without."""
    if not rule.unused_slots:
        return slots
    used = iter(slots)
    return [None if k in rule.unused_slots else next(used) for k in slot_fields(rule.State)]


def _wrong_result(
    rule: Any, g: Any, u: Array, old: Sequence[Array], new: Sequence[Array]
) -> ValueError:
    """Return the error of a rule whose update or slots have other shapes than before it."""
    if len(new) != len(old):
        return ValueError(
            f"{name_of(rule)}: rule returned {len(new)} new slots, the state has {len(old)}. "
            "It must return the update and then every slot, in the state's order."
        )
    if jnp.shape(u) != jnp.shape(g):
        return ValueError(
            f"{name_of(rule)}: rule made an update of shape {jnp.shape(u)} from a gradient of "
            f"shape {jnp.shape(g)}."
        )
    shapes = [(jnp.shape(n), jnp.shape(o)) for n, o in zip(new, old, strict=True)]
    index, (n, o) = next((i, pair) for i, pair in enumerate(shapes) if pair[0] != pair[1])
    return ValueError(f"{name_of(rule)}: rule made slot {index} of shape {n}, the state has {o}.")

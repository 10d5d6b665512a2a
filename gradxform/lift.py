"""From a rule for one array to an update of a tree: the only tree map that rules ever meet.

A run of neighbouring rules is lifted together: per leaf, one call of a jitted function whose static
argument is the tuple of rules itself, so that it is traced once per distinct leaf signature and not
once per leaf, in a trace as well as eagerly. Leaves go through in chunks, which divides the cost of
a call by the chunk. Inside a trace a chunk without fellows needs no call: it is traced in place. Of
rules of a few operations a trace keeps no calls at all, which XLA would have to inline one by one.

The policies that hold for every rule live here: computing in float32 or wider and casting back,
holes, checks with the path of the leaf, and the live numbers that a rule holds.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import rows, shards, trees
from gradxform._compat import equations, is_tracer
from gradxform.chunks import chunked, devices, signature
from gradxform.errors import name_of, shown
from gradxform.numerics import abs_sq, at_least_float32, cast, promote, real_dtype
from gradxform.rowsparse import RowSparse
from gradxform.types import Array, PyTree
from gradxform.values import put_live, take_live


class PerLeaf(NamedTuple):
    """A step's scalars that differ from leaf to leaf, in the order of the leaves of the updates."""

    values: list[Any]


class Part(NamedTuple):
    """One rule of a run with what it has for this step."""

    rule: Any
    slots: tuple[trees.Aligned, ...]
    shared: tuple[Any, ...]
    active: list[bool] | None  # for each leaf whether the rule acts on it; None: on all


def map_leaves(
    parts: Sequence[Part], updates: PyTree, params: PyTree | None
) -> tuple[PyTree, list[list[list[Any]]]]:
    """Run the rules of `parts`, in order, over every leaf.

    Args:
      parts: the rules with their slots and scalars.
      updates: the gradients, or what earlier parts made of them.
      params: the parameters, or None if the caller has none.

    Returns:
      The new updates, and for every part and every slot the list of new leaves.
    """
    gs, treedef = trees.flatten(updates)
    first = parts[0].rule
    ps: list[Any] = [None] * len(gs)
    if params is not None:
        ps = trees.align(first, updates, treedef, params, "the parameters have").leaves()
    taken: list[Any] = []
    rules = tuple(take_live(part.rule, taken) for part in parts)
    held = tuple(taken)
    slots = [[slot.leaves() for slot in part.slots] for part in parts]
    shared, local = _split_shared(parts)
    masks = [part.active for part in parts]

    every = tuple(range(len(parts)))
    acting = [every] * len(gs)
    if any(mask is not None for mask in masks):
        acting = [
            tuple(k for k, mask in enumerate(masks) if mask is None or mask[i])
            for i in range(len(gs))
        ]
    out: list[Any] = list(gs)
    new = [[list(leaves) for leaves in part] for part in slots]
    whole = {i: g for i, g in enumerate(gs) if isinstance(g, RowSparse)}
    for i, g in whole.items():
        on = acting[i]
        rows.check_shape(first, updates, i, ps[i])
        for k in on:
            for leaves in slots[k]:
                rows.check_slot(parts[k].rule, g, leaves[i], trees.path_at(updates, i))
                leaves[i] = leaves[i] if g.raw else rows.take(g, leaves[i])
        ps[i] = None if ps[i] is None else rows.take(g, ps[i])
        if g.raw:
            done = _raw(
                tuple(rules[k] for k in on),
                held,
                g,
                ps[i],
                [[leaf[i] for leaf in new[k]] for k in on],
                [tuple(x[i] for x in local[k]) for k in on],
                [shared[k] for k in on],
            )
            _keep(out, new, i, on, done)
            acting[i] = ()
        gs[i] = g.values
    flat_slots = [leaves for part in slots for leaves in part]
    keys = [
        (on, *map(signature, leaf)) for on, *leaf in zip(acting, gs, ps, *flat_slots, strict=True)
    ]
    checked = set()
    brief: dict[Any, bool] = {}  # by the rules that act: whether a trace keeps no calls of them
    places = [(on, devices(g)) for on, g in zip(acting, gs, strict=True)]
    for chunk, alike in chunked(keys, places):
        for i in chunk:
            if keys[i] not in checked:
                checked.add(keys[i])
                _check(parts, updates, i, gs[i], ps[i])
        on = acting[chunk[0]]
        if not on:
            continue
        leaves = [
            (
                gs[i],
                ps[i],
                tuple(tuple(leaf[i] for leaf in slots[k]) for k in on),
                tuple(tuple(x[i] for x in local[k]) for k in on),
            )
            for i in chunk
        ]
        active = tuple(rules[k] for k in on)
        scalars = tuple(shared[k] for k in on)
        often = collections.Counter(keys[i] for i in chunk)
        # Traced once for all that are equal; what occurs once in a chunk is traced in place.
        ones = tuple(_one if often[keys[i]] > 1 else _apply for i in chunk)
        tracing = is_tracer(leaves[0][0])
        run = _many if alike or not tracing else _run
        if alike and tracing:
            if on not in brief:
                brief[on] = _is_brief(_many, len(chunk), ones, active, held, leaves, scalars)
            if brief[on]:
                run = _many_inlined
                ones = tuple(_one_inlined if one is _one else one for one in ones)
        done = run(ones, active, held, leaves, scalars)
        for i, (u, fresh) in zip(chunk, done, strict=True):
            if i in whole:
                u, fresh = _put_rows(whole[i], u, fresh, [[x[i] for x in new[k]] for k in on])
            _keep(out, new, i, on, (u, fresh))
    return jax.tree.unflatten(treedef, out), new


def _keep(out: list[Any], new: list[list[list[Any]]], i: int, on: Sequence[int], done: Any) -> None:
    """Note what the rules `on` made of leaf `i`."""
    out[i], fresh = done
    for k, leaf_slots in zip(on, fresh, strict=True):
        for j, leaf in enumerate(leaf_slots):
            new[k][j][i] = leaf


def _put_rows(g: RowSparse, u: Any, fresh: Any, slots: list[list[Any]]) -> tuple[Any, Any]:
    """Return the update as a RowSparse, and the slots with the rows that the rules made."""
    back = [
        tuple(rows.put(g, whole, new) for whole, new in zip(arrays, made, strict=True))
        for arrays, made in zip(slots, fresh, strict=True)
    ]
    return g.with_values(u), back


def _raw(rules, held, g, p, slots, local, shared):
    """Run rules on slices of which several may be of one row, each slice by itself."""
    g = g.with_values(g.values)  # whole arrays are looked at here: padding must be zero
    done = []
    for rule, old, mine, common in zip(rules, slots, local, shared, strict=True):
        by_slice = type(rule).slice_rule is not None
        seen = tuple(old if by_slice else (rows.take(g, s) for s in old))
        u, (new,) = _apply(
            (rule,), held, g if by_slice else g.values, p, (seen,), (mine,), (common,)
        )
        if not by_slice:
            new = tuple(rows.put(g, s, n) for s, n in zip(old, new, strict=True))
        g = g.with_values(u)
        done.append(new)
    return g, done


def _split_shared(parts: Sequence[Part]) -> tuple[list[tuple[Any, ...]], list[list[list[Any]]]]:
    """Separate each part's scalars into those for all leaves and those per leaf.

    A place that is per leaf holds None among the former.
    """
    shared = [tuple(None if isinstance(x, PerLeaf) else x for x in p.shared) for p in parts]
    local = [[x.values for x in p.shared if isinstance(x, PerLeaf)] for p in parts]
    return shared, local


def _check(parts: Sequence[Part], updates: PyTree, i: int, g: Any, p: Any) -> None:
    first = parts[0].rule
    dtype = trees.dtype_of(g)
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(
            f"{name_of(first)}: gradient of {trees.path_at(updates, i)} has dtype {dtype}; only "
            "floating gradients can be transformed. Leave it out with masked(...) or "
            "partition(...)."
        )
    if jnp.issubdtype(dtype, jnp.complexfloating):
        for part in parts:
            if not part.rule.handles_complex:
                raise TypeError(
                    f"{name_of(part.rule)}: gradient of {trees.path_at(updates, i)} has dtype "
                    f"{dtype}, for which this rule is not defined. Optimize its real and "
                    "imaginary parts as two parameters."
                )
    if p is not None and jnp.shape(g) != jnp.shape(p):
        raise ValueError(
            f"{name_of(first)}: gradient of {trees.path_at(updates, i)} has shape "
            f"{jnp.shape(g)}, the parameter has {jnp.shape(p)}."
        )


# ---------------------------------------------------------------------------- the compiled calls


def _apply(rules, held, g, p, slots, local, shared):
    dtype = at_least_float32(promote(*(trees.dtype_of(x) for x in (g, p) if x is not None)))
    real = real_dtype(dtype)

    def up(x):
        """Widen an array that the rule computes with; leave counters and keys alone."""
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return cast(x, dtype if jnp.issubdtype(x.dtype, jnp.complexfloating) else real)

    slices = g if isinstance(g, RowSparse) else None
    u = cast(jnp.asarray(g) if slices is None else slices.values, dtype)
    wide_p = None if p is None else cast(jnp.asarray(p), dtype)
    held = tuple(up(x) for x in held)
    out = []
    for rule, old, mine, common in zip(rules, slots, local, shared, strict=True):
        per_leaf = iter(mine)
        scalars = [up(jnp.asarray(next(per_leaf) if x is None else x)) for x in common]
        made = put_live(rule, held) if held else rule
        with _promoting(dtype):
            rule_now = made.rule if slices is None else made.slice_rule
            seen = u if slices is None else slices.with_values(u)
            result = rule_now(seen, *(up(s) for s in old), wide_p, *scalars)
        u, *new = result if isinstance(result, tuple) else (result,)
        if not hasattr(u, "dtype"):
            raise TypeError(
                f"{name_of(rule)}: rule must return the update and then its slots, got "
                f"{shown(result)}."
            )
        _check_result(rule, g if slices is None else g.values, u, old, new)
        out.append(tuple(cast(s, o.dtype) for s, o in zip(new, old, strict=True)))
        u = cast(u, dtype)
    return cast(u, trees.dtype_of(g)), tuple(out)


def _promoting(dtype):
    """Let real numbers meet complex ones, also where JAX is told to be strict."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.numpy_dtype_promotion("standard")
    return contextlib.nullcontext()


def _check_result(rule, g, u, old, new):
    if len(new) != len(old):
        raise ValueError(
            f"{name_of(rule)}: rule returned {len(new)} new slots, the state has {len(old)}. "
            "It must return the update and then every slot, in the state's order."
        )
    if jnp.shape(u) != jnp.shape(g):
        raise ValueError(
            f"{name_of(rule)}: rule made an update of shape {jnp.shape(u)} from a gradient of "
            f"shape {jnp.shape(g)}."
        )
    for index, (n, o) in enumerate(zip(new, old, strict=True)):
        if jnp.shape(n) != jnp.shape(o):
            raise ValueError(
                f"{name_of(rule)}: rule made slot {index} of shape {jnp.shape(n)}, the state has "
                f"{jnp.shape(o)}."
            )


_one = jax.jit(_apply, static_argnums=0)
_one_inlined = jax.jit(_apply, static_argnums=0, inline=True)


def _run(ones, rules, held, leaves, shared):
    return [one(rules, held, *leaf, shared) for one, leaf in zip(ones, leaves, strict=True)]


_many = jax.jit(_run, static_argnums=(0, 1))
_many_inlined = jax.jit(_run, static_argnums=(0, 1), inline=True)

# Up to so many operations a leaf it takes XLA longer to inline calls than JAX to lower their bodies
# time and again. (Of momentum SGD there are three, and of Adam thirteen.)
_BRIEF = 6


def _is_brief(call: Any, leaves: int, *args: Any) -> bool:
    """Whether `call`, a compiled function of so many leaves, should leave no call in a trace."""
    return equations(call.trace(*args).jaxpr) <= _BRIEF * leaves


# ------------------------------------------------------------------------------ whole-tree helpers


# `lax` rather than `jnp` below: these run once per leaf, and an operator of `jnp` takes several
# times as long to trace.


def _sum_sq(x: Array) -> Array:
    if isinstance(x, RowSparse):
        return x.sum_of_squares()
    if not jnp.issubdtype(trees.dtype_of(x), jnp.number):
        raise TypeError(f"global_norm: a tree of numbers is wanted, got {shown(x)}.")
    x = cast(jnp.asarray(x), at_least_float32(trees.dtype_of(x)))
    if jnp.iscomplexobj(x):
        return jnp.sum(abs_sq(x))
    return lax.reduce_sum(lax.mul(x, x), tuple(range(x.ndim)))


def _sum_sqs(xs: list[Any]) -> Array:
    return functools.reduce(_add, [_sum_sq(x) for x in xs])


def _traced(x: Any) -> bool:
    return is_tracer(x.values if isinstance(x, RowSparse) else x)


_many_sum_sqs = jax.jit(_sum_sqs)


def _add(a: Array, b: Array) -> Array:
    if a.dtype != b.dtype:
        dtype = promote(a.dtype, b.dtype)
        a, b = cast(a, dtype), cast(b, dtype)
    return lax.add(a, b)


def sum_of_squares(tree: PyTree) -> Array:
    """Return the sum of |x|^2 over every entry of every leaf, in float32 or wider."""
    sums = []
    for axes, leaves in shards.groups(tree):
        mine = []
        for chunk, alike in chunked([signature(x) for x in leaves], [devices(x) for x in leaves]):
            xs = [leaves[i] for i in chunk]
            mine.append((_many_sum_sqs if alike or not _traced(xs[0]) else _sum_sqs)(xs))
        sums += [shards.summed(functools.reduce(_add, mine), axes)] if mine else []
    return functools.reduce(_add, sums) if sums else jnp.zeros((), jnp.float32)


def global_norm(updates: PyTree) -> Array:
    """Return the Euclidean norm of a whole tree, sqrt(sum of |x|^2 over all leaves).

    The squares are formed and summed in float32 or wider, so that neither bfloat16 nor float16
    leaves saturate: 600 bfloat16 leaves of norm 1 have a norm of 24.49. An empty tree has norm 0.
    """
    return jnp.sqrt(sum_of_squares(updates))


def map_rows(one: Callable[..., Any], columns: Sequence[list[Any]], *scalars: Any) -> list[Any]:
    """Return `one(*row, *scalars)` for every row of several lists of leaves.

    Args:
      one: a function of a few operations on arrays, defined at module level (it is the key of a
        compiled call); it may return a tuple.
      columns: lists of leaves of equal length.
      *scalars: what every call gets.
    """
    keys = [tuple(map(signature, row)) for row in zip(*columns, strict=True)]
    out: list[Any] = [None] * len(keys)
    brief = None  # whether a trace keeps no calls, once that is known
    for chunk, alike in chunked(keys, [devices(x) for x in columns[0]] if columns else None):
        group = [tuple(column[i] for column in columns) for i in chunk]
        call = _rows_called
        if _traced(group[0][0]):
            if alike and brief is None:
                brief = _is_brief(_rows_called, len(chunk), one, group, scalars)
            call = (_rows_inlined if brief else _rows_called) if alike else _rows
        done = call(one, group, scalars)
        for i, x in zip(chunk, done, strict=True):
            out[i] = x
    return out


def _rows(one, group, scalars):
    return [one(*row, *scalars) for row in group]


_rows_called = jax.jit(_rows, static_argnums=0)
_rows_inlined = jax.jit(_rows, static_argnums=0, inline=True)

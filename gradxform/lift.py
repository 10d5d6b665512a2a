"""From a rule for one array to an update of a tree: the only tree map that rules ever meet.

A run of neighbouring rules is lifted together: per leaf, one call of a jitted function whose static
argument is the tuple of rules itself, so that it is traced once per distinct leaf signature and not
once per leaf, in a trace as well as eagerly. Leaves go through in chunks, which divides the cost of
a call by the chunk. Inside a trace a chunk without fellows needs no call: it is traced in place.

The policies that hold for every rule live here: computing in float32 or wider and casting back,
holes, checks with the path of the leaf, and the live numbers that a rule holds.
"""

import collections
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import trees
from gradxform._compat import is_tracer
from gradxform.errors import name_of, shown
from gradxform.numerics import abs_sq, at_least_float32, cast, promote, real_dtype
from gradxform.types import Array, PyTree
from gradxform.values import put_live, take_live

# Leaves that go through one call. Larger chunks make fewer but dearer calls.
CHUNK = 8


class PerLeaf(NamedTuple):
    """A step's scalars that differ from leaf to leaf, in the order of the leaves of the updates."""

    values: list[Any]


class Part(NamedTuple):
    """One rule of a run with what it has for this step."""

    rule: Any
    slots: tuple[trees.Aligned, ...]
    shared: tuple[Any, ...]
    active: list[bool] | None  # for each leaf whether the rule acts on it; None: on all


class Chunk(NamedTuple):
    """Leaves that go through one call."""

    indices: list[int]
    alike: bool  # whether another chunk has leaves of the same signatures


def chunked(keys: Sequence[Any], places: Sequence[Any] | None = None) -> Iterator[Chunk]:
    """Divide leaves into chunks of which as many as possible are alike.

    A tree is mostly equal layers. If every signature occurs a multiple of n times, a chunk is an
    n-th of all leaves, what one layer has, so that one compiled call does for all layers, however
    many signatures a layer has. Leaves that are alone of their kind have chunks of their own.

    Args:
      keys: the signature of every leaf.
      places: what only leaves of one chunk must share, such as their devices; by default nothing.
    """
    groups: dict[Any, dict[Any, list[int]]] = {}
    for i, key in enumerate(keys):
        place = None if places is None else places[i]
        groups.setdefault(place, {}).setdefault(key, []).append(i)
    for group in groups.values():
        alone = [i for same in group.values() if len(same) == 1 for i in same]
        for start in range(0, len(alone), CHUNK):
            yield Chunk(alone[start : start + CHUNK], alike=False)
        yield from _layers([same for same in group.values() if len(same) > 1])


def _layers(groups: list[list[int]]) -> Iterator[Chunk]:
    """Chunks of the leaves of several signatures; each group holds one signature's."""
    layers = math.gcd(*map(len, groups)) if groups else 0
    if sum(len(group) // layers for group in groups if layers) > 2 * CHUNK or layers == 1:
        # No layer of a handy size: one signature after the other.
        for group in groups:
            yield from _equal_parts([[i] for i in group])
    elif layers:
        every = range(layers)
        yield from _equal_parts([[i for g in groups for i in _part(g, k, layers)] for k in every])


def _part(group: list[int], k: int, layers: int) -> list[int]:
    """Return the `k`-th of so many equal parts."""
    n = len(group) // layers
    return group[k * n : k * n + n]


def _equal_parts(layers: list[list[int]]) -> Iterator[Chunk]:
    """Join equal layers to chunks of about CHUNK leaves, in powers of two."""
    done = 0
    while done < len(layers):
        n = 1
        while 2 * n * len(layers[0]) <= CHUNK and done + 2 * n <= len(layers):
            n *= 2
        yield Chunk([i for layer in layers[done : done + n] for i in layer], len(layers) >= 2 * n)
        done += n


def signature(x: Any) -> Any:
    """What must be equal for two leaves to share a compiled call: shape, dtype and placement."""
    if not isinstance(x, jax.Array):
        return getattr(x, "shape", ()), trees.dtype_of(x)
    if is_tracer(x):
        return x.shape, x.dtype
    return x.shape, x.dtype, x.sharding


def _devices(x: Any) -> Any:
    """Where a leaf is; leaves in different places cannot be arguments of one call."""
    if not isinstance(x, jax.Array) or is_tracer(x):
        return None
    return frozenset(x.sharding.device_set)


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
    gs, treedef = jax.tree.flatten(updates)
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
    flat_slots = [leaves for part in slots for leaves in part]
    keys = [
        (on, *map(signature, leaf)) for on, *leaf in zip(acting, gs, ps, *flat_slots, strict=True)
    ]
    out: list[Any] = list(gs)
    new = [[list(leaves) for leaves in part] for part in slots]
    checked = set()
    places = [(on, _devices(g)) for on, g in zip(acting, gs, strict=True)]
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
        run = _many if alike or not is_tracer(leaves[0][0]) else _run
        done = run(ones, active, held, leaves, scalars)
        for i, (u, fresh) in zip(chunk, done, strict=True):
            out[i] = u
            for k, leaf_slots in zip(on, fresh, strict=True):
                for j, leaf in enumerate(leaf_slots):
                    new[k][j][i] = leaf
    return jax.tree.unflatten(treedef, out), new


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

    u = cast(jnp.asarray(g), dtype)
    wide_p = None if p is None else cast(jnp.asarray(p), dtype)
    held = tuple(up(x) for x in held)
    out = []
    for rule, old, mine, common in zip(rules, slots, local, shared, strict=True):
        per_leaf = iter(mine)
        scalars = [up(jnp.asarray(next(per_leaf) if x is None else x)) for x in common]
        made = put_live(rule, held) if held else rule
        with _promoting(dtype):
            result = made.rule(u, *(up(s) for s in old), wide_p, *scalars)
        u, *new = result if isinstance(result, tuple) else (result,)
        if not hasattr(u, "dtype"):
            raise TypeError(
                f"{name_of(rule)}: rule must return the update and then its slots, got "
                f"{shown(result)}."
            )
        _check_result(rule, g, u, old, new)
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


def _run(ones, rules, held, leaves, shared):
    return [one(rules, held, *leaf, shared) for one, leaf in zip(ones, leaves, strict=True)]


_many = jax.jit(_run, static_argnums=(0, 1))


# ------------------------------------------------------------------------------ whole-tree helpers


# `lax` rather than `jnp` below: these run once per leaf, and an operator of `jnp` takes several
# times as long to trace.


def _sum_sq(x: Array) -> Array:
    if not jnp.issubdtype(trees.dtype_of(x), jnp.number):
        raise TypeError(f"global_norm: a tree of numbers is wanted, got {shown(x)}.")
    x = cast(jnp.asarray(x), at_least_float32(trees.dtype_of(x)))
    if jnp.iscomplexobj(x):
        return jnp.sum(abs_sq(x))
    return lax.reduce_sum(lax.mul(x, x), tuple(range(x.ndim)))


def _sum_sqs(xs: list[Any]) -> Array:
    return functools.reduce(_add, [_sum_sq(x) for x in xs])


_many_sum_sqs = jax.jit(_sum_sqs)


def _add(a: Array, b: Array) -> Array:
    if a.dtype != b.dtype:
        dtype = promote(a.dtype, b.dtype)
        a, b = cast(a, dtype), cast(b, dtype)
    return lax.add(a, b)


def sum_of_squares(tree: PyTree) -> Array:
    """Return the sum of |x|^2 over every entry of every leaf, in float32 or wider."""
    leaves = jax.tree.leaves(tree)
    sums = []
    for chunk, alike in chunked([signature(x) for x in leaves], [_devices(x) for x in leaves]):
        xs = [leaves[i] for i in chunk]
        sums.append((_many_sum_sqs if alike or not is_tracer(xs[0]) else _sum_sqs)(xs))
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
    for chunk, alike in chunked(keys, [_devices(x) for x in columns[0]] if columns else None):
        rows = [tuple(column[i] for column in columns) for i in chunk]
        if alike or not is_tracer(rows[0][0]):
            done = _rows(one, rows, scalars)
        else:
            done = [one(*row, *scalars) for row in rows]
        for i, x in zip(chunk, done, strict=True):
            out[i] = x
    return out


@functools.partial(jax.jit, static_argnums=0)
def _rows(one, rows, scalars):
    return [one(*row, *scalars) for row in rows]

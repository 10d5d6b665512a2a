"""Leaves whose state is stored in another form or in another memory, tile by tile.

A block takes the maximum of its entries. Over whole leaves, XLA keeps the float32 moments of all of
them at once for it, and fetches all that a host keeps before it computes. A loop over tiles with
slices in place keeps those of one tile.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType

from gradxform._jax.versions import platform_of, settled_carry, zeros_of
from gradxform.engine.rounds import array_sums, cut_here
from gradxform.engine.rows import reach_of
from gradxform.engine.slices import slice_of_axis, with_slice_of_axis
from gradxform.leaves import dtype_of
from gradxform.leaves.storage import (
    Mean,
    NarrowParam,
    StackedLayer,
    StoredArray,
    fetched,
    is_away,
    is_stored,
    returned,
    rows_of,
)
from gradxform.numerics import at_least_float32, cast, sum_as_first
from gradxform.types import Array

# The entries of a tile: few enough for the caches of a CPU core. Other processors take longer to
# begin a turn of the loop.
ON_CPU, ELSEWHERE = 1 << 16, 1 << 18
SMALL = 1 << 12  # leaves with fewer entries are computed whole

Slots = tuple[tuple[Any, ...], ...]
Apply = Callable[[Any, Any, Slots], tuple[Any, Slots]]
Remade = Callable[[Any, Any], Any]


class Tiling(NamedTuple):
    """How arrays of one shape are cut along their first axis.

    A tile takes the same number of rows from each of `ways` equal parts. Where every device has a
    part, or several, it cuts a tile out of its own rows.
    """

    rows: int  # of a tile
    tiles: int  # of so many rows; what remains is one more
    ways: int


def apply_stored(
    apply: Apply,
    rules: Sequence[Any],
    scalars: Sequence[Any],
    g: Any,
    p: Any,
    slots: Slots,
    is_last: bool,
    remade: Remade | None = None,
) -> tuple[Any, Slots]:
    """Apply rules to a leaf that has slots stored in another form or memory.

    Args:
      apply: returns the update and the new slots of a gradient, a parameter and slots, all arrays.
      rules: the rules.
      scalars: what else they get.
      g: the gradient.
      p: the parameter, or None.
      slots: for each rule its slots, as the state keeps them.
      is_last: whether nothing comes after the rules: then the first result is the new parameter,
        which takes the place of the old one tile by tile, as an update that of its gradient.
      remade: makes the gradient anew, of the parameter and the number of the tile, if `is_last`:
        only the tile of it is used.
    """
    stored = [x for group in slots for x in group] + [p] * is_stored(p)
    layers = [x for x in stored if isinstance(x, StackedLayer)]
    if layers and not layers[0].is_bare and _goes_by_entries_of(rules, g):
        p, slots = _map_layers(StackedLayer.bare, (p, slots))
        u, new = apply_stored(_of_layers(apply), rules, scalars, g[0], p, slots, is_last)
        u, new = _map_layers(StackedLayer.layered, (u, new))
        return (u if is_stored(u) else u[None]), new
    if is_last:
        apply = _adding(apply)
    tiling = _tiling(rules, scalars, jnp.asarray(g), stored)
    if tiling is None:
        return _apply_to_loaded_tile(apply, g, p, slots, None)
    g, p = jnp.asarray(g), p if p is None or is_stored(p) else jnp.asarray(p)
    whole = g.shape[0]
    rows, tiles, ways = tiling

    def turn(i: Any, now: Any, count: int, alone: Any) -> Any:
        cut = lambda x: _rows(x, i, rows, count, ways)  # noqa: E731
        result, old = now
        tiles_of_slots = tuple(tuple(map(cut, group)) for group in old)
        u = g if remade is None else remade(result, i)
        tiles = (cut(u), cut(result)) if is_last else (cut(result), None if p is None else cut(p))
        new = _apply_to_loaded_tile(apply, *tiles, tiles_of_slots, alone)
        put = lambda x, tile: _with_tile(x, tile, i, rows, ways)  # noqa: E731
        return put(result, new[0]), tuple(
            tuple(map(put, *both)) for both in zip(old, new[1], strict=True)
        )

    opened = _map_tiled_slots(lambda x: x.opened(ways), slots)
    first, other = (p, g) if is_last else (g, p)
    now = settled_carry(lambda now: turn(0, now, rows, None), (first, opened), other)
    # `i >= 0` always holds, which XLA does not see; `_in_condition` needs such a condition.
    now = lax.fori_loop(0, tiles, lambda i, now: turn(i, now, rows, i >= 0), now)
    rest = whole - tiles * rows
    result, new = turn(tiles, now, rest, None) if rest else now
    return result, _map_tiled_slots(lambda x: x.closed(), new)


def goes_by_tiles(g: Any, slots: Sequence[Any]) -> bool:
    """Whether a leaf with these slots goes through tiles wherever its rule allows it."""
    return any(map(is_stored, slots)) and platform_of(jnp.asarray(g)) != "cpu"


def _adding(apply: Apply) -> Apply:
    """Return a function that returns the parameter after the update in place of it."""

    def added(g: Any, p: Any, slots: Slots) -> tuple[Any, Slots]:
        if isinstance(p, NarrowParam):
            u, new = apply(cast(g, at_least_float32(dtype_of(g))), p.load(), slots)
            return p.moved(u), new
        if isinstance(p, StackedLayer):
            sum_, new = added(g, p.load(), slots)
            return p.store(sum_), new
        u, new = apply(g, p, slots)
        return sum_as_first(p, u), new

    return added


def _goes_by_entries_of(rules: Sequence[Any], g: Array) -> bool:
    """Whether rules may take a layer, an array (1, ...), row by row of its second axis."""
    return g.ndim > 2 and all(reach_of(rule) == "entry" for rule in rules)


def _map_layers(f: Callable[[StackedLayer], Any], tree: Any) -> Any:
    """Return a tree with `f` of those of its leaves that are layers."""
    return jax.tree.map(
        lambda x: f(x) if isinstance(x, StackedLayer) else x, tree, is_leaf=is_stored
    )


def _of_layers(apply: Apply) -> Apply:
    """Return a function of arrays without the first axis of length 1 with which rules see them."""

    def bare(g: Any, p: Any, slots: Slots) -> tuple[Any, Slots]:
        g, p, slots = jax.tree.map(lambda x: x[None], (g, p, slots))
        return jax.tree.map(lambda x: x[0], apply(g, p, slots))

    return bare


def _map_tiled_slots(f: Callable[[StoredArray], Any], slots: Slots) -> Slots:
    """Return the slots with `f` of those that are stored in another form."""
    return tuple(tuple(f(x) if is_stored(x) else x for x in group) for group in slots)


def _tiling(
    rules: Sequence[Any], scalars: Sequence[Any], g: Array, slots: Sequence[Any]
) -> Tiling | None:
    """Return how a leaf is cut; None where it is small, or something looks at all of it."""
    alike = all(jnp.shape(x) == g.shape for x in slots)
    if not g.ndim or not g.size or not alike or any(map(jnp.ndim, scalars)):
        return None
    if any(reach_of(rule) not in ("entry", "row") for rule in rules):
        return None
    if cut_here().cuts and any(is_stored(x) and x.needs_means for x in slots):
        return None  # a loop cannot wait for the other devices
    mesh = jax.typeof(g).sharding.mesh
    if AxisType.Explicit in mesh.axis_types:
        return None
    auto = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    devices = math.prod(size for size, kind in auto if kind == AxisType.Auto)
    step = math.lcm(*(n for x in slots if is_stored(x) for _, n in x.by_rows()))
    whole = g.shape[0]
    ways = math.gcd(whole // step, devices) if whole % step == 0 else 1
    entries = (ON_CPU if platform_of(g) == "cpu" else ELSEWHERE) * ways
    unit = step * ways
    fit = entries // (g.size // whole) // unit  # units of a tile
    units = whole // unit
    if units < 2 or g.size < SMALL:
        return None
    fit = min(fit, units // 2)  # at least two: a loop of one turn would not be one
    # A number of rows that divides them all does not need code for the rest.
    even = [n for n in range(max(fit // 2, 1), max(fit, 1) + 1) if whole % (n * unit) == 0]
    n = even[-1] if even else max(fit, 1)
    if not even and ways > 1:
        return None
    tiles, rest = divmod(whole, n * unit)
    # Less than a block by itself would be a block of another length: it goes with the tile before.
    return Tiling(n * unit, tiles - (0 < rest < step), ways)


def _rows(x: Any, i: Any, rows: int, count: int, ways: int) -> Any:
    """Return `count` rows, from the tile `i` on."""
    if isinstance(x, StoredArray):
        first = x.first_row
        arrays = [_slice(a, i, rows // n, -(-count // n), ways, first) for a, n in x.by_rows()]
        return x.with_rows(arrays, (count, *x.shape[1:]))
    return _slice(x, i, rows, count, ways)


def _slice(x: Array, i: Any, rows: int, count: int, ways: int, first: Any = 0) -> Array:
    start = first + i * (rows // ways)  # compilers see what divides it, and which tiles it begins
    if ways == 1:
        return slice_of_axis(x, start, count, 0)
    parts = x.reshape(ways, -1, *x.shape[1:])
    return slice_of_axis(parts, start, count // ways, 1).reshape(count, *x.shape[1:])


def _with_tile(x: Any, tile: Any, i: Any, rows: int, ways: int) -> Any:
    """Return `x` with the tile `i` in its place."""
    if isinstance(x, StoredArray):
        pairs, first = zip(x.by_rows(), rows_of(tile), strict=True), x.first_row
        arrays = [_update_slice(a, new, i, rows // n, ways, first) for (a, n), (new, _) in pairs]
        is_layer = isinstance(x, StackedLayer)
        return x.with_all_rows(arrays, tile) if is_layer else tile.with_rows(arrays, x.shape)
    return _update_slice(x, tile, i, rows, ways)


def _update_slice(x: Array, new: Array, i: Any, rows: int, ways: int, first: Any = 0) -> Array:
    start = first + i * (rows // ways)
    if ways == 1:
        return with_slice_of_axis(x, new, start, 0)
    parts, tile = (a.reshape(ways, -1, *x.shape[1:]) for a in (x, new))
    return with_slice_of_axis(parts, tile, start, 1).reshape(x.shape)


def _apply_to_loaded_tile(
    apply: Apply, g: Any, p: Any, slots: Slots, alone: Any
) -> tuple[Any, Slots]:
    """Apply rules to what is loaded, and store what they return."""

    def run(g: Any, p: Any, slots: Slots) -> tuple[Any, Slots]:
        return apply(g, p, tuple(tuple(map(_load_slot, group)) for group in slots))

    here = fetched(slots)
    arguments = g, p, here
    if alone is None:
        u, new = run(*arguments)
    elif platform_of(g) == "cpu" or is_away(slots):
        u, new = _in_condition(run, alone, arguments)
    else:
        u, new = lax.optimization_barrier(run(*lax.optimization_barrier(arguments)))
    pairs = zip(here, new, strict=True)
    stored = tuple(tuple(map(_store_slot, old, fresh)) for old, fresh in pairs)
    return u, returned(stored, slots)


def _in_condition(run: Apply, is_true: Any, arguments: Any) -> tuple[Any, Slots]:
    """Return `run(*arguments)` of a condition that always holds, where the rule stands by itself.

    XLA would compute it once for each maximum, each code and each update, and on CPUs copy the
    state because all of them read it. TPUs keep what a condition returns in memory: there, barriers
    do the same, and bring a tile to the chip once. They hold more of what is fetched from the host.
    """
    shapes = jax.eval_shape(run, *arguments)

    def nothing(*arguments: Any) -> Any:
        return jax.tree.map(zeros_of, shapes)

    return lax.cond(is_true, run, nothing, *arguments)


def _load_slot(x: Any) -> Any:
    if not isinstance(x, StoredArray):
        return x
    mean = _mean_over_pieces(x)
    return x.load() if mean is None else x.load_with(mean)


def _store_slot(old: Any, new: Any) -> Any:
    if not isinstance(old, StoredArray):
        return new
    mean = _mean_over_pieces(old)
    return old.store(new) if mean is None else old.store_with(new, mean)


def _mean_over_pieces(x: StoredArray) -> Mean | None:
    """Return the function for means over all pieces of an array; None where it is whole."""
    cut = cut_here()
    if not (cut.cuts and x.needs_means):
        return None
    whole = cut.whole(x.shape)
    return lambda x, axis: array_sums((x / whole[axis], axis), keepdims=True)

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
from gradxform.leaves.storage import Mean, StoredArray, fetched, is_stored, returned
from gradxform.types import Array

# The entries of a tile: few enough for the caches of a CPU core. Other processors take longer to
# begin a turn of the loop.
ON_CPU, ELSEWHERE = 1 << 16, 1 << 18
SMALL = 1 << 12  # leaves with fewer entries are computed whole

Slots = tuple[tuple[Any, ...], ...]
Apply = Callable[[Any, Any, Slots], tuple[Any, Slots]]


class Tiling(NamedTuple):
    """How arrays of one shape are cut along their first axis.

    A tile takes the same number of rows from each of `ways` equal parts. Where every device has a
    part, or several, it cuts a tile out of its own rows.
    """

    rows: int  # of a tile
    tiles: int  # of so many rows; what remains is one more
    ways: int


def apply_stored(
    apply: Apply, rules: Sequence[Any], scalars: Sequence[Any], g: Any, p: Any, slots: Slots
) -> tuple[Any, Slots]:
    """Apply rules to a leaf that has slots stored in another form or memory.

    Args:
      apply: returns the update and the new slots of a gradient, a parameter and slots, all arrays.
      rules: the rules.
      scalars: what else they get.
      g: the gradient.
      p: the parameter, or None.
      slots: for each rule its slots, as the state keeps them.
    """
    stored = [x for group in slots for x in group]
    tiling = _tiling(rules, scalars, jnp.asarray(g), stored)
    if tiling is None:
        return _apply_to_loaded_tile(apply, g, p, slots, None)
    g = jnp.asarray(g)
    whole = g.shape[0]
    rows, tiles, ways = tiling

    def turn(i: Any, now: Any, count: int, alone: Any) -> Any:
        cut = lambda x: _tile_rows(x, i, rows, count, ways)  # noqa: E731
        u, old = now
        tiles_of_slots = tuple(tuple(map(cut, group)) for group in old)
        tile_of_p = None if p is None else cut(jnp.asarray(p))
        new = _apply_to_loaded_tile(apply, cut(u), tile_of_p, tiles_of_slots, alone)
        put = lambda x, tile: _with_tile(x, tile, i, rows, ways)  # noqa: E731
        return put(u, new[0]), tuple(
            tuple(map(put, *both)) for both in zip(old, new[1], strict=True)
        )

    opened = _map_tiled_slots(lambda x: x.opened(ways), slots)
    now = settled_carry(lambda now: turn(0, now, rows, None), (g, opened), p)
    # `i >= 0` always holds, which XLA does not see; `_tile_computed_once` needs such a condition.
    now = lax.fori_loop(0, tiles, lambda i, now: turn(i, now, rows, i >= 0), now)
    rest = whole - tiles * rows
    u, new = turn(tiles, now, rest, None) if rest else now
    return u, _map_tiled_slots(lambda x: x.closed(), new)


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


def _tile_rows(x: Any, i: Any, rows: int, count: int, ways: int) -> Any:
    """Return `count` rows, from the tile `i` on."""
    if isinstance(x, StoredArray):
        arrays = [_slice_of_tile(a, i * (rows // n), -(-count // n), ways) for a, n in x.by_rows()]
        return x.with_rows(arrays, (count, *x.shape[1:]))
    return _slice_of_tile(x, i * rows, count, ways)


def _slice_of_tile(x: Array, start: Any, count: int, ways: int) -> Array:
    if ways == 1:
        return slice_of_axis(x, start, count, 0)
    parts = x.reshape(ways, -1, *x.shape[1:])
    return slice_of_axis(parts, start // ways, count // ways, 1).reshape(count, *x.shape[1:])


def _with_tile(x: Any, tile: Any, i: Any, rows: int, ways: int) -> Any:
    """Return `x` with the tile `i` in its place."""
    if isinstance(x, StoredArray):
        pairs = zip(x.by_rows(), tile.by_rows(), strict=True)
        arrays = [
            _update_slice_of_tile(a, new, i * (rows // n), ways) for (a, n), (new, _) in pairs
        ]
        return tile.with_rows(arrays, x.shape)
    return _update_slice_of_tile(x, tile, i * rows, ways)


def _update_slice_of_tile(x: Array, new: Array, start: Any, ways: int) -> Array:
    if ways == 1:
        return with_slice_of_axis(x, new, start, 0)
    parts, tile = (a.reshape(ways, -1, *x.shape[1:]) for a in (x, new))
    return with_slice_of_axis(parts, tile, start // ways, 1).reshape(x.shape)


def _apply_to_loaded_tile(
    apply: Apply, g: Any, p: Any, slots: Slots, alone: Any
) -> tuple[Any, Slots]:
    """Apply rules to what is loaded, and store what they return."""

    def run(g: Any, p: Any, slots: Slots) -> tuple[Any, Slots]:
        return apply(g, p, tuple(tuple(map(_load_slot_of_tile, group)) for group in slots))

    here = fetched(slots)
    arguments = g, p, here
    u, new = run(*arguments) if alone is None else _tile_computed_once(run, alone, arguments)
    pairs = zip(here, new, strict=True)
    stored = tuple(tuple(map(_store_slot_of_tile, old, fresh)) for old, fresh in pairs)
    return u, returned(stored, slots)


def _tile_computed_once(run: Apply, is_true: Any, arguments: Any) -> tuple[Any, Slots]:
    """Return `run(*arguments)`, which XLA must not compute anew for every use.

    Within a conditional it stands by itself. Otherwise XLA for CPUs computes the rule once for each
    maximum, each code and each update, and copies the state because all of them read it.
    """
    shapes = jax.eval_shape(run, *arguments)

    def nothing(*arguments: Any) -> Any:
        return jax.tree.map(zeros_of, shapes)

    return lax.cond(is_true, run, nothing, *arguments)


def _load_slot_of_tile(x: Any) -> Any:
    if not isinstance(x, StoredArray):
        return x
    mean = _tile_mean_over_pieces(x)
    return x.load() if mean is None else x.load_with(mean)


def _store_slot_of_tile(old: Any, new: Any) -> Any:
    if not isinstance(old, StoredArray):
        return new
    mean = _tile_mean_over_pieces(old)
    return old.store(new) if mean is None else old.store_with(new, mean)


def _tile_mean_over_pieces(x: StoredArray) -> Mean | None:
    """Return the function for means over all pieces of an array; None where it is whole."""
    cut = cut_here()
    if not (cut.cuts and x.needs_means):
        return None
    whole = cut.whole(x.shape)
    return lambda x, axis: array_sums((x / whole[axis], axis), keepdims=True)

"""Leaves whose state is stored in blocks, each with its largest magnitude for a scale: whole.

The scale of a block is known when all of its new entries are. XLA keeps the float32 slots of all
leaves until then, unless they are computed twice: once for the scales, then for the codes and the
update. It does not see that both are the same where the first time the blocks are cut out.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from gradxform._jax.versions import platform_of
from gradxform.engine.rows import reach_of
from gradxform.leaves import shape_of
from gradxform.leaves.storage import is_away, is_stored
from gradxform.leaves.storage.folds import Folds

Slots = tuple[tuple[Any, ...], ...]
Apply = Callable[[Any, Any, Slots], tuple[Any, Slots]]


def apply_folded(
    apply: Apply, rules: Sequence[Any], scalars: Sequence[Any], g: Any, p: Any, slots: Slots
) -> tuple[Any, Slots] | None:
    """Apply rules that look at one entry to a leaf that has slots stored in blocks.

    The arguments are those of `apply_stored`. Returns None where there is more to it.
    """
    arrays = [x for group in slots for x in group]
    folds = _common_folds(arrays)
    g = jnp.asarray(g)
    # A TPU lays short axes out anew, in memory; it cuts tiles faster than it does that.
    if platform_of(g) == "tpu":
        return None
    if is_stored(p) or folds is None or not g.size:
        return None
    if any(shape_of(x) != g.shape for x in arrays):
        return None
    if any(map(jnp.ndim, scalars)) or any(reach_of(rule) != "entry" for rule in rules):
        return None
    # XLA does not compute twice what divides or takes a root, as most updates do; a slot that is
    # made of one would be kept for all leaves.
    if sum(any(map(is_stored, group)) for group in slots) > 1:
        return None

    def fold(x: Any) -> Any:
        return x.load_folded(folds) if is_stored(x) else folds.of(jnp.asarray(x))

    _, of_blocks = apply(fold(g), None if p is None else fold(p), _map_slots(fold, slots))
    u, new = apply(g, p, _map_slots(lambda x: x.load() if is_stored(x) else x, slots))
    pairs = zip(arrays, itertools.chain(*of_blocks), strict=True)
    scales = iter(folds.peaks([x for old, x in pairs if is_stored(old)]))
    return u, tuple(
        tuple(
            old.store_scaled(x, next(scales)) if is_stored(old) else x
            for old, x in zip(*group, strict=True)
        )
        for group in zip(slots, new, strict=True)
    )


def _common_folds(arrays: Sequence[Any]) -> Folds | None:
    """Return how all stored slots are cut; None if they are cut in several ways, or not so."""
    if any(map(is_away, arrays)):
        return None
    ways = {x.folds for x in arrays if is_stored(x)}
    return ways.pop() if len(ways) == 1 else None


def _map_slots(f: Callable[[Any], Any], slots: Slots) -> Slots:
    return tuple(tuple(map(f, group)) for group in slots)

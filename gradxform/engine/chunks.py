"""Divide the leaves of a tree into chunks; each chunk goes through one compiled call."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from gradxform._jax.versions import Tracer
from gradxform.leaves import dtype_of
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.storage import StoredArray

# How many leaves go through one call. Larger chunks make fewer but more expensive calls.
CHUNK = 8
# So many divisions of trees are remembered, and the devices of so many shardings.
TREES = 128


class Chunk(NamedTuple):
    """Leaves that go through one call."""

    indices: list[int]
    alike: bool  # whether another chunk has leaves of the same signatures


def chunked(keys: Sequence[Any], places: Sequence[Any] = ()) -> Sequence[Chunk]:
    """Divide leaves into chunks so that as many chunks as possible are alike.

    Most trees consist of equal layers. If the number of leaves of every signature is a multiple of
    n, a chunk holds an n-th of all leaves, those of one layer, so that one compiled call serves all
    layers. Leaves whose signature occurs once go into chunks of their own.

    Args:
      keys: the signature of every leaf.
      places: anything else that the leaves of a chunk must share, such as their devices.
    """
    return _divided(_numbered(keys), _numbered(places or [None] * len(keys)))


def _numbered(xs: Sequence[Any]) -> tuple[int, ...]:
    """Return a number for each, which tells those that are equal."""
    numbers: dict[Any, int] = {}
    return tuple([numbers.setdefault(x, len(numbers)) for x in xs])


@functools.lru_cache(TREES)  # the same at every step
def _divided(keys: tuple[int, ...], places: tuple[int, ...]) -> list[Chunk]:
    groups: dict[int, dict[int, list[int]]] = {}
    for i, (key, place) in enumerate(zip(keys, places, strict=True)):
        groups.setdefault(place, {}).setdefault(key, []).append(i)
    chunks: list[Chunk] = []
    for group in groups.values():
        alone = [i for same in group.values() if len(same) == 1 for i in same]
        for start in range(0, len(alone), CHUNK):
            chunks.append(Chunk(alone[start : start + CHUNK], alike=False))
        if len(alone) < sum(map(len, group.values())):
            chunks += _chunks_of_layers([same for same in group.values() if len(same) > 1])
    return chunks


def _chunks_of_layers(groups: list[list[int]]) -> Iterator[Chunk]:
    """Divide leaves of several signatures, one group for each, into chunks of whole layers."""
    layers = math.gcd(*map(len, groups))
    if sum(len(group) // layers for group in groups) > 2 * CHUNK or layers == 1:
        # No layer of a handy size: one signature after the other.
        for group in groups:
            yield from _chunks_of_equal_layers([[i] for i in group])
    else:
        every = range(layers)
        yield from _chunks_of_equal_layers(
            [[i for g in groups for i in _part_of_group(g, k, layers)] for k in every]
        )


def _part_of_group(group: list[int], k: int, layers: int) -> list[int]:
    """Return the `k`-th of so many equal parts."""
    n = len(group) // layers
    return group[k * n : k * n + n]


def _chunks_of_equal_layers(layers: list[list[int]]) -> Iterator[Chunk]:
    """Join equal layers to chunks of about CHUNK leaves, in powers of two."""
    start = 0
    while start < len(layers):
        n = 1
        while 2 * n * len(layers[0]) <= CHUNK and start + 2 * n <= len(layers):
            n *= 2
        yield Chunk([i for layer in layers[start : start + n] for i in layer], len(layers) >= 2 * n)
        start += n


def leaf_signature(x: Any) -> Any:
    """Return what two leaves must share to share a compiled call: shape, dtype and placement."""
    if type(x) in _PLAIN:  # this runs for every leaf of every step
        return x.shape, x.dtype, x.sharding
    if isinstance(x, RowSparse):
        return jax.tree.structure(x), leaf_signature(x.values)
    if isinstance(x, StoredArray):
        arrays, form = jax.tree.flatten(x)
        return form, *leaf_signatures(arrays)
    if not isinstance(x, jax.Array):
        return getattr(x, "shape", ()), dtype_of(x)
    if isinstance(x, Tracer):
        return x.shape, x.dtype
    _PLAIN.add(type(x))
    return x.shape, x.dtype, x.sharding


_PLAIN: set[type] = set()  # the classes of arrays that are known, and not traced


def leaf_signatures(xs: Iterable[Any]) -> list[Any]:
    """Return `leaf_signature` of each: those of plain arrays without a call."""
    return [(x.shape, x.dtype, x.sharding) if type(x) in _PLAIN else leaf_signature(x) for x in xs]


def signature(tree: Any) -> Any:
    """Return what two trees of arrays must share to share a compiled call."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, *leaf_signatures(leaves)


def devices(x: Any) -> Any:
    """Return where a leaf is; leaves in different places cannot be arguments of one call."""
    x = x.values if isinstance(x, RowSparse) else x
    if not isinstance(x, jax.Array) or isinstance(x, Tracer):
        return None
    return _devices_of(x.sharding)


def places(xs: Iterable[Any]) -> list[Any]:
    """Return `devices` of each: those of plain arrays without a call."""
    return [_devices_of(x.sharding) if type(x) in _PLAIN else devices(x) for x in xs]


@functools.lru_cache(TREES)
def _devices_of(sharding: Any) -> Any:
    return frozenset(sharding.device_set)


def is_traced(x: Any) -> bool:
    """Whether a leaf is a value of a trace."""
    return isinstance(x.values if isinstance(x, RowSparse) else x, Tracer)

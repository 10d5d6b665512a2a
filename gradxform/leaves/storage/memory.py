"""Where an array is kept: in the memory of the device, or in that of its host."""

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform._jax.versions import is_tracer
from gradxform.leaves.storage.stored import StoredArray, is_stored
from gradxform.numerics.overflow import cast_slot
from gradxform.types import Array

Space = jax.memory.Space
HOST = "pinned_host"  # the name of the host's memory
# The memories in which a state may be kept, by the names of JAX.
MEMORIES = {HOST: Space.Host}


def is_on_host(x: Any) -> bool:
    """Whether an array is in the memory of the host, where no rule can compute with it."""
    return isinstance(x, jax.Array) and is_type_on_host(jax.typeof(x))


def are_arrays_here(slots: Iterable[Any]) -> bool:
    """Whether a rule can compute with all slots as they are: arrays in the device's memory."""
    for x in slots:  # of every leaf that is traced: without a call for each
        if isinstance(x, StoredArray):
            return False
        if isinstance(x, jax.Array) and jax.typeof(x).memory_space == Space.Host:
            return False
    return True


def is_type_on_host(kind: Any) -> bool:
    """Whether arrays of a type, as `jax.typeof` returns it, are in the memory of the host."""
    return kind.memory_space == Space.Host


def in_memory(place: Any, kind: Any) -> Any:
    """Return the sharding of an array of a type, in the memory that the type says.

    A `PartitionSpec` or None, which does not say, stays as it is.
    """
    is_told = isinstance(place, jax.sharding.Sharding) and is_type_on_host(kind)
    return place.with_memory_kind(HOST) if is_told else place


def is_away(tree: Any) -> bool:
    """Whether any array of a tree is in the memory of the host."""
    return any(map(is_on_host, jax.tree.leaves(tree)))


def fetched(tree: Any) -> Any:
    """Return a tree with its arrays in the memory of the device."""
    return jax.tree.map(lambda x: jax.device_put(x, Space.Device) if is_on_host(x) else x, tree)


def returned(tree: Any, like: Any) -> Any:
    """Return a tree with its arrays in the memories of those of `like`, of the same structure."""

    def back(x: Any, old: Any) -> Any:
        return jax.device_put(x, Space.Host) if is_on_host(old) else x

    return jax.tree.map(back, tree, like)


def as_seen(x: Any) -> Any:
    """Return a slot as a rule sees it: an array, in the memory of the device."""
    x = fetched(x)
    return x.load() if is_stored(x) else x


def as_kept(new: Array, old: Any) -> Any:
    """Return the new array of a slot in the form, the dtype and the memory of the old one."""
    here = fetched(old)
    return returned(here.store(new) if is_stored(here) else cast_slot(new, here), old)


def begun_anew(is_due: Array, fresh: Any, old: Any) -> Any:
    """Return a fresh state where it is due, else the old one, in the forms of the old.

    Those are the dtypes, the memories and the classes of what stores an array or holds others.

    Args:
      is_due: a boolean scalar.
      fresh: a state that `init` returned; arrays of it may be those of `old`, which then stay.
      old: a state of the same transform, whose arrays may be stored.
    """

    def one(new: Any, kept: Any) -> Any:
        if new is kept:
            return kept
        here, new = fetched(kept), fetched(new)
        new = here.store(new) if is_stored(here) and not is_stored(new) else new

        def chosen(a: Any, b: Any) -> Array:
            return jnp.where(is_due, cast_slot(jnp.asarray(a), b), b)

        return returned(jax.tree.map(chosen, new, here), kept)

    kept, structure = jax.tree.flatten(old, is_leaf=is_stored)
    pairs = zip(jax.tree.leaves(fresh, is_leaf=is_stored), kept, strict=True)
    return jax.tree.unflatten(structure, [one(new, kept) for new, kept in pairs])


def placed_like(new: Any, like: Any) -> Any:
    """Return a tree with the shardings of the arrays of another, where these are known."""

    def one(x: Any, other: Any) -> Any:
        if is_tracer(x) or not isinstance(other, jax.Array) or is_tracer(other):
            kind = jax.typeof(other).sharding if isinstance(other, jax.Array) else None
            is_explicit = kind is not None and any(kind.spec)
            return jax.sharding.reshard(x, kind) if is_explicit else x
        return x if x.sharding == other.sharding else jax.device_put(x, other.sharding)

    return jax.tree.map(one, new, like)


def on_host(x: Any, memory: Any = Space.Host) -> Any:
    """Return an array of a state in the memory of the host, in whichever form it is kept.

    The scales of an array in blocks stay: they are too few to be worth a transfer, and TPUs cannot
    cut all of them.
    """
    few = math.prod(x.shape) // 16 if is_stored(x) else -1
    return jax.tree.map(lambda a: jax.device_put(a, memory) if a.size > few else a, x)

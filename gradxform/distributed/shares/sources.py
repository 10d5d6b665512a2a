"""Which shards an array was gathered from, while a program is traced.

A step of ZeRO ends by gathering parameters. If an exchange between replicas follows, it cuts them
again, moves this device's shards, and gathers those. What is remembered here leaves out the first
of the two, so that the step gathers once, and no second copy of the parameters exists.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.numerics import cast
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, PyTree


class Source(NamedTuple):
    """Where a whole array comes from."""

    whole: Array
    division: Any  # the `Division` that cuts it
    shard: Array
    known: bool
    given: Array | None = None  # the argument of the program that it is the next value of


_SOURCES: ContextVar[list[Source] | None] = ContextVar("sources", default=None)


@contextlib.contextmanager
def remembering_shards() -> Iterator[None]:
    """Remember, while a program is traced, from which shards arrays are gathered.

    An array that is only cut again, or cast, then never exists whole.
    """
    token = _SOURCES.set([*(_SOURCES.get() or ())])
    try:
        yield
    finally:
        _SOURCES.reset(token)


def note_shards(whole: Array, division: Any, shard: Array, is_tracked: bool) -> None:
    """Remember that a device's shards were gathered, where that is asked for."""
    sources = _SOURCES.get()
    if sources is not None:
        sources.append(Source(whole, division, shard, is_tracked))


def whole_in(x: Array, dtype: Any) -> Array:
    """Return a whole array in another dtype; gathered in a narrower one, if it was gathered."""
    source, sources = source_of(x), _SOURCES.get()
    if source is None or sources is None or x.dtype == dtype:
        return cast(x, dtype)
    shard = cast(source.shard, dtype)
    if jnp.dtype(dtype).itemsize < x.dtype.itemsize:
        return source.division.gather(shard, source.known)
    whole = cast(x, dtype)
    sources.append(source._replace(whole=whole, shard=shard))
    return whole


def in_place_of(x: Array, old: Array) -> Array:
    """Return a gathered array, in a form that a compiler can write over a donated one.

    Args:
      x: the array.
      old: what it replaces, as `added_updates` returns it.
    """
    source = source_of(old)
    if source is None or source.given is None or source.given.dtype != x.dtype:
        return x
    # A compiler writes an entrywise result over its operand. It copies what is gathered.
    return jnp.where(lax.optimization_barrier(jnp.asarray(True)), x, source.given)


def added_updates(params: PyTree, updates: PyTree) -> PyTree:
    """Return `apply_updates(params, updates)`, with known shards where those of updates are."""
    new = apply_updates(params, updates)
    sources = _SOURCES.get()
    if not sources or jax.tree.structure(params) != jax.tree.structure(updates):
        return new
    for x, p, u in zip(*map(jax.tree.leaves, (new, params, updates)), strict=True):
        source = source_of(u)
        if source is not None:
            # Computed once, before anything is gathered: a compiler that computes it again later
            # keeps the parameters until then, and cannot gather the new ones into their memory.
            shard = lax.optimization_barrier(apply_updates(source.division.cut(p), source.shard))
            sources.append(source._replace(whole=x, shard=shard, given=p))
    return new


def source_of(x: Any) -> Source | None:
    """Return where an array comes from, if that is remembered."""
    return next((source for source in _SOURCES.get() or () if source.whole is x), None)

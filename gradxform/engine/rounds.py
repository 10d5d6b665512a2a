"""Sums over whole arrays inside rules, where a device has pieces of them.

A rule calls `array_sums` or `array_max` in the middle of its computation. On pieces, each call
needs the other devices. Calls of all leaves wait for one another and share one collective: every
leaf is computed up to its first call, the partial results are added together, and every leaf is
computed again with the totals known, up to its next call. XLA computes only once what is written
twice.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._jax.versions import varying_axes
from gradxform.engine.calls import compiled_calls
from gradxform.engine.chunks import is_traced
from gradxform.engine.cuts import UNCUT, Cut, exchange_now
from gradxform.types import Array

# What is added up: an array, all of its axes; or an array and some of its axes.
Term = Any


class _KindOfTotal(NamedTuple):
    """How a partial result becomes a total; those of one kind share a collective."""

    operation: str  # "sum" or "max"
    names: tuple[str, ...]  # the mesh axes over whose devices
    # The other axes that cut the array: totals of arrays that are cut otherwise may be the same on
    # their devices, and must not seem to differ.
    others: tuple[str, ...] = ()


class _Leaf(NamedTuple):
    """The leaf that is computed now."""

    cut: Cut
    totals: list[Any]  # of its first calls, in order; each call takes one


_LEAF: contextvars.ContextVar[_Leaf | None] = contextvars.ContextVar("leaf", default=None)


class _Known(NamedTuple):
    """The sums of rules that run twice: whole, and again where their updates are used."""

    sums: list[Any]  # of their calls, in order
    are_given: bool  # whether each call takes one; else each adds one


_KNOWN: contextvars.ContextVar[_Known | None] = contextvars.ContextVar("known", default=None)


class _Wait(Exception):
    """Raised where a leaf cannot go on without the other devices; always caught."""

    def __init__(self, parts: list[Array], kinds: list[_KindOfTotal]):
        super().__init__()
        self.parts, self.kinds = parts, kinds


class _LeafWaiting:
    """The partial results that a leaf waits for, as a tree, which compiled calls can return."""

    def __init__(self, parts: Sequence[Array], kinds: tuple[_KindOfTotal, ...]):
        self.parts, self.kinds = parts, kinds


jax.tree_util.register_pytree_node(
    _LeafWaiting,
    lambda x: (tuple(x.parts), x.kinds),
    lambda kinds, parts: _LeafWaiting(parts, kinds),
)


# ------------------------------------------------------------------------------- for rules


def whole_shape(x: Any) -> tuple[int, ...]:
    """Return the shape of the array of all devices, where the rule sees `x`, a piece of it."""
    now = _LEAF.get()
    return jnp.shape(x) if now is None else now.cut.whole(jnp.shape(x))


def cut_here() -> Cut:
    """Return how the array that the rule sees is divided over devices."""
    now = _LEAF.get()
    return UNCUT if now is None else now.cut


def array_sums(*terms: Term, keepdims: bool = False) -> Any:
    """Return sums over arrays, of all their pieces, by one exchange.

    Args:
      *terms: arrays, each summed over all axes; or pairs of an array and the axes to sum over. The
        axes are those of the leaf: an array has as many, some perhaps of length 1.
      keepdims: whether the axes stay, with length 1.

    Returns:
      The sum; of several terms a tuple of them.
    """
    local = lambda x, axes: jnp.sum(x, axis=axes, keepdims=keepdims)  # noqa: E731
    return _totals_over_pieces("sum", local, terms)


def array_max(x: Array, axes: Any = None, keepdims: bool = False) -> Array:
    """Return the maximum over an array, of all its pieces; arguments as in `array_sums`.

    The array must not have negative numbers, because the maximum of an empty one is 0.
    """
    local = lambda x, axes: jnp.max(x, axis=axes, keepdims=keepdims, initial=0)  # noqa: E731
    return _totals_over_pieces("max", local, [(x, axes)])


@contextlib.contextmanager
def known_sums(sums: Sequence[Any] | None = None) -> Iterator[list[Any]]:
    """Note what sums over whole arrays are, or let rules that run again get what was noted.

    Args:
      sums: what was noted; None to note it, in the list that is yielded.
    """
    known = _Known([] if sums is None else list(sums), sums is not None)
    token = _KNOWN.set(known)
    try:
        yield known.sums
    finally:
        _KNOWN.reset(token)


def over_pieces(*parts: tuple[Array, tuple[str, ...]], operation: str = "sum") -> list[Array]:
    """Return the totals of what each device has computed of its pieces, by one exchange.

    Args:
      *parts: partial results, each with the mesh axes over whose devices it is added.
      operation: "sum" or "max".
    """
    now = _LEAF.get()
    if now is None or not any(names for _, names in parts):
        return _noted([x for x, _ in parts])
    if now.totals:
        total = iter(now.totals.pop(0))
        return [next(total) if names else x for x, names in parts]
    axes = now.cut.axes
    waiting = [
        (x, _KindOfTotal(operation, names, tuple(a for a in axes if a not in names)))
        for x, names in parts
        if names
    ]
    raise _Wait([x for x, _ in waiting], [kind for _, kind in waiting])


def _noted(sums: list[Any]) -> list[Any]:
    """Return sums of whole arrays, or those that are known."""
    known = _KNOWN.get()
    if known is None:
        return sums
    if known.are_given:
        return known.sums.pop(0)
    known.sums.append(sums)
    return sums


def _totals_over_pieces(operation: str, local: Callable[..., Array], terms: Sequence[Term]) -> Any:
    pairs = [term if isinstance(term, tuple) else (term, None) for term in terms]
    parts = [(local(x, axes), _axes_cutting_sum(x, axes)) for x, axes in pairs]
    out = over_pieces(*parts, operation=operation)
    return out[0] if len(out) == 1 else tuple(out)


def _axes_cutting_sum(x: Array, axes: Any) -> tuple[str, ...]:
    """Return the mesh axes that cut an array along some of its axes."""
    every = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    summed = {axis % x.ndim for axis in every}
    return tuple(name for name, dim in cut_here().cuts if dim in summed)


# ------------------------------------------------------------------------------- for the lift


def _attempt(function: Any, static: Any, cut: Cut, arrays: Any, totals: Any) -> Any:
    """Return the result of a leaf, or what it waits for."""
    token = _LEAF.set(_Leaf(cut, list(totals)))
    try:
        return function(*static, *arrays)
    except _Wait as wait:
        return _LeafWaiting(wait.parts, tuple(wait.kinds))
    finally:
        _LEAF.reset(token)


_ATTEMPT = compiled_calls(_attempt, static=3)


class OnPiece(NamedTuple):
    """A computation of one leaf."""

    static: tuple[Any, ...]  # its first arguments, values
    cut: Cut
    arrays: tuple[Any, ...]  # its other arguments
    again: bool  # whether that of another leaf is the same, of other arrays


def in_rounds(function: Callable[..., Any], leaves: Sequence[OnPiece]) -> list[Any]:
    """Return `function(*static, *arrays)` of every leaf, whose sums cover all devices.

    Args:
      function: defined at module level; it calls `array_sums` or the like.
      leaves: the computations.
    """
    exchange = exchange_now()
    out: list[Any] = [None] * len(leaves)
    totals: list[list[Any]] = [[] for _ in leaves]
    waiting = list(range(len(leaves)))
    while waiting:
        for i in waiting:
            # Each attempt begins anew, and gets past the calls whose totals are there by now.
            one = leaves[i]
            call = _ATTEMPT.plain
            if one.again or not is_traced(jax.tree.leaves(one.arrays)[0]):
                call = _ATTEMPT.called
            out[i] = call(function, one.static, one.cut, one.arrays, tuple(totals[i]))
        waiting = [i for i in waiting if isinstance(out[i], _LeafWaiting)]
        for i, total in zip(waiting, _totals(exchange, [out[i] for i in waiting]), strict=True):
            totals[i].append(total)
    return out


def _totals(exchange: Any, waiting: Sequence[_LeafWaiting]) -> list[tuple[Array, ...]]:
    """Return the totals of all that leaves wait for, by one collective for each kind."""
    kinds: dict[Any, list[tuple[int, int]]] = {}
    for i, one in enumerate(waiting):
        for k, (x, kind) in enumerate(zip(one.parts, one.kinds, strict=True)):
            # A total must not be marked as varying because another one varies.
            key = kind, x.dtype, frozenset(varying_axes(x))
            kinds.setdefault(key, []).append((i, k))
    out = [list(one.parts) for one in waiting]
    for (kind, *_), places in kinds.items():
        parts = [waiting[i].parts[k] for i, k in places]
        flat = jnp.concatenate([jnp.ravel(x) for x in parts])
        combine = exchange.psum if kind.operation == "sum" else exchange.pmax
        total, start = combine(flat, kind.names), 0
        for (i, k), x in zip(places, parts, strict=True):
            out[i][k] = jnp.reshape(total[start : start + x.size], x.shape)
            start += x.size
    return [tuple(x) for x in out]

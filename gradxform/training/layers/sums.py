"""Sums over a tree whose parts are seen one after the other: the layers of a scan, and the rest.

A part that needs a total of all gradients, such as a norm, asks for it in each turn. Turns that
only add up come first, as many times as one total depends on another.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform._jax.jaxprs import as_open_jaxpr, variables_in
from gradxform.leaves import Path
from gradxform.types import Array

__all__ = []

AXIS = "parts of a tree that are seen in turn"


class Asked(NamedTuple):
    """A total that a step asks for."""

    kind: str  # "tree", "leaves" or "largest"
    shape: tuple[int, ...]
    dtype: Any
    wave: int  # how many totals that it depends on come one after the other before it


class Totals:
    """The totals of one turn: those that are known, and what the turn adds to the others."""

    def __init__(self, known: dict[int, Array], only_adds_up: bool) -> None:
        self.known, self.only_adds_up = known, only_adds_up
        self.asked: list[tuple[str, Any]] = []  # in order, with what this part has

    def _total(self, kind: str, x: Array) -> Array:
        i = len(self.asked)
        self.asked.append((kind, x if self.only_adds_up else None))
        return self.known.get(i, x)

    def psum(self, x: Array, axes: tuple[str, ...]) -> Array:
        """Return the sum over all parts of the tree."""
        return self._total("tree", x)

    def of_leaves(self, x: Array) -> Array:
        """Return the sums over all layers of leaves."""
        return self._total("leaves", x)

    def largest(self, x: Array) -> Array:
        """Return the largest over all parts of the tree."""
        return self._total("largest", x)

    @contextlib.contextmanager
    def asked_for(self, paths: list[Path]) -> Iterator[None]:
        """Let a step ask for the totals of these leaves here."""
        axes = dict.fromkeys(paths, (AXIS,))
        with engine.as_shards(axes, (AXIS,), self.psum, self):
            yield


def totals_asked_for(step: Callable[..., Any], args: Any) -> list[Asked]:
    """Return the totals that a step asks for, in order.

    Args:
      step: `step(totals, *args)` computes with these totals.
      args: its other arguments, or their types.
    """

    def asked(known: list[Array], args: Any) -> list[Array]:
        totals = Totals(dict(enumerate(known)), True)
        step(totals, *args)
        kinds[:] = [kind for kind, _ in totals.asked]
        return [x for _, x in totals.asked]

    kinds: list[str] = []
    # Without totals, each is what this part has: of the right type.
    types = jax.eval_shape(lambda args: asked([], args), args)
    if not types:
        return []
    jaxpr, _ = as_open_jaxpr(jax.make_jaxpr(asked)(types, args))
    waves: list[int] = []
    # An equation counts as one that uses all its operands for each result. The totals come in the
    # order in which they are asked for, and so does what is computed from them.
    for i, out in enumerate(jaxpr.outvars):
        reach: dict[Any, int] = {jaxpr.invars[j]: waves[j] + 1 for j in range(i)}
        for eqn in jaxpr.eqns:
            wave = max((reach.get(v, 0) for v in variables_in(eqn.invars)), default=0)
            reach |= dict.fromkeys(variables_in(eqn.outvars), wave)
        waves.append(reach.get(out, 0))
    return [Asked(k, x.shape, x.dtype, w) for k, x, w in zip(kinds, types, waves, strict=True)]


def nothing_of(asked: Asked) -> Array:
    """Return what a total is before anything is added to it."""
    if asked.kind == "largest":
        least = (
            -jnp.inf if jnp.issubdtype(asked.dtype, jnp.floating) else jnp.iinfo(asked.dtype).min
        )
        return jnp.full(asked.shape, least, asked.dtype)
    return jnp.zeros(asked.shape, asked.dtype)


def with_more(asked: Asked, total: Array, x: Array) -> Array:
    """Return a total with what another part has."""
    return jnp.maximum(total, x) if asked.kind == "largest" else total + x

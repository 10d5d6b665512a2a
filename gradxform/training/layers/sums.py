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
from gradxform._jax.versions import zeros_of
from gradxform.leaves import Path
from gradxform.types import Array

__all__ = []

AXIS = "parts of a tree that are seen in turn"


class Asked(NamedTuple):
    """A total that a step asks for."""

    kind: str  # "tree", "leaves", "largest" or "later": of the tree, for the state alone
    type: Any  # its shape, dtype and the mesh axes along which it varies
    wave: int  # how many totals that it depends on come one after the other before it


class Totals:
    """The totals of one turn: those that are known, and what the turn adds to the others."""

    def __init__(self, here: frozenset[Path], known: dict[int, Array], only_adds_up: bool) -> None:
        self.here, self.known, self.only_adds_up = here, known, only_adds_up
        self.asked: list[tuple[str, Any]] = []  # in order, with what this part has
        self._mesh = jax.sharding.get_abstract_mesh()

    def _total(self, kind: str, x: Array) -> Array:
        # Updates leave explicit axes to the compiler, so that they run in another mesh.
        i, mesh = len(self.asked), jax.sharding.get_abstract_mesh()
        is_later = kind == "later"
        is_wanted = self.only_adds_up or is_later
        self.asked.append((kind, _in_mesh(x, self._mesh) if is_wanted else None))
        if i not in self.known:
            return x
        known = _in_mesh(self.known[i], mesh)
        return x + known if is_later else known

    def psum(self, x: Array, axes: tuple[str, ...]) -> Array:
        """Return the sum over all parts of the tree."""
        return self._total("later" if engine.is_for_the_next_step() else "tree", x)

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


def _in_mesh(x: Array, mesh: Any) -> Array:
    """Return an array that every device has, with a type of a mesh."""
    if mesh.empty or jax.typeof(x).sharding.mesh == mesh:
        return x
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.sharding.reshard(x, jax.NamedSharding(mesh, jax.P()))


def totals_asked_for(step: Callable[..., Any], here: frozenset[Path], args: Any) -> list[Asked]:
    """Return the totals that a step asks for, in order.

    Args:
      step: `step(totals, *args)` computes with these totals.
      here: the leaves of the part of the tree that it sees.
      args: its other arguments, or their types.
    """

    def asked(known: list[Array], args: Any) -> list[Array]:
        totals = Totals(here, dict(enumerate(known)), True)
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
    return [Asked(k, x, w) for k, x, w in zip(kinds, types, waves, strict=True)]


def nothing_of(asked: Asked) -> Array:
    """Return what a total is before anything is added to it, with an axis of length 1 in front.

    Without that axis, a number would be a constant, whose type does not name the mesh.
    """
    zeros = zeros_of(asked.type, (1,))
    if asked.kind != "largest":
        return zeros
    is_floating = jnp.issubdtype(zeros.dtype, jnp.floating)
    least = -jnp.inf if is_floating else jnp.iinfo(zeros.dtype).min
    return zeros + jnp.asarray(least, zeros.dtype)


def with_more(asked: Asked, total: Array, x: Array) -> Array:
    """Return a total with what another part has."""
    return jnp.maximum(total, x) if asked.kind == "largest" else total + x

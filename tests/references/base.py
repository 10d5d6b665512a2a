"""Every rule in NumPy float64, written from its paper: what the library must follow.

A reference is a generator-free little class of functions on one array: `start(p)` returns the
slots, `step(g, slots, p, t)` the update and the new slots, with t = 1, 2, ... the step. Rules that
look at a whole tree have `tree_step` on lists of arrays instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Slots = tuple[Any, ...]


@dataclass(frozen=True)
class Reference:
    """A rule for one array: first slots, and one step."""

    start: Callable[[np.ndarray], Slots]
    step: Callable[[np.ndarray, Slots, np.ndarray, int], tuple[np.ndarray, Slots]]


@dataclass(frozen=True)
class TreeReference:
    """A rule for a list of arrays."""

    start: Callable[[list[np.ndarray]], Any]
    step: Callable[[list[np.ndarray], Any, list[np.ndarray], int], tuple[list[np.ndarray], Any]]


def stateless(f):
    """A rule without slots."""
    return Reference(lambda p: (), lambda g, s, p, t: (f(g, p, t), ()))


def zeros(n):
    """That many slots of zeros."""
    return lambda p: tuple(np.zeros_like(p) for _ in range(n))


def as_tree(ref: Reference | TreeReference) -> TreeReference:
    """The rule for every array of a list."""
    if isinstance(ref, TreeReference):
        return ref

    def step(gs, states, ps, t):
        done = [ref.step(g, s, p, t) for g, s, p in zip(gs, states, ps, strict=True)]
        return [u for u, _ in done], [s for _, s in done]

    return TreeReference(lambda ps: [ref.start(p) for p in ps], step)


def sequence(*refs: Reference | TreeReference) -> TreeReference:
    """One rule after the other."""
    parts = [as_tree(r) for r in refs]

    def step(gs, states, ps, t):
        out = []
        for part, state in zip(parts, states, strict=True):
            gs, state = part.step(gs, state, ps, t)
            out.append(state)
        return gs, out

    return TreeReference(lambda ps: [part.start(ps) for part in parts], step)


def only(selected: Callable[[np.ndarray], bool], ref: Reference) -> Reference:
    """The rule on the arrays that are selected by their parameter; others pass."""
    return Reference(
        lambda p: ref.start(p) if selected(p) else (),
        lambda g, s, p, t: ref.step(g, s, p, t) if selected(p) else (g, s),
    )

"""Rules in NumPy float64, to be compared with: `Reference` for one array, `TreeReference` for all.

A reference is written from the paper and not from the code that it checks. It does not know jit,
trees or dtypes: only the rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Slots = tuple[Any, ...]


@dataclass(frozen=True)
class Reference:
    """A rule for one array.

    Args:
      start: `start(p) -> slots`, what the rule remembers before the first step.
      step: `step(g, slots, p, t) -> (update, slots)`, with t = 1, 2, ... the step and p the
        parameter before it.
    """

    start: Callable[[np.ndarray], Slots]
    step: Callable[[np.ndarray, Slots, np.ndarray, int], tuple[np.ndarray, Slots]]


@dataclass(frozen=True)
class TreeReference:
    """A rule that looks at several arrays at once, given as a list.

    Args:
      start: `start(ps) -> state`.
      step: `step(gs, state, ps, t) -> (updates, state)`.
    """

    start: Callable[[list[np.ndarray]], Any]
    step: Callable[[list[np.ndarray], Any, list[np.ndarray], int], tuple[list[np.ndarray], Any]]


def stateless(f: Callable[[np.ndarray, np.ndarray, int], Any]) -> Reference:
    """Return the rule without slots whose update is `f(g, p, t)`."""
    return Reference(lambda p: (), lambda g, s, p, t: (f(g, p, t), ()))


def zeros(n: int) -> Callable[[np.ndarray], Slots]:
    """Return the start of a rule with `n` slots of zeros."""
    return lambda p: tuple(np.zeros_like(p) for _ in range(n))


def as_tree(ref: Reference | TreeReference) -> TreeReference:
    """Return the rule for a list that applies `ref` to every array of it."""
    if isinstance(ref, TreeReference):
        return ref

    def step(gs, states, ps, t):
        done = [ref.step(g, s, p, t) for g, s, p in zip(gs, states, ps, strict=True)]
        return [u for u, _ in done], [s for _, s in done]

    return TreeReference(lambda ps: [ref.start(p) for p in ps], step)


def sequence(*refs: Reference | TreeReference) -> TreeReference:
    """Return one rule after the other, as in a chain."""
    parts = [as_tree(r) for r in refs]

    def step(gs, states, ps, t):
        out = []
        for part, state in zip(parts, states, strict=True):
            gs, state = part.step(gs, state, ps, t)
            out.append(state)
        return gs, out

    return TreeReference(lambda ps: [part.start(ps) for part in parts], step)


def only(selected: Callable[[np.ndarray], bool], ref: Reference) -> Reference:
    """Return the rule on the arrays whose parameter is selected; other gradients pass."""
    return Reference(
        lambda p: ref.start(p) if selected(p) else (),
        lambda g, s, p, t: ref.step(g, s, p, t) if selected(p) else (g, s),
    )

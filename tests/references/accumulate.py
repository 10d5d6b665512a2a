"""The rule of `gradxform/wrappers/accumulation/accumulate.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, as_tree


def accumulate(inner, every, total=lambda gs, ws: sum(gs) / len(gs), weight=lambda n: 1.0):
    """One step of the inner rule on a reduction of the micro-batches of each window.

    `every` is a number or a function of the inner step, `weight` the weight of the n-th
    micro-batch. Micro-batches that are not finite are left out, and a window of weight 0 is not a
    step.
    """
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, taken, window, place = state
        w = weight(t - 1)
        if w > 0 and all(np.isfinite(g).all() for g in gs):
            window = [*window, (gs, w)]
        place += 1
        nothing = [np.zeros_like(p) for p in ps]
        if place < (every(taken) if callable(every) else every):
            return nothing, (inner_state, taken, window, place)
        if not window:
            return nothing, (inner_state, taken, [], 0)
        ws = [w for _, w in window]
        totals = [total(column, ws) for column in zip(*(gs for gs, _ in window), strict=True)]
        us, inner_state = part.step(totals, inner_state, ps, taken + 1)
        return us, (inner_state, taken + 1, [], 0)

    return TreeReference(lambda ps: (part.start(ps), 0, [], 0), step)


def weighted(gs, ws):
    """The mean by weights."""
    return sum(w * g for g, w in zip(gs, ws, strict=True)) / sum(ws)

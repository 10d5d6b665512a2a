"""L-BFGS with the line search of Moré and Thuente, a trial at each step, in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference
from tests.references.lbfgs import flat, like
from tests.references.more_thuente import more_thuente


def _product(pairs, g):
    """H g, with H as a matrix, pair by pair."""
    s, y = pairs[-1]
    h = s @ y / (y @ y) * np.eye(len(g))
    for s, y in pairs:
        v = np.eye(len(g)) - np.outer(y, s) / (s @ y)
        h = v.T @ h @ v + np.outer(s, s) / (s @ y)
    return h @ g


def lbfgs_steps(value_of, memory_size=10):
    """`value_of(gs, ps)` is the loss that the update is given."""

    def step(gs, state, ps, t):
        p, g, f = flat(ps), flat(gs), value_of(gs, ps)
        accepts, pairs = t == 1, ()
        if t > 1:
            x, last_g, d, pairs, search = state
            try:
                at = search.send((f, g @ d))
            except StopIteration as end:
                assert end.value, "the search failed"
                accepts, pairs = True, (*pairs, (p - x, g - last_g))[-memory_size:]
        if accepts:
            x, last_g = p, g
            d = -_product(pairs, g) if pairs else -g
            search = more_thuente(f, g @ d, 1 if pairs else min(1, 1 / np.linalg.norm(g)))
            at = next(search)
        return like(x + at * d - p, gs), (x, last_g, d, pairs, search)

    return TreeReference(lambda ps: None, step)

"""L-BFGS in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference


def flat(xs):
    return np.concatenate([np.ravel(x) for x in xs])


def like(vector, xs):
    """The entries of a vector in the shapes of a list of arrays."""
    ends = np.cumsum([np.size(x) for x in xs])[:-1]
    return [part.reshape(np.shape(x)) for part, x in zip(np.split(vector, ends), xs, strict=True)]


def lbfgs(memory_size=10, scaled=True):
    """Nocedal and Wright, Algorithms 7.4 and 7.5, with H as a matrix, pair by pair."""

    def start(ps):
        return (), np.zeros(0), np.zeros(0)

    def step(gs, state, ps, t):
        pairs, last_p, last_g = state
        p, g = flat(ps), flat(gs)
        if t > 1:
            pairs = (*pairs, (p - last_p, g - last_g))[-memory_size:]
        gamma = min(1, 1 / np.linalg.norm(g))
        if pairs:
            s, y = pairs[-1]
            gamma = s @ y / (y @ y) if y @ y else 1
        h = (gamma if scaled else 1) * np.eye(len(g))
        for s, y in pairs:
            if s @ y:
                v = np.eye(len(g)) - np.outer(y, s) / (s @ y)
                h = v.T @ h @ v + np.outer(s, s) / (s @ y)
        return like(h @ g, gs), (pairs, p, g)

    return TreeReference(start, step)

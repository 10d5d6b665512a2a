"""TRAC in NumPy float64."""

import numpy as np
from scipy.special import erfi

from tests.references.base import TreeReference, as_tree, dot


def trac(inner, s_init, eps, n):
    """Muppidi et al., Algorithms 1 and 2: a tuner for each discount, their scales added up."""
    base = as_tree(inner)

    def start(ps):
        return base.start(ps), [p.copy() for p in ps], [(1e-8, 0.0)] * n, 0.0

    def step(gs, state, ps, t):
        base_state, x0, tuners, scale = state
        us, base_state = base.step(gs, base_state, ps, t)
        delta = [(p - x) / (scale + eps) for x, p in zip(x0, ps, strict=True)]
        h, scale, new = dot(gs, delta), 0.0, []
        for i, (sigma, v) in enumerate(tuners):
            beta = 1 - 0.1 ** (i + 1)
            sigma, v = beta * sigma - h, beta**2 * v + h**2
            scale += s_init * erfi(sigma / (np.sqrt(2 * v) + eps)) / erfi(np.sqrt(0.5))
            new.append((sigma, v))
        scale = max(scale, 0.0)
        there = [x + scale * (d + u) for x, d, u in zip(x0, delta, us, strict=True)]
        return [x - p for x, p in zip(there, ps, strict=True)], (base_state, x0, new, scale)

    return TreeReference(start, step)

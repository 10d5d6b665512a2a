"""Mechanic in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, as_tree, dot, norm


def mechanic(inner, decay, eps, s_init, n):
    """Cutkosky et al., Algorithm 1, with delta from the first parameters and h clipped."""
    base = as_tree(inner)
    betas = 1 - 0.1 ** np.arange(1, n + 1)

    def start(ps):
        zeros = np.zeros(n)
        return base.start(ps), [p.copy() for p in ps], zeros, zeros, zeros, np.full(n, s_init)

    def step(gs, state, ps, t):
        base_state, x0, r, m, v, s = state
        us, base_state = base.step(gs, base_state, ps, t)
        total = s.sum()
        delta = [(x - p) / (total + eps) for x, p in zip(x0, ps, strict=True)]
        weight = decay * total * norm(gs) / (norm(ps) + eps)
        h = dot([g + weight * p for g, p in zip(gs, ps, strict=True)], delta)
        r = betas * r + np.clip(h, -m, m) * s
        m = np.maximum(betas * m, abs(h) + eps)
        v = betas**2 * v + h**2
        s = (s_init / n * m + np.maximum(r, 0)) / (np.sqrt(v) + eps)
        new = [x - s.sum() * (d - u) for x, d, u in zip(x0, delta, us, strict=True)]
        steps = [x - p for x, p in zip(new, ps, strict=True)]
        return steps, (base_state, x0, r, m, v, s)

    return TreeReference(start, step)

"""Magma in NumPy float64, for a mask that is always 1."""

import numpy as np

from tests.references.base import TreeReference, as_tree


def magma(inner, tau=2.0, b1=0.9, ema=0.9, first=1.0):
    """Joo et al., Algorithm 1, with a momentum of its own."""
    rule = as_tree(inner)

    def start(ps):
        return rule.start(ps), [np.zeros_like(p) for p in ps], [first] * len(ps)

    def step(gs, state, ps, t):
        state, ms, scores = state
        us, state = rule.step(gs, state, ps, t)
        ms = [b1 * m + (1 - b1) * g for m, g in zip(ms, gs, strict=True)]
        new, out = [], []
        for u, m, g, s in zip(us, ms, gs, scores, strict=True):
            cosine = np.sum(m * g) / (np.linalg.norm(m) * np.linalg.norm(g))
            s = ema * s + (1 - ema) / (1 + np.exp(-cosine / tau))
            new.append(s)
            out.append(s * u)
        return out, (state, ms, new)

    return TreeReference(start, step)

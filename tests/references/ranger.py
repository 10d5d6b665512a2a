"""Ranger21 in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, blank
from tests.references.normalization import over_std


def ranger21(b1, b2, b0, decay, eps, beta, renormalize=False):
    """Wright and Demeure, Algorithm 1, from the second moment to the stable weight decay."""

    def step(gs, state, ps, t):
        odd, even, vs, ws = state
        vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, gs, strict=True)]
        ws = [np.maximum(w, v) for w, v in zip(ws, vs, strict=True)]
        mean = (1 + sum(np.sum(v) for v in vs) / (1 - b2**t)) / sum(v.size for v in vs)
        hs = [over_std(g, eps) if renormalize else g for g in gs]
        old, other = (odd, even) if t % 2 else (even, odd)
        new = [b1**2 * a + (1 - b1**2) * h for a, h in zip(old, hs, strict=True)]
        us = []
        for a, n, w, p in zip(new, other, ws, ps, strict=True):
            d = ((1 + b0) * a - b0 * n) / np.sqrt((1 + b0) ** 2 + b0**2) / (1 - b1**t)
            s = np.sqrt(w / (1 - b2**t)) + eps
            s = s if beta is None else np.log1p(np.exp(beta * s)) / beta
            us.append(d / s + decay / np.sqrt(mean) * p)
        return us, (new, even, vs, ws) if t % 2 else (odd, new, vs, ws)

    return TreeReference(lambda ps: blank(ps, 4), step)

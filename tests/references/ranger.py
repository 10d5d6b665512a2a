"""Ranger21 in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, blank, stateless


def _over_std(g, eps):
    if g.size < 3:
        return g
    return g / (max(np.std(g, ddof=1), 1e-4 * np.max(np.abs(g))) + eps)


def block_std(eps):
    """Gradients over their standard deviation, as in the code of Ranger21."""
    return stateless(lambda g, p, t: _over_std(g, eps))


def norm_loss(factor, axes):
    """Georgiou et al.: the gradient of factor (|p| - 1)^2 per unit."""

    def f(g, p, t):
        size = np.sqrt(np.sum(p**2, axis=axes(p), keepdims=True))
        return g + 2 * factor * (size - 1) * p / size

    return stateless(f)


def ranger21(b1, b2, b0, decay, eps, beta, renormalize=False):
    """Wright and Demeure, Algorithm 1, from the second moment to the stable weight decay."""

    def step(gs, state, ps, t):
        odd, even, vs, ws = state
        vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, gs, strict=True)]
        ws = [np.maximum(w, v) for w, v in zip(ws, vs, strict=True)]
        mean = (1 + sum(np.sum(v) for v in vs) / (1 - b2**t)) / sum(v.size for v in vs)
        hs = [_over_std(g, eps) if renormalize else g for g in gs]
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

"""The rules of `gradxform/transforms/adalite.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def adalite(b1, b2, eps, eps2=1e-10, tau=1.0, least_norm=1e-10, least_ratio=1e-4):
    """Adalite, with outputs first."""

    def softmax(x):
        e = np.exp(x - x.max())
        return e / e.sum()

    def flat(x):
        return x.reshape(-1, x.shape[-1]).T

    def start(p):
        if p.ndim < 2:
            return np.zeros_like(p), np.zeros_like(p)
        n, k = flat(p).shape
        return np.zeros(n), np.zeros(k), np.zeros(n), np.zeros(k), 0.0

    def step(g, slots, p, t):
        shape = g.shape
        g = flat(g) if g.ndim > 1 else g
        if sum(g.shape) > 1:
            g = g * max(np.linalg.norm(p) / max(np.linalg.norm(g), least_norm), least_ratio)
        if g.ndim > 1:
            r, c, C, R, U = slots
            v, m = np.outer(r, c) / max(r.sum(), eps2), U * np.outer(C, R)
        else:
            v, m = slots
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (g - m) ** 2
        slots = v, m
        if g.ndim > 1:
            m = m + (1 - np.outer(softmax(v.mean(1)), softmax(v.mean(0)))) * (g - m)
            C = m @ softmax(v.mean(0) / tau)
            R = softmax(v.mean(1) / tau) @ m
            U = C @ m @ R / max((C @ C) * (R @ R), eps2)
            slots = v.sum(1), v.sum(0) / max(v.sum(), eps2), C, R, U
        u = (b1 * m + (1 - b1) * g) / np.sqrt(v / (1 - b2**t) + eps)
        return (u.T.reshape(shape) if g.ndim > 1 else u), slots

    return Reference(start, step)

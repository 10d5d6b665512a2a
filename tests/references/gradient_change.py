"""The rules of `gradxform/transforms/gradient_change.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def adan(b1, b2, b3, eps, eps_root=0.0, weight=None):
    """Xie et al., Algorithm 1, where the weight is b2; Optax has 1 - b2."""
    w = 1 - b2 if weight is None else weight

    def step(g, slots, p, t):
        m, v, n, last = slots
        d = g - last if t > 1 else 0 * g
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * d
        n = b3 * n + (1 - b3) * (g + w * d) ** 2
        top = m / (1 - b1**t) + w * v / (1 - b2**t)
        return top / (np.sqrt(n / (1 - b3**t) + eps_root) + eps), (m, v, n, g)

    return Reference(zeros(4), step)


def optimistic(alpha, beta):
    """Generalized OGDA of Mokhtari et al.: the first change is 0."""

    def step(g, slots, p, t):
        last = slots[0] if t > 1 else g
        return alpha * g + beta * (g - last), (g,)

    return Reference(zeros(1), step)


def rprop(first, minus=0.5, plus=1.2, least=1e-6, largest=50.0, delayed=True):
    """Igel and Huesken, iRprop-; delayed: the step of the gradient before, if the sign stays."""

    def step(g, slots, p, t):
        s, last = slots
        sign = np.sign(g * last)
        s = np.where(sign > 0, np.minimum(s * plus, largest), s)
        s = np.where(sign < 0, np.maximum(s * minus, least), s)
        now = np.where(sign < 0, 0, s * np.sign(g))
        return np.where(sign < 0, 0, last) if delayed else now, (s, now)

    return Reference(lambda p: (np.full_like(p, first), np.zeros_like(p)), step)


def diffgrad(b1, b2, eps, eps_root=0.0, largest=False, after=False):
    """Dubey et al., Algorithm 1; `after`: the authors' code, with eps before the correction."""

    def step(g, slots, p, t):
        m, v, h, last = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        h = np.maximum(h, v) if largest else v
        c1, c2 = 1 - b1**t, 1 - b2**t
        root = np.sqrt(h + eps_root) / np.sqrt(c2) if after else np.sqrt(h / c2 + eps_root)
        friction = 1 / (1 + np.exp(-np.abs(last - g)))
        below = root + (eps / np.sqrt(c2) if after else eps)
        return friction * m / c1 / below, (m, v, h, g)

    return Reference(zeros(4), step)

"""The rules of `gradxform/transforms/came.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def confidence(b1, b3, eps):
    """Luo et al., Algorithm 2, from the average of the clipped direction on."""

    def step(g, slots, p, t):
        m, s = slots
        m = b1 * m + (1 - b1) * g
        s = b3 * s + (1 - b3) * ((g - m) ** 2 + eps)  # the rows' sums are sums of these
        if g.ndim < 2:
            return m, (m, s)
        R, C = s.sum(-1, keepdims=True), s.sum(-2, keepdims=True)
        return m / np.sqrt(R * C / R.sum(-2, keepdims=True)), (m, s)

    return Reference(zeros(2), step)


def came_moment(b2, eps, threshold):
    """The direction, clipped: the second moment of a decay that stays."""

    def step(g, slots, p, t):
        v = b2 * slots[0] + (1 - b2) * (g**2 + eps)
        if g.ndim < 2:
            u = g / np.sqrt(v)
        else:
            R, C = v.sum(-1, keepdims=True), v.sum(-2, keepdims=True)
            u = g / np.sqrt(R * C / R.sum(-2, keepdims=True))
        return u / max(1.0, np.sqrt(np.mean(u**2)) / threshold), (v,)

    return Reference(zeros(1), step)

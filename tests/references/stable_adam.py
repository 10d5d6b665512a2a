"""The rules of `gradxform/transforms/stable_adam.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, value_at, zeros


def _ratio(g, w, eps):
    """Wortsman et al., Algorithm 2: RMS_t, at least 1."""
    return max(1, np.sqrt(np.mean(g**2 / np.maximum(w, eps**2))))


def moving_rms(b2, eps):
    """Its clipping, of the gradient."""

    def step(g, slots, p, t):
        v = b2 * slots[0] + (1 - b2) * g**2
        return g / _ratio(g, v / (1 - b2**t), eps), (v,)

    return Reference(zeros(1), step)


def stable_adam(b1, b2, eps, decay=0.0, selected=lambda p: True):
    """Wortsman et al., Algorithm 2, without the learning rate."""

    def step(g, slots, p, t):
        m, w = slots
        d1 = b1 * (1 - b1 ** (t - 1)) / (1 - b1**t)
        d2 = b2 * (1 - b2 ** (t - 1)) / (1 - b2**t)
        m, w = d1 * m + (1 - d1) * g, d2 * w + (1 - d2) * g**2
        u = m / (np.sqrt(w) + eps)
        u = u + value_at(decay, t - 1) * p if selected(p) else u
        return u / _ratio(g, w, eps), (m, w)

    return Reference(zeros(2), step)


def adam_atan2(b1, b2, a=1.0, b=1.0):
    """Everett et al., Adam-atan2."""

    def step(g, slots, p, t):
        m = b1 * slots[0] + (1 - b1) * g
        v = b2 * slots[1] + (1 - b2) * g**2
        return a * np.arctan2(m / (1 - b1**t), b * np.sqrt(v / (1 - b2**t))), (m, v)

    return Reference(zeros(2), step)

"""Positive-negative momentum in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def _momentum(g, m, t, b1, b0):
    """Xie et al., Algorithm 2, from the last two momenta: the update, and the new momentum."""
    new = b1**2 * m[t % 2] + (1 - b1**2) * g
    d = ((1 + b0) * new - b0 * m[1 - t % 2]) / np.sqrt((1 + b0) ** 2 + b0**2)
    return d, (m[0], new) if t % 2 else (new, m[1])


def pnm(b1, b0):
    """Xie et al., Algorithm 2."""

    def step(g, slots, p, t):
        return _momentum(g, slots, t, b1, b0)

    return Reference(zeros(2), step)


def adapnm(b1, b2, b0, eps, eps_root=0.0, amsgrad=True, eps_before=False):
    """Xie et al., Algorithm 3."""

    def step(g, slots, p, t):
        *m, v, most = slots
        d, m = _momentum(g, m, t, b1, b0)
        v = b2 * v + (1 - b2) * g**2
        most = np.maximum(most, v) if amsgrad else v
        c = 1 - b2**t
        root = (np.sqrt(most + eps_root) + eps) / np.sqrt(c)
        if not eps_before:
            root = np.sqrt(most / c + eps_root) + eps
        return d / (1 - b1**t) / root, (*m, v, most)

    return Reference(zeros(4), step)

"""The rules of `gradxform/transforms/sophia.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def sophia(b1, b2, eps, gamma, clip, interval, diagonal, paper=False):
    """Liu et al., Algorithm 3; or m corrected, and the curvature of step t used at t + 1."""

    def step(g, slots, p, t):
        m, h = b1 * slots[0] + (1 - b1) * g, slots[1]
        if paper and (t - 1) % interval == 0:
            h = b2 * h + (1 - b2) * diagonal(p)
        if paper:
            return np.clip(m / np.maximum(gamma * h, eps), -clip, clip), (m, h)
        u = np.clip(m / (1 - b1**t) / np.maximum(gamma * h, eps), -clip, clip)
        if (t - 1) % interval == 0:
            h = b2 * h + (1 - b2) * diagonal(p)
        return u, (m, h)

    return Reference(zeros(2), step)

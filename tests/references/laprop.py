"""The rule of `gradxform/transforms/laprop.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def laprop(b1, b2, eps, amsgrad=False, eps_before=False):
    """Ziyin et al., Algorithm 1; with the largest v so far, or eps before the correction."""

    def step(g, slots, p, t):
        m, v, *largest = slots
        v = b2 * v + (1 - b2) * g**2
        squares = (v, *[np.maximum(h, v) for h in largest])
        correction = 1 - b2**t
        divisor = np.sqrt(squares[-1] / correction) + eps
        if eps_before:
            divisor = (np.sqrt(squares[-1]) + eps) / np.sqrt(correction)
        m = b1 * m + (1 - b1) * g / divisor
        return m / (1 - b1**t), (m, *squares)

    return Reference(zeros(3 if amsgrad else 2), step)

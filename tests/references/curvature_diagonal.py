"""Preconditioning by a diagonal in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def curvature_diagonal(diagonal, b2=0.99, damping=1e-4, power=1.0):
    """A Newton step with the average of a diagonal; Martens, section 4.7, for the power."""

    def step(g, slots, p, t):
        h = b2 * slots[0] + (1 - b2) * diagonal(p)
        return g / (np.maximum(h / (1 - b2**t), 0) ** power + damping), (h,)

    return Reference(zeros(1), step)

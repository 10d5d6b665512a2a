"""MARS in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def mars(b1, gamma, bound=1.0):
    """Yuan et al., Algorithm 1: c_t from two gradients, clipped to a norm of at most the bound."""

    def step(g, slots, p, t):
        last = g if t == 1 else slots[0]
        c = g + gamma * b1 / (1 - b1) * (g - last)
        size = np.linalg.norm(c)
        return c * (bound / size if size > bound else 1.0), (g,)

    return Reference(zeros(1), step)

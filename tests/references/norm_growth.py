"""The rule of `gradxform/transforms/norm_growth.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def norm_growth(growth, eps=1e-8):
    """Chen et al.: the norm grows by at most a factor."""

    def step(g, last, p, t):
        size = np.linalg.norm(g.ravel())
        u = g * min(1, growth * (last + eps) / size)
        return u, np.linalg.norm(u.ravel())

    return Reference(lambda p: np.inf, step)

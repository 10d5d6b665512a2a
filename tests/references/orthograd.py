"""OrthoGrad in NumPy float64."""

import numpy as np

from tests.references.base import stateless


def _orthograd(g, p, t):
    """Prieto et al., OrthoGrad."""
    h = g - p * np.sum(p * g) / np.sum(p**2)
    return 0 * g if g.size == 1 else h * np.linalg.norm(g) / np.linalg.norm(h)


orthograd = stateless(_orthograd)

"""AdamNorm in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def adanorm(b1, b2, r, eps, eps_root=0.0, amsgrad=False, eps_before=False):
    """Dubey et al., AdamNorm."""

    def step(g, slots, p, t):
        m, v, most, e = slots
        size = np.linalg.norm(g)
        e = r * e + (1 - r) * size
        m = b1 * m + (1 - b1) * (g * e / size if e > size > 0 else g)
        v = b2 * v + (1 - b2) * g**2
        most = np.maximum(most, v) if amsgrad else v
        c = 1 - b2**t
        root = (np.sqrt(most + eps_root) + eps) / np.sqrt(c)
        if not eps_before:
            root = np.sqrt(most / c + eps_root) + eps
        return m / (1 - b1**t) / root, (m, v, most, e)

    return Reference(lambda p: (*(np.zeros_like(p) for _ in range(3)), 0.0), step)

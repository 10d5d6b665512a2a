"""The rules of `gradxform/transforms/adago.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, value_at
from tests.references.orthogonal import newton_schulz, on_matrices


def adago(
    rate,
    beta=0.95,
    gamma=10.0,
    eps=5e-4,
    first=1e-6,
    nesterov=False,
    root=True,
    factor=1,
    ns_eps=1e-8,
):
    """Zhang et al., Algorithm 1; `factor` is a function of rows and columns, or 1."""

    def step(g, slots, p, t):
        m, total = slots
        m = beta * m + (1 - beta) * g
        a = beta * m + (1 - beta) * g if nesterov else m

        def one(g, a, total):
            total = total + min(np.linalg.norm(g), gamma) ** 2
            clipped = min(np.linalg.norm(a if nesterov else g), gamma)
            v = np.sqrt(total[0, 0]) if root else total[0, 0]
            f = factor(*g.shape) if callable(factor) else factor
            size = max(eps, value_at(rate, t - 1) * f * clipped / v)
            return size * newton_schulz(a, eps=ns_eps), total

        u, total = on_matrices(one, g, a, total)
        return u, (m, total)

    return Reference(lambda p: (np.zeros_like(p), np.full_like(p, first)), step)

"""The rule of `gradxform/transforms/aurora.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros
from tests.references.orthogonal import on_matrices
from tests.references.spectrum import SIMPLE, iterates


def aurora(beta=0.95, iterations=2, damping=0.5, eps=1e-8, nesterov=True, turns=SIMPLE):
    """Equal vectors along the longer side."""

    def one(a):
        if a.shape[0] > a.shape[1]:
            return one(a.T).T
        m, n = a.shape
        if m == n:
            return iterates(a, turns, eps)[-1]
        d = 1 / np.maximum(np.linalg.norm(a, axis=0), 1e-7)
        for k in range(iterations):
            u = iterates(a * d, turns, eps)[-1]
            if k + 1 < iterations:
                d = d * (m / n / np.sum(u**2, axis=0)) ** damping
        return u

    def step(g, slots, p, t):
        m = beta * slots[0] + (1 - beta) * g
        return on_matrices(one, beta * m + (1 - beta) * g if nesterov else m), (m,)

    return Reference(zeros(1), step)

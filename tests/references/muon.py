"""The rules of `gradxform/transforms/muon.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, stateless, zeros

STANDARD = [(3.4445, -4.7750, 2.0315)] * 5


def _newton_schulz(x, turns, eps):
    """Jordan et al.: X / (|X|_F + eps), then X <- a X + b (X X^T) X + c (X X^T)^2 X."""
    x = x / (np.linalg.norm(x) + eps)
    for a, b, c in turns:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def looks_ahead(m, g, beta, t, nesterov, debias):
    """The average that is orthogonalized."""
    now, then = (1 - beta**t, 1 - beta ** (t + 1)) if debias else (1, 1)
    return beta * m / then + (1 - beta) * g / now if nesterov else m / now


def muon(beta=0.95, turns=STANDARD, nesterov=True, columns=1, eps=1e-8, debias=True):
    """Jordan et al., with Adam's bias corrections, or without.

    Rows are axis 0, other axes than rows and columns are batches.
    """

    def step(g, slots, p, t):
        m = beta * slots[0] + (1 - beta) * g
        a = looks_ahead(m, g, beta, t, nesterov, debias)
        a = np.moveaxis(a, (0, columns), (-2, -1))
        u = np.empty_like(a)
        for i in np.ndindex(a.shape[:-2]):
            u[i] = _newton_schulz(a[i], turns, eps)
        return np.moveaxis(u, (-2, -1), (0, columns)), (m,)

    return Reference(zeros(1), step)


def shape_factor(consistent_rms=None):
    """Liu et al., (4); without it sqrt(max(1, columns / rows)), of the first and the last axis."""

    def f(g, p, t):
        n, k = g.shape[0], g.shape[-1]
        if consistent_rms is None:
            return g * np.sqrt(max(1, k / n))
        return g * consistent_rms * np.sqrt(max(n, k))

    return stateless(f)

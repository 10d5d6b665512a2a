"""The rules of `gradxform/transforms/scion.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, stateless, zeros
from tests.references.orthogonal import newton_schulz, on_matrices


def _lmo(norm, g):
    """Pethick et al., Tables 2 to 4, of a matrix (inputs, outputs); "rms" of any array."""
    if norm == "rms":
        return g / np.sqrt(np.mean(g**2))
    if norm == "convolution":  # (places, inputs, outputs)
        places, n, k = g.shape
        return np.sqrt(k / n) / places * newton_schulz(g.reshape(-1, k)).reshape(g.shape)
    n, k = g.shape
    if norm == "spectral":
        return np.sqrt(k / n) * newton_schulz(g)
    if norm == "sign":
        return np.sign(g) / n
    if norm == "inputs":
        return np.sqrt(k) * g / np.linalg.norm(g, axis=1, keepdims=True)
    return g / np.linalg.norm(g, axis=0) / np.sqrt(n)


def lmo(norm):
    """The step of norm 1; without "rms", of each matrix, with rows first and columns last."""

    def one(g, p, t):
        return _lmo(norm, g) if norm == "rms" else on_matrices(lambda x: _lmo(norm, x), g)

    return stateless(one)


def scion(rate, norm_of, radii, alpha=0.1, constrained=False):
    """Pethick et al., Algorithms 1 and 2."""

    def step(g, slots, p, t):
        d = (1 - alpha) * slots[0] + alpha * g
        norm = norm_of(p)
        u = -rate * radii[norm] * _lmo(norm, d)
        return u - rate * p if constrained else u, (d,)

    return Reference(zeros(1), step)

"""The rules of `gradxform/transforms/kept_norms.py` in NumPy float64."""

import numpy as np

from tests.references.base import stateless
from tests.references.orthogonal import on_matrices

NORMS = {
    "frobenius": np.linalg.norm,
    "spectral": lambda x: np.linalg.norm(x, 2),
    "rows": lambda x: np.linalg.norm(x, axis=1, keepdims=True),
    "columns": lambda x: np.linalg.norm(x, axis=0, keepdims=True),
}


def kept(norm):
    """A step, and back to the norm before it."""

    def one(g, p):
        return NORMS[norm](p) * (p + g) / NORMS[norm](p + g) - p

    return stateless(lambda g, p, t: on_matrices(one, g, p))


def norm_floor(ratio):
    """Steps of at least a share of the matrix."""

    def one(g, p):
        return g * max(1, ratio * np.linalg.norm(p) / np.linalg.norm(g))

    return stateless(lambda g, p, t: on_matrices(one, g, p))

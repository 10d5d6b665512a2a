"""The rules of `gradxform/transforms/stiefel.py` in NumPy float64."""

import numpy as np

from tests.references.base import stateless
from tests.references.orthogonal import on_matrices


def polar(x):
    """The orthogonal matrix nearest to a matrix, from its singular vectors."""
    left, _, right = np.linalg.svd(x, full_matrices=False)
    return left @ right


def polar_factors():
    """The nearest orthogonal matrix in place of every matrix."""
    return stateless(lambda g, p, t: on_matrices(polar, g))


def tangents():
    """Edelman et al., for X^T X = I: G - X (X^T G + G^T X) / 2; for rows of long ones alike."""

    def one(g, x):
        if len(x) <= x.shape[1]:
            return columns(g.T, x.T).T
        return columns(g, x)

    def columns(g, x):
        inner = x.T @ g
        return g - x @ (inner + inner.T) / 2

    return stateless(lambda g, p, t: on_matrices(one, g, p))


def kept_orthogonal(project=polar):
    """A step, and to the nearest orthogonal matrix."""
    return stateless(lambda g, p, t: on_matrices(lambda g, p: project(p + g) - p, g, p))

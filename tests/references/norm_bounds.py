"""The rules of `gradxform/wrappers/norm_bounds.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def variable_clipping(inner, dims_of, max_norm):
    """`dims_of(p)` returns the dimensions of the norm, or None to leave p alone."""

    def step(g, s, p, t):
        u, s = inner.step(g, s, p, t)
        dims = dims_of(p)
        if dims is None:
            return u, s
        after = p + u
        norm = np.sqrt(np.sum(after**2, axis=dims, keepdims=True))
        return after * max_norm / np.maximum(norm, max_norm) - p, s

    return Reference(inner.start, step)

"""The rules of `gradxform/transforms/adam_mini.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def adam_mini(b1, b2, eps, blocks_of=None):
    """Zhang et al., Algorithm 1.

    `blocks_of(g)` returns an array of the shape of g with the number of each entry's block. By
    default the index along the last axis, or 0 for vectors and scalars.
    """

    def last_axis(g):
        return np.zeros(g.shape, int) if g.ndim < 2 else np.indices(g.shape)[-1]

    def step(g, slots, p, t):
        m, v = slots
        blocks = (blocks_of or last_axis)(g)
        means = np.zeros(g.shape)
        for i in np.unique(blocks):
            means[blocks == i] = np.mean(g[blocks == i] ** 2)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * means
        return m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps), (m, v)

    return Reference(zeros(2), step)

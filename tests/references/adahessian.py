"""The rules of `gradxform/transforms/adahessian.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, stateless, zeros


def window_means(min_ndim=4):
    """Yao et al., equation (10): blocks are the windows of kernels, their last axes in and out."""

    def one(g, p, t):
        if g.ndim < min_ndim:
            return g
        return np.broadcast_to(g.mean(axis=tuple(range(g.ndim - 2)), keepdims=True), g.shape)

    return stateless(one)


def adahessian(b1, b2, eps, power, interval, diagonal):
    """Yao et al., Algorithm 1, with an estimate every `interval` steps."""

    def step(g, slots, p, t):
        m, v = b1 * slots[0] + (1 - b1) * g, slots[1]
        if (t - 1) % interval == 0:
            v = b2 * v + (1 - b2) * diagonal(p) ** 2
        estimates = (t - 1) // interval + 1
        size = np.sqrt(v / (1 - b2**estimates)) ** power
        return m / (1 - b1**t) / (size + eps), (m, v)

    return Reference(zeros(2), step)

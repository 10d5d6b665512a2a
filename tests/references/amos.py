"""Amos in NumPy float64."""

import numpy as np

from tests.references.base import Reference, value_at


def amos(rate, beta, eta=None, c_coef=0.25, d_coef=0.25, eps=1e-18, axis=None):
    """Tian and Parikh, Algorithm 1."""

    def step(g, slots, p, t):
        v, b = slots
        r = value_at(rate, t - 1)
        scale = 0.5 if p.ndim < 2 else np.sqrt((2 if p.ndim == 2 else 1) / p.shape[-2])
        scale = scale if eta is None else eta
        square = np.mean(g**2, axis=axis, keepdims=axis is not None)
        v = beta * v + (1 - beta) * square
        k = (1 - beta**t) / (v + eps)
        gamma = (1 + c_coef * np.sqrt(r) * b) ** -0.5 * r**2 * k * square
        d = 1 / (1 + d_coef * np.sqrt(r * scale) * b)
        return -d * (r * scale * np.sqrt(k) * g + gamma / 2 * p), (v, b + gamma * (1 + b))

    return Reference(lambda p: (0.0, 0.0), step)

"""Torque-aware momentum in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def _cosine(m, g, axis):
    if axis is None:
        size = np.linalg.norm(m) * np.linalg.norm(g)
        return np.sum(m * g) / size if size else 0.0
    along = (axis,) if g.ndim else ()
    sizes = [np.sqrt(np.sum(x**2, axis=along, keepdims=True)) for x in (m, g)]
    return m * g / np.where(sizes[0] * sizes[1] == 0, 1, sizes[0] * sizes[1])


def _start(p):
    return np.zeros_like(p), 0.0, np.zeros_like(p)


def tam(momentum, decay, eps, axis=None, first_gradient=False):
    """Malviya et al., TAM."""

    def step(g, slots, p, t):
        m, s, v = slots
        m = g if t == 1 and first_gradient else m
        s = decay * s + (1 - decay) * _cosine(m, g, axis)
        m = momentum * m + ((1 + s) / 2 + eps) * g
        return m, (m, s, v)

    return Reference(_start, step)


def adatam(b1, b2, decay, eps, axis=None):
    """Malviya et al., AdaTAM."""
    tam_step = tam(b1, decay, eps, axis).step

    def step(g, slots, p, t):
        m, (_, s, v) = tam_step(g, slots, p, t)
        v = b2 * v + (1 - b2) * g**2
        return m / (np.sqrt(v) + eps), (m, s, v)

    return Reference(_start, step)

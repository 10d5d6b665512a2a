"""The rules of `gradxform/wrappers/decay.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, value_at


def decoupled_weight_decay(inner, decay, rate=1.0, decays=lambda p: True):
    """Loshchilov and Hutter, Algorithm 1."""

    def step(g, s, p, t):
        u, s = inner.step(g, s, p, t)
        return u - value_at(rate, t - 1) * value_at(decay, t - 1) * p * decays(p), s

    return Reference(inner.start, step)


def cautious_weight_decay(inner, decay):
    """Chen et al., Algorithm 1; their step is minus ours."""

    def step(g, s, p, t):
        u, s = inner.step(g, s, p, t)
        return u - decay * np.where(-u * p >= 0, p, 0), s

    return Reference(inner.start, step)


def decay_first(inner, decay):
    """TensorFlow's order: the parameter shrinks, then the optimizer steps from there."""

    def step(g, s, p, t):
        shrunk = p - decay * p
        u, s = inner.step(g, s, shrunk, t)
        return shrunk + u - p, s

    return Reference(inner.start, step)

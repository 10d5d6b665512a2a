"""The rules of `gradxform/transforms/adaptive.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def rms(b, eps, start=0.0, inside=True, correct=False):
    """Hinton, lecture 6e, slide 29."""

    def step(g, slots, p, t):
        v = b * slots[0] + (1 - b) * g**2
        v_hat = v / (1 - b**t) if correct else v
        return g / (np.sqrt(v_hat + eps) if inside else np.sqrt(v_hat) + eps), (v,)

    return Reference(lambda p: (np.full_like(p, start),), step)


def stddev(b, eps, start=0.0, inside=True, correct=False):
    """Graves, (38-45): the second moment minus the square of the first."""

    def step(g, slots, p, t):
        m, v = slots
        m = b * m + (1 - b) * g
        v = b * v + (1 - b) * g**2
        c = 1 - b**t if correct else 1.0
        var = np.maximum(v / c - (m / c) ** 2, 0)
        return g / (np.sqrt(var + eps) if inside else np.sqrt(var) + eps), (m, v)

    return Reference(lambda p: (np.zeros_like(p), np.full_like(p, start)), step)


def adagrad(start, eps):
    """Duchi et al., Figure 1, diagonal."""

    def step(g, slots, p, t):
        s = slots[0] + g**2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(s > 0, g / np.sqrt(s + eps), 0), (s,)

    return Reference(lambda p: (np.full_like(p, start),), step)


def adagrad_outside(start, eps):
    """Keras Adagrad."""

    def step(g, slots, p, t):
        s = slots[0] + g**2
        return g / (np.sqrt(s) + eps), (s,)

    return Reference(lambda p: (np.full_like(p, start),), step)


def adagrad_keeping(start):
    """RegAdagrad inside avoid_updating_slots."""
    return Reference(lambda p: (np.full_like(p, start),), lambda g, s, p, t: (g / np.sqrt(s[0]), s))


def adadelta(rho, eps):
    """Zeiler, Algorithm 1, without the minus."""

    def step(g, slots, p, t):
        v, x = slots
        v = rho * v + (1 - rho) * g**2
        u = np.sqrt(x + eps) / np.sqrt(v + eps) * g
        return u, (v, rho * x + (1 - rho) * u**2)

    return Reference(zeros(2), step)


def kate(delta, eps):
    """Choudhury et al., Algorithm 1, with the eps of the authors' code."""

    def step(g, slots, p, t):
        b = np.sqrt(slots[0] ** 2 + g**2 + eps)
        m = np.sqrt(slots[1] ** 2 + delta * g**2 + g**2 / b**2)
        return m * g / b**2, (b, m)

    return Reference(zeros(2), step)

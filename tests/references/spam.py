"""The rules of `gradxform/transforms/spam.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, stateless, zeros


def second_moment_clip(threshold, b2, start, every=None):
    """Huang et al., SPAM, Algorithm 1: spikes become sign(g) sqrt(threshold v)."""

    def step(g, slots, p, t):
        (v,) = slots
        since = t if every is None or t < every else t % every
        spike = (g**2 > threshold * v) & (v > 0) & (since >= start)
        g = np.where(spike, np.sign(g) * np.sqrt(threshold * v), g)
        return g, (b2 * v + (1 - b2) * g**2,)

    return Reference(zeros(1), step)


def adaclip(theta):
    """Huang et al., Stable-SPAM, AdaClip."""

    def step(g, M, p, t):
        G = np.max(np.abs(g), initial=0)
        M = theta * M + (1 - theta) * G
        X = M / (1 - theta**t)
        return np.where(np.abs(g) > X, g / G * X, g), M

    return Reference(lambda p: 0.0, step)


def adagn(gamma1, gamma2, eps):
    """Huang et al., Stable-SPAM, AdaGN."""

    def step(g, slots, p, t):
        a, b = slots
        size = np.linalg.norm(g.ravel())
        a, b = gamma1 * a + (1 - gamma1) * size, gamma2 * b + (1 - gamma2) * size**2
        a_hat, b_hat = a / (1 - gamma1**t), b / (1 - gamma2**t)
        return g / size * a_hat / (np.sqrt(b_hat) + eps), (a, b)

    return Reference(lambda p: (0.0, 0.0), step)


def climb(every, warmup, first=0.01):
    """Huang et al., SPAM: along a cosine after every reset."""

    def factor(t):
        if t < every or t % every >= warmup:
            return 1.0
        return 1 - (1 - first) * (1 + np.cos(np.pi * (t % every + 1) / (warmup + 1))) / 2

    return stateless(lambda g, p, t: factor(t) * g)

"""The rules of `gradxform/transforms/toward_sgd.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def _moments(g, slots, b1, b2, largest):
    m, v, h = slots
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    return m, v, np.maximum(h, v) if largest else v


def padam(b1, b2, eps, power, largest=True, correct=False):
    """Chen et al., Algorithm 1; with the corrections of the authors' code if asked for."""

    def step(g, slots, p, t):
        m, v, h = _moments(g, slots, b1, b2, largest)
        k = np.sqrt(1 - b2**t) / (1 - b1**t) if correct else 1
        return k * m / (np.sqrt(h) + eps) ** (2 * power), (m, v, h)

    return Reference(zeros(3), step)


def adabound(b1, b2, eps, last, gamma, largest=False, correct=True, eps_root=0.0):
    """Luo et al., Algorithms 2 and 3, relative to the rate; with the authors' corrections."""

    def step(g, slots, p, t):
        m, v, h = _moments(g, slots, b1, b2, largest)
        k = np.sqrt(1 - b2**t) / (1 - b1**t) if correct else 1
        low, high = last * (1 - 1 / (gamma * t + 1)), last * (1 + 1 / (gamma * t))
        return np.clip(k / (np.sqrt(h + eps_root) + eps), low, high) * m, (m, v, h)

    return Reference(zeros(3), step)

"""The rules of `gradxform/transforms/sign.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, stateless, zeros

sign = stateless(lambda g, p, t: np.sign(g))


def lion(b1, b2, shape=np.sign):
    """Chen et al., Algorithm 2."""

    def step(g, slots, p, t):
        m = slots[0]
        return shape(b1 * m + (1 - b1) * g), (b2 * m + (1 - b2) * g,)

    return Reference(zeros(1), step)


def focus(b1, b2, gamma, decay=0.0):
    """Liu et al., Algorithm 1; at first the average is p, which rounding must not hide."""

    def step(g, slots, p, t):
        m = b1 * slots[0] + (1 - b1) * g
        total = b2 * slots[1] + (1 - b2) * p
        q = total / (1 - b2**t) if t > 1 else p
        return np.sign(m) + gamma * np.sign(p - q) + decay * q, (m, total)

    return Reference(zeros(2), step)

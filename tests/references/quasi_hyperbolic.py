"""The rules of `gradxform/transforms/quasi_hyperbolic.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def qhm(b, nu):
    """Ma and Yarats, equations (3) and (4), without the learning rate."""

    def step(g, slots, p, t):
        m = b * slots[0] + (1 - b) * g
        return (1 - nu) * g + nu * m, (m,)

    return Reference(zeros(1), step)


def qhadam(b1, b2, nu1, nu2, eps):
    """Ma and Yarats, section 5."""

    def step(g, slots, p, t):
        m = b1 * slots[0] + (1 - b1) * g
        v = b2 * slots[1] + (1 - b2) * g**2
        m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
        top = (1 - nu1) * g + nu1 * m_hat
        return top / (np.sqrt((1 - nu2) * g**2 + nu2 * v_hat) + eps), (m, v)

    return Reference(zeros(2), step)

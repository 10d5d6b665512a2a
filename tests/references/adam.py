"""The rules of `gradxform/transforms/adam.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def adam(b1, b2, eps, eps_root=0.0, nesterov=False):
    """Kingma and Ba, Algorithm 1; nesterov: Dozat, with constant mu (equations 4 and 5)."""

    def step(g, slots, p, t):
        m, v = slots
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        return m_hat / (np.sqrt(v / (1 - b2**t) + eps_root) + eps), (m, v)

    return Reference(zeros(2), step)


def amsgrad(b1, b2, eps, correct_m=True, correct_v=True, eps_root=0.0):
    """Reddi et al., Algorithm 2, with corrections if asked for."""

    def step(g, slots, p, t):
        m, v, h = slots
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        h = np.maximum(h, v / (1 - b2**t) if correct_v else v)
        m_hat = m / (1 - b1**t) if correct_m else m
        return m_hat / (np.sqrt(h + eps_root) + eps), (m, v, h)

    return Reference(zeros(3), step)


def torch_amsgrad(b1, b2, eps, eps_root=0.0):
    """PyTorch's Adam with amsgrad: the largest uncorrected v, its root corrected before eps."""

    def step(g, slots, p, t):
        m, v, h = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        h = np.maximum(h, v)
        return m / (1 - b1**t) / (np.sqrt(h / (1 - b2**t) + eps_root) + eps), (m, v, h)

    return Reference(zeros(3), step)


def keras_amsgrad(b1, b2, eps, eps_root=0.0):
    """Keras Adam with amsgrad: the largest uncorrected v, the learning rate corrected."""

    def step(g, slots, p, t):
        m, v, h = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        h = np.maximum(h, v)
        return np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(h + eps_root) + eps), (m, v, h)

    return Reference(zeros(3), step)


def keras_nadam(b1, b2, eps, schedule_decay):
    """Keras Nadam: a momentum that warms up, and the product of all of them."""

    def mu(t):
        return b1 * (1 - 0.5 * 0.96 ** (schedule_decay * t))

    def step(g, slots, p, t):
        m, v = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        product = np.prod([mu(k) for k in range(1, t + 1)])
        bar = (1 - mu(t)) * g / (1 - product) + mu(t + 1) * m / (1 - product * mu(t + 1))
        return bar / (np.sqrt(v / (1 - b2**t)) + eps), (m, v)

    return Reference(zeros(2), step)

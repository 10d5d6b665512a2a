"""The rules of `gradxform/transforms/adam_kin.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def belief(b1, b2, eps, eps_root, nesterov=False, amsgrad=False, threshold=None):
    """Zhuang et al., Algorithm 2; rectified, Liu et al., Algorithm 2, with this divisor."""

    def step(g, slots, p, t):
        m, s, *largest = slots
        m = b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * (g - m) ** 2 + eps_root
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        slots = (m, s, *[np.maximum(h, s) for h in largest])
        c = 1 if threshold is None else rectified(b2, t, threshold)
        if c is None:
            return m_hat, slots
        return c * m_hat / (np.sqrt(slots[-1] / (1 - b2**t)) + eps), slots

    return Reference(zeros(3 if amsgrad else 2), step)


def yogi(b1, b2, eps, eps_root=0.0, first=1e-6):
    """Zaheer et al., Algorithm 2, with Adam's corrections."""

    def step(g, slots, p, t):
        m, v = slots
        m = b1 * m + (1 - b1) * g
        v = v - (1 - b2) * np.sign(v - g**2) * g**2
        return m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t) + eps_root) + eps), (m, v)

    return Reference(lambda p: (np.full_like(p, first), np.full_like(p, first)), step)


def adamax(b1, b2, eps, inside=True):
    """Kingma and Ba, Algorithm 2, with an eps inside the maximum or outside."""

    def step(g, slots, p, t):
        m, v = slots
        m = b1 * m + (1 - b1) * g
        v = np.maximum(b2 * v, np.abs(g) + (eps if inside else 0))
        return m / (1 - b1**t) / (v if inside else v + eps), (m, v)

    return Reference(zeros(2), step)


def rectified(b2, t, threshold):
    """Return the factor c of Liu et al., Algorithm 2; None before the threshold."""
    r_inf = 2 / (1 - b2) - 1
    r = r_inf - 2 * t * b2**t / (1 - b2**t)
    if r < threshold:
        return None
    return np.sqrt((r - 4) * (r - 2) * r_inf / ((r_inf - 4) * (r_inf - 2) * r))


def radam(b1, b2, eps, threshold=5.0, nesterov=False, eps_root=0.0, eps_before=False):
    """Liu et al., Algorithm 2; PyTorch adds eps before the correction of the root."""

    def step(g, slots, p, t):
        m, v = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        c = rectified(b2, t, threshold)
        if c is None:
            return m_hat, (m, v)
        if eps_before:
            return c * m_hat * np.sqrt(1 - b2**t) / (np.sqrt(v + eps_root) + eps), (m, v)
        return c * m_hat / (np.sqrt(v / (1 - b2**t) + eps_root) + eps), (m, v)

    return Reference(zeros(2), step)

"""The rule of `gradxform/transforms/muown.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference
from tests.references.orthogonal import newton_schulz


def muown(lr, beta=0.95, b1=0.9, b2=0.95, decay=0.0, adam_eps=1e-8, ahead=False, rms=0.2, eps=1e-8):
    """Lion et al.: columns s_j V_j / |V_j|; V by Muon, s by Adam, both kept as variables."""

    def turned(x):
        return np.moveaxis(x, (0, -1), (-2, -1))

    def norms(x):
        return np.linalg.norm(x, axis=-2, keepdims=True)

    def start(p):
        v = turned(p)
        s = norms(v)
        return v, s, np.zeros_like(v), np.zeros_like(s), np.zeros_like(s)

    def step(g, slots, p, t):
        v, s, m, mu, nu = slots
        rate, g, p = lr(t - 1) if callable(lr) else lr, turned(g), turned(p)
        # The chain rule, of W = s V / |V|.
        unit = v / norms(v)
        of_s = np.sum(g * unit, axis=-2, keepdims=True)
        of_v = s / norms(v) * (g - unit * of_s)
        m = beta * m + (1 - beta) * of_v
        a = beta * m + (1 - beta) * of_v if ahead else m
        n, k = a.shape[-2:]
        factor = np.sqrt(max(1, k / n)) if rms is None else rms * np.sqrt(max(n, k))
        o = np.empty_like(a)
        for i in np.ndindex(a.shape[:-2]):
            o[i] = newton_schulz(a[i], eps=eps)
        v = v - rate * factor * o
        mu = b1 * mu + (1 - b1) * of_s
        nu = b2 * nu + (1 - b2) * of_s**2
        s = s - rate * (mu / (1 - b1**t)) / (np.sqrt(nu / (1 - b2**t)) + adam_eps)
        s = s - rate * decay * s
        u = s * v / norms(v) - p
        return np.moveaxis(u, (-2, -1), (0, u.ndim - 1)), (v, s, m, mu, nu)

    return Reference(start, step)

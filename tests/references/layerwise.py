"""The rules of `gradxform/transforms/layerwise.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, stateless, value_at


def trust_ratio(coefficient, eps, min_norm, most=np.inf, max_norm=np.inf):
    """LARS, (6), and LAMB, Algorithm 2."""

    def f(g, p, t):
        p_norm = min(max(np.linalg.norm(p.ravel()), min_norm), max_norm)
        g_norm = max(np.linalg.norm(g.ravel()), min_norm)
        if p_norm == 0 or g_norm == 0:
            return g
        return g * min(coefficient * p_norm / (g_norm + eps), most)

    return stateless(f)


def lars_sum(wd, coefficient, eps, selected=lambda p: True):
    """The contrib LARS ratio, without learning rate and momentum."""

    def f(g, p, t):
        if not selected(p):
            return g
        size_p, size_g = np.sqrt(np.sum(p**2)), np.sqrt(np.sum(g**2))
        ratio = 1.0
        if size_p > 0 and size_g > 0:
            ratio = coefficient * size_p / (size_g + wd * size_p + eps)
        return ratio * (g + wd * p)

    return stateless(f)


def block_norm(least=1e-3):
    """Times the norm of the parameter."""
    return stateless(lambda g, p, t: g * max(np.linalg.norm(p.ravel()), least))


def block_rms(least=1e-3):
    """Shazeer and Stern, section 8: times the root mean square of the parameter."""
    return stateless(lambda g, p, t: g * max(np.sqrt(np.mean(p**2)), least))


def novograd(b1, b2, eps, eps_root=0.0, decay=0.0):
    """Ginsburg et al., Algorithm 1."""

    def step(g, slots, p, t):
        m, v = slots
        size = np.sum(g**2)
        v = size if t == 1 else b2 * v + (1 - b2) * size
        m = b1 * m + g / (np.sqrt(v + eps_root) + eps) + value_at(decay, t - 1) * p
        return m, (m, v)

    return Reference(lambda p: (np.zeros_like(p), 0.0), step)


def shrink(rate):
    """Bernstein et al., Algorithm 1: w <- (w + step) / sqrt(1 + eta^2)."""
    return stateless(lambda g, p, t: (p + g) / np.sqrt(1 + value_at(rate, t - 1) ** 2) - p)


def first_snr(eps):
    """Xu et al.: |g| / sd(g) of the first gradient; |g| for vectors."""

    def step(g, G, p, t):
        if t == 1:
            G = np.linalg.norm(g.ravel())
            G = G / (np.std(g, ddof=1) + eps) if g.ndim > 1 else G
        return G * g, G

    return Reference(lambda p: 0.0, step)


def norm_loss(factor, axes):
    """Georgiou et al.: the gradient of factor (|p| - 1)^2 per unit."""

    def f(g, p, t):
        size = np.sqrt(np.sum(p**2, axis=axes(p), keepdims=True))
        return g + 2 * factor * (size - 1) * p / size

    return stateless(f)

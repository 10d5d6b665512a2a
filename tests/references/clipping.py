"""The rules of `gradxform/transforms/clipping.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, norm, stateless


def clip(limit):
    """Entry by entry."""
    return stateless(lambda g, p, t: np.clip(g, -limit, limit))


def clip_by_block_rms(threshold):
    """Adafactor, section 6: g / max(1, RMS(g) / d)."""

    def f(g, p, t):
        rms = np.sqrt(np.mean(g**2)) if g.size else 0.0
        return g / max(1.0, rms / threshold)

    return stateless(f)


def clip_by_global_norm(limit, eps=0.0):
    """Pascanu et al., Algorithm 1: if |g| >= limit, g <- limit / |g| g; PyTorch adds eps to |g|."""

    def step(gs, state, ps, t):
        size = norm(gs) + eps
        return [g * limit / size for g in gs] if size >= limit else gs, state

    return TreeReference(lambda ps: None, step)


def clip_by_previous_global_norm(limit):
    """The factor of `clip_by_global_norm` for the gradients of the step before."""

    def step(gs, size, ps, t):
        return [g * (limit / max(size, limit)) for g in gs], norm(gs)

    return TreeReference(lambda ps: 0.0, step)


def adaptive_grad_clip(clipping, eps, axes):
    """Brock et al., (3), unit by unit: if |G_i| / max(|W_i|, eps) > clipping, scale to it."""

    def f(g, p, t):
        axis = axes(g)
        g_norm = np.sqrt(np.sum(g**2, axis=axis, keepdims=True))
        p_norm = np.maximum(np.sqrt(np.sum(p**2, axis=axis, keepdims=True)), eps)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(g_norm / p_norm > clipping, clipping * p_norm / g_norm * g, g)

    return stateless(f)


def clip_by_block_norm(limit):
    """Keras clipnorm."""
    return stateless(lambda g, p, t: g * limit / max(np.sqrt(np.sum(g**2)), limit))

"""The rules of `gradxform/transforms/normalization.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, norm, stateless


def normalize_by_update_norm(factor, eps):
    """G / (|g| + eps) times the factor."""

    def step(gs, state, ps, t):
        return [factor * g / (norm(gs) + eps) for g in gs], state

    return TreeReference(lambda ps: None, step)


def normalize_adaptively(eta):
    """Kwon et al., (9) with rho = 1: T^2 g / |T g| for T = |w| + eta."""

    def step(gs, state, ps, t):
        sizes = [np.abs(p) + eta for p in ps]
        whole = norm([size * g for size, g in zip(sizes, gs, strict=True)])
        return [size**2 * g / whole for size, g in zip(sizes, gs, strict=True)], state

    return TreeReference(lambda ps: None, step)


def centralize(g, p, t, axis=0):
    """Yong et al., (1): minus the mean of each output's weights."""
    if axis and g.ndim:
        return np.moveaxis(centralize(np.moveaxis(g, axis, 0), p, t), 0, axis)
    if g.ndim < 2 or not g.size:
        return g
    flat = g.reshape(g.shape[0], -1)
    return (flat - flat.mean(axis=1, keepdims=True)).reshape(g.shape)


def block_normalized(scale=1.0, least=1e-6):
    """RETURNN NormalizedSGD without the learning rate."""
    return stateless(lambda g, p, t: scale * g / np.sqrt(max(np.sum(g**2), least**2)))


def over_std(g, eps):
    if g.size < 3:
        return g
    return g / (max(np.std(g, ddof=1), 1e-4 * np.max(np.abs(g))) + eps)


def block_std(eps):
    """Gradients over their standard deviation, as in the code of Ranger21."""
    return stateless(lambda g, p, t: over_std(g, eps))

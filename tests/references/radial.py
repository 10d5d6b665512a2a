"""AdamP's projection in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, as_tree


def _rows(x, axis):
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)


def _tangential(u, g, p, delta, eps, rows):
    """Heo et al.: the update at right angles to rows, or None."""
    u, g, p = map(rows, (u, g, p))
    size_p = np.linalg.norm(p, axis=1, keepdims=True)
    size_g = np.linalg.norm(g, axis=1, keepdims=True)
    cos = np.sum(g * p, axis=1, keepdims=True) / np.maximum(size_p, eps) / np.maximum(size_g, eps)
    if not np.max(np.abs(cos)) < delta / np.sqrt(p.shape[1]):
        return None
    n = p / (size_p + eps)
    return u - n * np.sum(n * u, axis=1, keepdims=True)


def remove_radial(inner, delta, wd_ratio, decay=0.0, eps=1e-8, axis=-1, decays=lambda p: True):
    """Heo et al., Algorithms 1-2, after the direction: rows by output, then all as one row."""
    rule = as_tree(inner)

    def changed(u, g, p):
        w = decay if decays(p) else 0.0
        if p.ndim < 2:
            return u + w * p
        moved = np.moveaxis(p, axis, 0).shape
        for rows in (lambda x: _rows(x, axis), lambda x: np.moveaxis(x, axis, 0).reshape(1, -1)):
            new = _tangential(u, g, p, delta, eps, rows)
            if new is not None:
                return np.moveaxis(new.reshape(moved), 0, axis) + wd_ratio * w * p
        return u + w * p

    def step(gs, state, ps, t):
        us, state = rule.step(gs, state, ps, t)
        return [changed(*row) for row in zip(us, gs, ps, strict=True)], state

    return TreeReference(rule.start, step)

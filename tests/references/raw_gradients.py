"""The rules of `gradxform/compat/returnn/raw_gradients.py`."""

import numpy as np

from tests.references.base import TreeReference, norm, stateless


def clip_by_mean_norm(most):
    """RETURNN's gradient_clip_avg_norm."""
    return stateless(lambda g, p, t: g * min(g.size / np.sqrt(np.sum(g**2)) * most, 1))


def zero_non_finite():
    return stateless(lambda g, p, t: np.where(np.isfinite(g), g, 0))


def raw_norm(then):
    """`then(gs, N)` returns the updates, with N the norm of the raw gradients."""
    return TreeReference(lambda ps: None, lambda gs, state, ps, t: (then(gs, norm(gs)), state))


def clip_by_raw_norm(most):
    return raw_norm(lambda gs, size: [g * most / max(size, most) for g in gs])


def zero_above_raw_norm(most):
    return raw_norm(lambda gs, size: [g if size <= most else 0 * g for g in gs])


def clipped_by_entry_and_raw_norm(entry, most):
    def then(gs, size):
        return [np.clip(g, -entry, entry) * most / max(size, most) for g in gs]

    return raw_norm(then)

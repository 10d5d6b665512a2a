"""The rules of the foundation."""

import numpy as np

from tests.references.base import Reference, TreeReference, as_tree, stateless, zeros

identity = stateless(lambda g, p, t: g)
set_to_zero = stateless(lambda g, p, t: 0 * g)
sign = stateless(lambda g, p, t: np.sign(g))
zero_nans = stateless(lambda g, p, t: np.where(np.isnan(g), 0, g))
nonnegative = stateless(lambda g, p, t: np.maximum(p + g, 0) - p)


def scale(factor):
    """Factor times g; the factor may be a function of the number of earlier steps."""
    value = factor if callable(factor) else lambda n: factor
    return stateless(lambda g, p, t: value(t - 1) * g)


def decay(wd, selected=lambda p: True):
    """Weight decay."""
    value = wd if callable(wd) else lambda n: wd
    return stateless(lambda g, p, t: g + value(t - 1) * p if selected(p) else g)


def clip(limit):
    """Entry by entry."""
    return stateless(lambda g, p, t: np.clip(g, -limit, limit))


def clip_by_block_rms(threshold):
    """Adafactor, section 6: g / max(1, RMS(g) / d)."""

    def f(g, p, t):
        rms = np.sqrt(np.mean(g**2)) if g.size else 0.0
        return g / max(1.0, rms / threshold)

    return stateless(f)


def _norm(gs):
    return np.sqrt(sum(np.sum(g**2) for g in gs))


def clip_by_global_norm(limit):
    """Pascanu et al., Algorithm 1: if |g| >= limit, g <- limit / |g| g."""

    def step(gs, state, ps, t):
        norm = _norm(gs)
        return [g * limit / norm for g in gs] if norm >= limit else gs, state

    return TreeReference(lambda ps: None, step)


def normalize_by_update_norm(factor, eps):
    """G / (|g| + eps) times the factor."""

    def step(gs, state, ps, t):
        return [factor * g / (_norm(gs) + eps) for g in gs], state

    return TreeReference(lambda ps: None, step)


def adaptive_grad_clip(clipping, eps, axes):
    """Brock et al., (3), unit by unit: if |G_i| / max(|W_i|, eps) > clipping, scale to it."""

    def f(g, p, t):
        axis = axes(g)
        g_norm = np.sqrt(np.sum(g**2, axis=axis, keepdims=True))
        p_norm = np.maximum(np.sqrt(np.sum(p**2, axis=axis, keepdims=True)), eps)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(g_norm / p_norm > clipping, clipping * p_norm / g_norm * g, g)

    return stateless(f)


def centralize(g, p, t):
    """Yong et al., (1): minus the mean of each output's weights."""
    if g.ndim < 2 or not g.size:
        return g
    flat = g.reshape(g.shape[0], -1)
    return (flat - flat.mean(axis=1, keepdims=True)).reshape(g.shape)


def trust_ratio(coefficient, eps, min_norm):
    """LARS, (6), and LAMB, Algorithm 2."""

    def f(g, p, t):
        p_norm = max(np.linalg.norm(p.ravel()), min_norm)
        g_norm = max(np.linalg.norm(g.ravel()), min_norm)
        if p_norm == 0 or g_norm == 0:
            return g
        return g * coefficient * p_norm / (g_norm + eps)

    return stateless(f)


def trace(mu, nesterov=False):
    """Sutskever et al., (1-4), without the learning rate."""

    def step(g, slots, p, t):
        m = mu * slots[0] + g
        return (mu * m + g if nesterov else m), (m,)

    return Reference(zeros(1), step)


def ema(b, debias):
    """A moving average; debiased as in Adam, section 3."""

    def step(g, slots, p, t):
        m = b * slots[0] + (1 - b) * g
        return (m / (1 - b**t) if debias else m), (m,)

    return Reference(zeros(1), step)


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


def rms(b, eps, start=0.0, inside=True, correct=False):
    """Hinton, lecture 6e, slide 29."""

    def step(g, slots, p, t):
        v = b * slots[0] + (1 - b) * g**2
        v_hat = v / (1 - b**t) if correct else v
        return g / (np.sqrt(v_hat + eps) if inside else np.sqrt(v_hat) + eps), (v,)

    return Reference(lambda p: (np.full_like(p, start),), step)


def stddev(b, eps, start=0.0, inside=True, correct=False):
    """Graves, (38-45): the second moment minus the square of the first."""

    def step(g, slots, p, t):
        m, v = slots
        m = b * m + (1 - b) * g
        v = b * v + (1 - b) * g**2
        c = 1 - b**t if correct else 1.0
        var = np.maximum(v / c - (m / c) ** 2, 0)
        return g / (np.sqrt(var + eps) if inside else np.sqrt(var) + eps), (m, v)

    return Reference(lambda p: (np.zeros_like(p), np.full_like(p, start)), step)


def adagrad(start, eps):
    """Duchi et al., Figure 1, diagonal."""

    def step(g, slots, p, t):
        s = slots[0] + g**2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(s > 0, g / np.sqrt(s + eps), 0), (s,)

    return Reference(lambda p: (np.full_like(p, start),), step)


def lion(b1, b2, shape=np.sign):
    """Chen et al., Algorithm 2."""

    def step(g, slots, p, t):
        m = slots[0]
        return shape(b1 * m + (1 - b1) * g), (b2 * m + (1 - b2) * g,)

    return Reference(zeros(1), step)


def lookahead(inner, period, alpha):
    """Zhang et al., Algorithm 1; the state holds the slow weights."""
    fast = as_tree(inner)

    def start(ps):
        return fast.start(ps), [p.copy() for p in ps]

    def step(gs, state, ps, t):
        fast_state, slow = state
        us, fast_state = fast.step(gs, fast_state, ps, t)
        if t % period == 0:
            slow = [s + alpha * (p + u - s) for s, p, u in zip(slow, ps, us, strict=True)]
            us = [s - p for s, p in zip(slow, ps, strict=True)]
        return us, (fast_state, slow)

    return TreeReference(start, step)


def every(inner, k, mean=True):
    """One step of the inner rule on the mean (or sum) of k gradients; zeros between."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        inner_state, seen = state
        seen = [*seen, gs]
        if len(seen) < k:
            return [np.zeros_like(g) for g in gs], (inner_state, seen)
        total = [sum(column) / (k if mean else 1) for column in zip(*seen, strict=True)]
        us, inner_state = part.step(total, inner_state, ps, t // k)
        return us, (inner_state, [])

    return TreeReference(lambda ps: (part.start(ps), []), step)

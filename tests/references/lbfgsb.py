"""L-BFGS-B with B as a matrix, a trial of its line search at each step, in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference
from tests.references.lbfgs import flat, like
from tests.references.more_thuente import more_thuente


def matrix(pairs, n):
    """B of BFGS, pair by pair."""
    if not pairs:
        return np.eye(n)
    s, y = pairs[-1]
    b = y @ y / (s @ y) * np.eye(n)
    for s, y in pairs:
        bs = b @ s
        b = b - np.outer(bs, bs) / (s @ bs) + np.outer(y, y) / (s @ y)
    return b


def cauchy(x, g, b, low, high):
    """Byrd et al., 1995, section 4: segment by segment along the projected gradient."""
    with np.errstate(divide="ignore", invalid="ignore"):
        breaks = np.where(g < 0, (x - high) / g, np.where(g > 0, (x - low) / g, np.inf))
    z, last = x.copy(), 0.0
    for t in [*sorted(set(breaks[(breaks > 0) & (breaks < np.inf)])), np.inf]:
        d = np.where(breaks > last, -g, 0.0)
        if not d.any():
            break
        slope, curvature = (g + b @ (z - x)) @ d, d @ b @ d
        length = max(-slope / curvature, 0.0)
        if length < t - last:
            return z + length * d
        z, last = np.where(breaks <= t, np.where(g < 0, high, low), x - t * g), t
    return z


def target(x, g, b, low, high):
    """The minimum over the free entries of the Cauchy point, projected; or the step cut short."""
    z = cauchy(x, g, b, low, high)
    free = (z > low) & (z < high)
    step = np.zeros_like(x)
    step[free] = -np.linalg.solve(b[np.ix_(free, free)], (g + b @ (z - x))[free])
    end = np.clip(z + step, low, high)
    if (end - x) @ g > 0:
        end = np.clip(z + min(1, _room(z, step, low, high)) * step, low, high)
    return end


def lbfgsb(value_of, memory_size=10, lower=-np.inf, upper=np.inf, tol=0.0):
    """`value_of(gs, ps)` is the loss that the update is given."""

    def step(gs, state, ps, t):
        p, g, f = flat(ps), flat(gs), value_of(gs, ps)
        accepts, pairs = t == 1, ()
        if t > 1:
            x, last_g, e, pairs, search = state
            if _has_converged(x, last_g, lower, upper, tol):
                return like(x - p, gs), state
            try:
                at = search.send((f, g @ (e - x)))
            except StopIteration as end:
                assert end.value, "the search failed"
                accepts, pairs = True, (*pairs, (p - x, g - last_g))[-memory_size:]
        if accepts:
            x, last_g = p, g
            e = target(p, g, matrix(pairs, len(p)), lower, upper)
            d = e - p
            is_boxed = np.isfinite(lower) and np.isfinite(upper)
            first = 1 if pairs or is_boxed else min(1, 1 / np.linalg.norm(d))
            search = more_thuente(f, g @ d, first, _largest(p, d, lower, upper, not pairs))
            at = 0 if _has_converged(x, g, lower, upper, tol) else next(search)
        return like(x + at * (e - x) - p, gs), (x, last_g, e, pairs, search)

    return TreeReference(lambda ps: None, step)


def _has_converged(x, g, low, high, tol):
    return np.linalg.norm(x - np.clip(x - g, low, high)) <= tol


def _largest(x, d, low, high, is_begin):
    if not np.isfinite(low) and not np.isfinite(high):
        return 1e10
    return 1.0 if is_begin else min(_room(x, d, low, high), 1e10)


def _room(x, d, low, high):
    """How far all entries can go along d."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(d > 0, (high - x) / d, np.where(d < 0, (low - x) / d, np.inf)).min()

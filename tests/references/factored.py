"""The rules of `gradxform/transforms/factored.py` in NumPy float64."""

import functools

import numpy as np

from tests.references.base import Reference


def factored_rms(exponent=0.8, epsilon=1e-30, smallest=128, offset=0, last_axes=False):
    """Shazeer and Stern, Algorithms 4 and 5, with decay 1 - t^-0.8 (section 7.2)."""

    def start(p):
        return (np.zeros_like(p),)  # the whole second moment: means of it are means of its terms

    def step(g, slots, p, t):
        b = 1 - max(t - offset, 1) ** -exponent
        v = b * slots[0] + (1 - b) * (g**2 + epsilon)
        axes = sorted(range(g.ndim), key=lambda k: g.shape[k])[-2:]
        if last_axes:
            axes = [g.ndim - 2, g.ndim - 1]
        if g.ndim < 2 or g.shape[axes[0]] < smallest:
            return g / np.sqrt(v), (v,)
        second, first = axes
        r, c = v.mean(axis=first, keepdims=True), v.mean(axis=second, keepdims=True)
        return g / np.sqrt(r * c / r.mean(axis=second, keepdims=True)), (v,)

    return Reference(start, step)


def sm3(b1, b2=1.0, eps=1e-8):
    """Anil et al., SM3-II: one maximum for each index of each axis."""

    def start(p):
        return [np.zeros(n) for n in p.shape or (1,)], np.zeros_like(p)

    def step(g, slots, p, t):
        maxima, m = slots
        least = functools.reduce(np.minimum, np.ix_(*maxima)).reshape(g.shape)
        s = b2 * least + (1 if b2 == 1 else 1 - b2) * g**2
        with np.errstate(divide="ignore", invalid="ignore"):
            m = b1 * m + (1 - b1) * np.where(s > 0, g / np.sqrt(s + eps), 0)
        axes = range(g.ndim)
        found = [s.max(axis=tuple(k for k in axes if k != j)) for j in axes]
        return m, (found or [s.reshape(1)], m)

    return Reference(start, step)

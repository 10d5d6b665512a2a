"""Adai in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, blank


def adai(b0, b2, eps, damping=1.0):
    """Xie et al., Adai; with damping as in the authors' code."""

    def step(gs, state, ps, t):
        ms, vs, products = state
        vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, gs, strict=True)]
        hats = [v / (1 - b2**t) for v in vs]
        mean = sum(np.sum(x) for x in hats) / sum(x.size for x in hats)
        power = 1 / (3 - 2 * damping)
        decays = [np.clip(1 - b0 * (x / mean) ** power, 0, 1 - eps) for x in hats]
        ms = [b * m + (1 - b) ** damping * g for b, m, g in zip(decays, ms, gs, strict=True)]
        products = [b * x for b, x in zip(decays, products, strict=True)]
        us = [b0 ** (1 - damping) * m / (1 - x) for m, x in zip(ms, products, strict=True)]
        return us, (ms, vs, products)

    return TreeReference(lambda ps: (*blank(ps, 2), [np.ones_like(p) for p in ps]), step)

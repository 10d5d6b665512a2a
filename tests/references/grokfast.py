"""Grokfast in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def grokfast_ema(alpha, lamb, start=0):
    """Lee et al., with a moving average that begins with the first gradient."""

    def step(g, slots, p, t):
        (s,) = slots
        if t <= start:
            return g, (s,)
        s = g if t == start + 1 else alpha * s + (1 - alpha) * g
        return g + lamb * s, (s,)

    return Reference(zeros(1), step)


def grokfast_ma(size, lamb, warmup=True):
    """Lee et al., with the mean of a window."""

    def step(g, slots, p, t):
        last = [*slots, g][-size:]
        if warmup and len(last) < size:
            return g, tuple(last)
        return g + lamb * np.mean(last, axis=0), tuple(last)

    return Reference(lambda p: (), step)

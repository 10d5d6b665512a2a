"""The rule of `gradxform/transforms/laprop.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros


def laprop(b1, b2, eps, amsgrad=False, eps_before=False, centered_after=None):
    """Ziyin et al., Algorithm 1, with the options of its authors' code."""

    def step(g, slots, p, t):
        m, v, *others = slots
        v = b2 * v + (1 - b2) * g**2
        new, w = [v], v
        if centered_after is not None:
            new.append(b2 * others[0] + (1 - b2) * g)
            w = v - new[-1] ** 2 if t > centered_after else v
        if amsgrad:
            w = np.maximum(others[-1], w)
            new.append(w)
        correction = 1 - b2**t
        divisor = np.sqrt(w / correction) + eps
        if eps_before:
            divisor = (np.sqrt(w) + eps) / np.sqrt(correction)
        m = b1 * m + (1 - b1) * g / divisor
        return m / (1 - b1**t), (m, *new)

    return Reference(zeros(2 + amsgrad + (centered_after is not None)), step)

"""The rules of `gradxform/wrappers/muonclip.py` in NumPy float64."""

import numpy as np

from gradxform.testing import TreeReference, as_tree


def qk_clip(inner, factor_of, threshold):
    """Kimi K2, Algorithm 1: after the step, weights times min(1, threshold / s)^power.

    `factor_of(p)` returns the logits of every entry of a parameter and the power, or None.
    """
    inner = as_tree(inner)

    def step(gs, state, ps, t):
        us, state = inner.step(gs, state, ps, t)
        out = []
        for u, p in zip(us, ps, strict=True):
            found = factor_of(p)
            if found is not None:
                s, power = found
                u = np.minimum(1, threshold / s) ** power * (p + u) - p
            out.append(u)
        return out, state

    return TreeReference(inner.start, step)

"""Cautious updates in NumPy float64."""

from tests.references.base import TreeReference, as_tree


def cautious(inner, xi=1.0, sign=1):
    """Liang et al., Algorithm 1: mask per array, and n / (number that agrees + xi)."""
    rule = as_tree(inner)

    def step(gs, state, ps, t):
        us, state = rule.step(gs, state, ps, t)
        out = []
        for u, g in zip(us, gs, strict=True):
            keep = (sign * u * g > 0).astype(float)
            out.append(u * keep * u.size / (keep.sum() + xi))
        return out, state

    return TreeReference(rule.start, step)

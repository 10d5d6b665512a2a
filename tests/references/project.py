"""The rules of `gradxform/wrappers/project.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, as_tree, norm


def project(inner, projection):
    """Projected descent; `projection(ps)` returns the projected list."""
    part = as_tree(inner)

    def step(gs, state, ps, t):
        us, state = part.step(gs, state, ps, t)
        new = projection([p + u for p, u in zip(ps, us, strict=True)])
        return [q - p for q, p in zip(new, ps, strict=True)], state

    return TreeReference(part.start, step)


def l2_ball(radius):
    """Project all arrays together."""
    return lambda ps: [p * min(1, radius / norm(ps)) for p in ps]


def l1_ball_of_matrices(radius):
    """Project each matrix by itself, by bisection for the threshold."""

    def one(p):
        if p.ndim < 2 or np.sum(np.abs(p)) <= radius:
            return p
        low, high = 0.0, np.max(np.abs(p))
        for _ in range(100):
            middle = (low + high) / 2
            above = np.sum(np.maximum(np.abs(p) - middle, 0)) > radius
            low, high = (middle, high) if above else (low, middle)
        return np.sign(p) * np.maximum(np.abs(p) - high, 0)

    return lambda ps: [one(p) for p in ps]

"""Newton's method by conjugate gradients in NumPy float64, with the curvature as a matrix."""

import numpy as np

from tests.references.base import TreeReference
from tests.references.lbfgs import flat, like


def newton_cg(
    f, matrix, steps=10, damping=1.0, factor=2 / 3, warm_start=0.95, tol=0.0, roundings=0.0
):
    """Martens, Algorithm 2, with Nocedal and Wright's Algorithm 7.1 inside.

    `f` is the loss of a list of arrays, `matrix` its curvature there. Decreases of so many
    `roundings` of the loss do not change the damping.
    """

    def solve(a, b, x):
        r = b - a @ x
        d, first = r, True
        for _ in range(steps):
            if np.linalg.norm(r) <= tol * np.linalg.norm(b) or not r.any():
                break
            curvature = d @ a @ d
            if curvature <= 0 and not first:
                break
            size = r @ r / abs(curvature) if curvature else 0.0
            x, new = x + size * d, r - size * a @ d
            if curvature <= 0:
                break
            d, r, first = new + new @ new / (r @ r) * d, new, False
        return x

    def step(gs, state, ps, t):
        lam, last = state
        c, g = matrix(ps), flat(gs)
        a = c + lam * np.eye(len(g))
        x = warm_start * last
        x = x if x @ a @ x / 2 - g @ x <= 0 else 0 * x
        d = solve(a, g, x)
        if factor == 1:
            return like(d, gs), (lam, d)
        predicted = g @ d - d @ c @ d / 2
        actual = f(ps) - f([p - v for p, v in zip(ps, like(d, gs), strict=True)])
        if abs(predicted) > roundings * abs(f(ps)):
            ratio = actual / predicted
            raised = lam * factor if ratio > 3 / 4 else lam
            lam = raised if ratio >= 1 / 4 else lam / factor
        return like(d if actual > 0 else 0 * d, gs), (lam, d)

    return TreeReference(lambda ps: (damping, 0 * flat(ps)), step)

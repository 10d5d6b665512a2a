"""The rule of `gradxform/transforms/spectral_sphere.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros
from tests.references.orthogonal import newton_schulz, on_matrices

TURNS = [
    (8.287212018145622, -23.59588651909882, 17.30038731253092),
    (4.1070591115422, -2.9478499167379097, 0.5448431082926601),
    (3.9486908534822946, -2.9089021159629453, 0.5518191394370127),
    (3.3184196573706015, -2.4884880243148753, 0.5100489401237204),
    (2.300652019954818, -1.668903984574751, 0.41880731195256765),
]
# Amsel et al.: with their safety factor.
TURNS = [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in TURNS]


def _bisected(f, tolerance, most):
    """Where a rising function is 0, within ten doublings from 0; 0 if it does not cross there."""
    at, value = 0.0, f(0.0)
    if abs(value) < tolerance:
        return 0.0
    step = 1e-3 if value < 0 else -1e-3
    for _ in range(10):
        new = at + step
        new_value = f(new)
        if (value <= 0) != (new_value <= 0):
            break
        at, value, step = new, new_value, 2 * step
    else:
        return 0.0
    points = sorted([(at, value), (new, new_value)])
    (low, _), (high, _) = points
    best = min(points, key=lambda pair: abs(pair[1]))
    for _ in range(most):
        if abs(best[1]) <= tolerance:
            break
        middle = (low + high) / 2
        value = f(middle)
        best = min(best, (middle, value), key=lambda pair: abs(pair[1]))
        low, high = (middle, high) if value < 0 else (low, middle)
    return best[0]


def spectral_sphere(beta=0.9, nesterov=True, power_steps=10, tolerance=1e-8, most=100, eps=1e-8):
    """Muon's direction, tangent to the sphere of matrices of one spectral norm."""

    def one(a, p):
        a = a / np.linalg.norm(a)
        v = np.ones(len(p))
        for _ in range(power_steps):
            v = p @ (p.T @ v)
            v /= np.linalg.norm(v)
        w = p.T @ v
        t = np.outer(v, w / np.linalg.norm(w))

        def at(l):
            return newton_schulz(a + l * t, TURNS, eps)

        return at(_bisected(lambda l: np.sum(t * at(l)), tolerance, most))

    def step(g, slots, p, t):
        m = beta * slots[0] + (1 - beta) * g
        a = beta * m + (1 - beta) * g if nesterov else m
        return on_matrices(one, a, p), (m,)

    return Reference(zeros(1), step)

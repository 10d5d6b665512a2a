"""Line searches in NumPy float64. `f` and `df`: the loss of a list of arrays, and its gradient."""

import numpy as np

from tests.references.base import TreeReference, dot


def backtracking(f, df, most, c=1e-4, down=0.8, up=1.5, largest=1.0, atol=0.0, rtol=0.0):
    """Nocedal and Wright, Algorithm 3.1; the first guess follows from the last step."""

    def step(us, t_last, ps, t):
        value, slope = f(ps), dot(us, df(ps))
        length = min(up * t_last, largest) if t_last else min(1.0, largest)
        for trial in range(most + 1):
            length = length * down if trial else length
            there = f([p + length * u for p, u in zip(ps, us, strict=True)])
            if there <= (1 + rtol) * value + c * length * slope + atol:
                break
        length = length if np.isfinite(there) else 0.0
        return [length * u for u in us], length

    return TreeReference(lambda ps: 1.0, step)


def zoom(
    f,
    df,
    most,
    largest=np.inf,
    tol=0.0,
    up=2.0,
    c1=1e-4,
    c2=0.9,
    near=1e-6,
    precision=1e-5,
    keep=True,
):
    """Nocedal and Wright, Algorithms 3.5 and 3.6, with the approximate decrease of CG_DESCENT."""

    def step(us, t_last, ps, t):
        value, slope = f(ps), dot(us, df(ps))
        safe = (0.0, value)  # the best step length with enough decrease, and the loss there
        tried = 0

        def phi(length):
            there = [p + length * u for p, u in zip(ps, us, strict=True)]
            return length, f(there), dot(us, df(there))

        def misses(point):
            a, v, s = point
            missing = v - value - c1 * a * slope
            if near is not None:
                approximate = max(s - (2 * c1 - 1) * slope, v - value - near * abs(value))
                missing = min(missing, approximate)
            return max(missing, 0), max(abs(s) - c2 * abs(slope), 0)

        def ended(point):
            return [point[0] * u for u in us], point[0]

        last, low, high, third = (0.0, value, slope), None, None, None
        while tried < most:
            if low is None:
                a = (t_last if keep else 1.0) if not tried else up * last[0]
                at_largest, a = a >= largest, min(a, largest)
            else:
                short = abs(high[0] - low[0]) <= precision
                a = divide(low, high, third)
            new = phi(a)
            tried += 1
            decrease, curvature = misses(new)
            if decrease <= tol and (low is None or new[1] < safe[1]):
                safe = new[:2]
            if max(decrease, curvature) <= tol:
                return ended(new)
            if low is None:
                if decrease > 0 or (tried > 1 and new[1] >= last[1]):
                    low = third = last
                    high = new
                elif new[2] >= 0:
                    low = third = new
                    high = last
                elif at_largest:
                    return ended(new)
            else:
                if decrease > 0 or new[1] >= low[1]:
                    third, high = high, new
                elif new[2] * (high[0] - low[0]) >= 0:
                    third, high, low = high, low, new
                else:
                    third, low = low, new
                if short and safe[0]:
                    return ended(safe)
            last = new
        return ended(safe if safe[0] else last)

    return TreeReference(lambda ps: 1.0, step)


def divide(low, high, third):
    """The minimum of a cubic, or of a parabola, if it is well inside; else the middle."""
    (a, fa, da), (b, fb, _), (c, fc, _) = low, high, third
    left, length = min(a, b), abs(b - a)

    def inside(x, margin):
        return left + margin * length < x < left + (1 - margin) * length

    if c not in (a, b):
        x, z = b - a, c - a
        # a cubic through the values at b and c, with value and slope at a
        cubic, square = np.linalg.solve(
            [[x**3, x**2], [z**3, z**2]], [fb - fa - da * x, fc - fa - da * z]
        )
        root = square**2 - 3 * cubic * da
        if root >= 0 and cubic:
            at = a + (np.sqrt(root) - square) / (3 * cubic)
            if inside(at, 0.2):
                return at
    square = (fb - fa - da * (b - a)) / (b - a) ** 2
    at = a - da / (2 * square) if square else np.nan
    return at if inside(at, 0.1) else (a + b) / 2

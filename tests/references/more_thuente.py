"""The line search of Moré and Thuente in NumPy float64, with a branch for each of its cases."""

import numpy as np


def more_thuente(start, fall, t, largest=1e10, decrease=1e-3, flatness=0.9, precision=0.1):
    """A generator of the trials: it is sent the value and slope at each, and returns acceptance.

    `start` and `fall` are the value and the slope at 0, and `t` is the first trial.
    """
    best, other = (0.0, start, fall), (0.0, start, fall)
    known, first, low, high = False, True, 0.0, 5 * t
    width, last_width = largest, 2 * largest
    for trial in range(20):
        f, g = yield t
        limit = start + decrease * t * fall
        first = first and not (f <= limit and g >= 0)
        if f <= limit and abs(g) <= -flatness * fall:
            return True
        stuck = known and (t <= low or t >= high or high - low <= precision * high)
        if stuck or (t == largest and f <= limit and g <= decrease * fall):
            return f < start
        tilt = decrease * fall if first and limit < f <= best[1] else 0.0
        ends = [(x, v - tilt * x, d - tilt) for x, v, d in (best, other, (t, f, g))]
        best, other, t, known = _divided(*ends, low, high, known)
        best, other = ((x, v + tilt * x, d + tilt) for x, v, d in (best, other))
        if known:
            if abs(other[0] - best[0]) >= 0.66 * last_width:
                t = (best[0] + other[0]) / 2
            width, last_width = abs(other[0] - best[0]), width
            low, high = sorted((best[0], other[0]))
        else:
            low, high = (
                t + 1.1 * (t - best[0]),
                t + 4.0 ** max(1, min(10, trial - 3)) * (t - best[0]),
            )
        t = min(max(t, 0.0), largest)
        if known and (t <= low or t >= high or high - low <= precision * high):
            t = best[0]
    return False


def _cubic(one, two):
    """The local minimum of the cubic through two values and slopes; None without any."""
    (a, fa, da), (b, fb, db) = one, two
    # p(a + x) = fa + da x + c x^2 + e x^3
    x = b - a
    c = (3 * (fb - fa) / x - 2 * da - db) / x
    e = (da + db - 2 * (fb - fa) / x) / x**2
    inside = c * c - 3 * e * da
    if inside < 0:
        return None
    # The root at which the second derivative 2 c + 6 e x is not negative.
    down = c + np.sqrt(inside)
    if down != 0 and c >= 0:
        return a - da / down
    return a + (np.sqrt(inside) - c) / (3 * e) if e else None


def _divided(best, other, new, low, high, known):
    """The two ends after a trial, the next step length, and whether the ends hold a minimum."""
    (x, fx, dx), (t, f, d) = best, new
    if f > fx:
        c = _cubic(best, new)
        q = x - dx * (t - x) ** 2 / (2 * (f - fx - dx * (t - x)))
        return best, new, c if abs(c - x) <= abs(q - x) else (c + q) / 2, True
    secant = t - d * (t - x) / (d - dx) if d != dx else t
    if d * dx < 0:
        c = _cubic(new, best)
        return new, best, c if abs(c - t) > abs(secant - t) else secant, True
    if abs(d) < abs(dx):
        c = _cubic(new, best)
        if c is None or (c - t) * (t - x) <= 0:
            c = high if t > x else low
        if known:
            s = c if abs(c - t) < abs(secant - t) else secant
            bound = t + 0.66 * (other[0] - t)
            return new, other, min(bound, s) if t > x else max(bound, s), known
        s = c if abs(c - t) > abs(secant - t) else secant
        return new, other, min(max(s, low), high), known
    if known:
        return new, other, _cubic(new, other), known
    return new, other, high if t > x else low, known

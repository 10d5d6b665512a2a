"""ScheduleFree+ in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, blank, dot, value_at


def schedule_free_plus(
    rate, b1, b2, eps, decay, first, norm_decay, start, steps, last, power, r, value
):
    """Defazio, ScheduleFree+: AdamC at z, a Polyak step size, and x that averages z."""

    def step(gs, state, ps, t):
        ms, vs, zs, xs, e, largest, total = state
        done = min((t - 1) / steps, 1) if steps else 0
        b = 1 - np.exp((1 - done) * np.log(1 - first) + done * np.log(1 - last))
        away = [z - x for z, x in zip(zs, xs, strict=True)]
        size = sum(np.sum(np.abs(g)) for g in gs) * np.sqrt(np.pi / 2)
        e = norm_decay * e + (1 - norm_decay) * size
        a = max(value_at(rate, t - 1), eps) * max(0, value + b * dot(gs, away))
        a = a / (e / (1 - norm_decay**t)) if e else 0.0
        largest = max(largest, a)
        c = 1.0
        if t > start:
            total += t**r * largest**power
            c = t**r * largest**power / total
        ms = [b1 * m + (1 - b1) * g for m, g in zip(ms, gs, strict=True)]
        vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, gs, strict=True)]
        zs = [
            z - a**2 * decay * p - a * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
            for z, p, m, v in zip(zs, ps, ms, vs, strict=True)
        ]
        xs = [(1 - c) * x + c * z for x, z in zip(xs, zs, strict=True)]
        us = [b * x + (1 - b) * z - p for x, z, p in zip(xs, zs, ps, strict=True)]
        return us, (ms, vs, zs, xs, e, largest, total)

    def start_at(ps):
        return *blank(ps, 2), *([p.copy() for p in ps] for _ in range(2)), 0.0, eps, 0.0

    return TreeReference(start_at, step)

"""The rules of `gradxform/transforms/dadapt.py` in NumPy float64."""

import numpy as np

from tests.references.base import TreeReference, blank, dot, value_at


def dadapt_adamw(rate, b1, b2, eps, d0, decay):
    """Defazio and Mishchenko, Algorithm 5, with Adam's bias correction and decoupled decay."""

    def step(gs, state, ps, t):
        ms, vs, ss, d, r = state
        k = d * value_at(rate, t - 1) * np.sqrt(1 - b2**t) / (1 - b1**t)
        scaled = [s / (np.sqrt(v) + eps) for s, v in zip(ss, vs, strict=True)]
        r = np.sqrt(b2) * r + (1 - np.sqrt(b2)) * k * dot(gs, scaled)
        ss = [np.sqrt(b2) * s + (1 - np.sqrt(b2)) * k * g for s, g in zip(ss, gs, strict=True)]
        ms = [b1 * m + (1 - b1) * k * g for m, g in zip(ms, gs, strict=True)]
        vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, gs, strict=True)]
        d = max(d, r / ((1 - np.sqrt(b2)) * sum(np.sum(np.abs(s)) for s in ss)))
        us = [-m / (np.sqrt(v) + eps) - decay * k * p for m, v, p in zip(ms, vs, ps, strict=True)]
        return us, (ms, vs, ss, d, r)

    return TreeReference(lambda ps: (*blank(ps, 3), d0, 0.0), step)


def prodigy(
    rate,
    b1,
    b2,
    b3,
    eps,
    d0,
    coefficient,
    decay,
    safeguard=False,
    selected=lambda p: True,
    growth=np.inf,
    debias=True,
):
    """Mishchenko and Defazio, Algorithm 4, with Adam's bias correction; eps meets the new d.

    Without eps it divides as Everett et al. do, by an arctangent. The largest of all estimates is
    where d goes to, by no more than a factor `growth` in a step after the first.
    """

    def ratio(m, v, d):
        root = np.sqrt(v)
        return np.arctan2(m, root) if eps is None else m / (root + d * eps)

    def step(gs, state, ps, t):
        p0, ms, vs, ss, d, r, largest = state
        k = d * value_at(rate, t - 1)
        k *= np.sqrt(1 - b2**t) / (1 - b1**t) if debias else 1
        away = [q - p for p, q in zip(ps, p0, strict=True)]
        r = b3 * r + d / d0 * k * dot(gs, away)
        add = d / d0 * (d if safeguard else k)
        ss = [b3 * s + add * g for s, g in zip(ss, gs, strict=True)]
        ms = [b1 * m + (1 - b1) * d * g for m, g in zip(ms, gs, strict=True)]
        vs = [b2 * v + (1 - b2) * (d * g) ** 2 for v, g in zip(vs, gs, strict=True)]
        largest = max(largest, coefficient * r / sum(np.sum(np.abs(s)) for s in ss))
        d = largest if d == d0 else min(largest, d * growth)
        us = [
            -k * ratio(m, v, d) - decay * k * p * selected(p)
            for m, v, p in zip(ms, vs, ps, strict=True)
        ]
        return us, (p0, ms, vs, ss, d, r, largest)

    return TreeReference(lambda ps: ([p.copy() for p in ps], *blank(ps, 3), d0, 0.0, d0), step)

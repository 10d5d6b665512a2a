"""The first-order rules of Optax's contributions."""

import numpy as np

from tests.references.base import Reference, TreeReference, zeros


def _at(x, n):
    return x(n) if callable(x) else x


def _dot(xs, ys):
    return sum(np.sum(x * y) for x, y in zip(xs, ys, strict=True))


def acprop(b1, b2, eps, eps_root):
    """Zhuang et al., ACProp; the deviation is from the average before the gradient."""

    def step(g, slots, p, t):
        m, s = slots
        below = np.sqrt(s / (1 - b2 ** (t - 1))) if t > 1 else 1.0
        s = b2 * s + (1 - b2) * (g - m) ** 2 + eps_root
        return g / (below + eps), (b1 * m + (1 - b1) * g, s)

    return Reference(zeros(2), step)


def adopt(b1, b2, eps, nesterov=False, bound=lambda n: n**0.25):
    """Taniguchi et al., Algorithm 2, clipped: v_0 = g_0^2, and m first moves at t = 1."""

    def step(g, slots, p, t):
        m, v = slots
        if t == 1:
            return 0 * g, (m, g**2)
        c = np.clip(g / np.maximum(np.sqrt(v), eps), -bound(t - 1), bound(t - 1))
        m = b1 * m + (1 - b1) * c
        return (b1 * m + (1 - b1) * c if nesterov else m), (m, b2 * v + (1 - b2) * g**2)

    return Reference(zeros(2), step)


def ademamix(b1, b2, b3, alpha, eps, eps_root=0.0):
    """Pagliardini et al., Algorithm 1."""

    def step(g, slots, p, t):
        m1, m2, v = slots
        slow = _at(b3, t - 1)
        m1 = b1 * m1 + (1 - b1) * g
        m2 = slow * m2 + (1 - slow) * g
        v = b2 * v + (1 - b2) * g**2
        top = m1 / (1 - b1**t) + _at(alpha, t - 1) * m2
        return top / (np.sqrt(v / (1 - b2**t) + eps_root) + eps), (m1, m2, v)

    return Reference(zeros(3), step)


def simplified_ademamix(b1, b2, alpha, eps, eps_root=0.0):
    """Morwani et al., Simplified-AdEMAMix."""

    def step(g, slots, p, t):
        m, v = b1 * slots[0] + g, b2 * slots[1] + (1 - b2) * g**2
        top = m + _at(alpha, t - 1) * g
        return top / (np.sqrt(v / (1 - b2**t) + eps_root) + eps), (m, v)

    return Reference(zeros(2), step)


def cocob(alpha, eps):
    """Orabona and Tommasi, Algorithm 2; theirs bets on the negative gradient, theta = -sum g."""

    def step(g, slots, p, t):
        start, scale, total, reward, theta = slots
        scale, total = np.maximum(scale, np.abs(g)), total + np.abs(g)
        reward = np.maximum(reward + (p - start) * -g, 0)
        theta = theta - g
        w = start + theta / (scale * np.maximum(total + scale, alpha * scale)) * (scale + reward)
        return w - p, (start, scale, total, reward, theta)

    return Reference(lambda p: (p.copy(), np.full_like(p, eps), *zeros(3)(p)), step)


def madgrad(rate, momentum, eps):
    """Defazio and Jelassi, Algorithm 1, with c = 1 - momentum, and eps in the learning rate too."""

    def step(g, slots, p, t):
        start, s, v = slots
        k = (_at(rate, t - 1) + eps) * np.sqrt(t)
        s, v = s + k * g, v + k * g**2
        z = start - s / (np.cbrt(v) + eps)
        return momentum * p + (1 - momentum) * z - p, (start, s, v)

    return Reference(lambda p: (p.copy(), *zeros(2)(p)), step)


def dog(first, eps):
    """Ivgi et al., (DoG): eta_t = max distance / sqrt(sum of |g|^2); first: a kind, a number."""
    kind, value = first

    def start(ps):
        r = value * (1 + np.sqrt(_dot(ps, ps))) if kind == "heuristic" else value
        return [p.copy() for p in ps], (0.0 if kind == "learning_rate" else r), 0.0

    def step(gs, state, ps, t):
        p0, r, total = state
        away = [p - q for p, q in zip(ps, p0, strict=True)]
        r, total = max(r, np.sqrt(_dot(away, away))), total + _dot(gs, gs)
        rate = value if kind == "learning_rate" and t == 1 else r / np.sqrt(total + eps)
        return [rate * g for g in gs], (p0, r, total)

    return TreeReference(start, step)


def dowg(first, eps):
    """Khaled et al., Algorithm 1; eps beside the root."""

    def step(gs, state, ps, t):
        p0, r2, total = state
        away = [p - q for p, q in zip(ps, p0, strict=True)]
        r2 = max(r2, _dot(away, away))
        total = total + r2 * _dot(gs, gs)
        return [r2 / (np.sqrt(total) + eps) * g for g in gs], (p0, r2, total)

    return TreeReference(lambda ps: ([p.copy() for p in ps], first, 0.0), step)


def dadapt_adamw(rate, b1, b2, eps, d0, decay):
    """Defazio and Mishchenko, Algorithm 5, with Adam's bias correction and decoupled decay."""

    def step(gs, state, ps, t):
        ms, vs, ss, d, r = state
        k = d * _at(rate, t - 1) * np.sqrt(1 - b2**t) / (1 - b1**t)
        scaled = [s / (np.sqrt(v) + eps) for s, v in zip(ss, vs, strict=True)]
        r = np.sqrt(b2) * r + (1 - np.sqrt(b2)) * k * _dot(gs, scaled)
        ss = [np.sqrt(b2) * s + (1 - np.sqrt(b2)) * k * g for s, g in zip(ss, gs, strict=True)]
        ms = [b1 * m + (1 - b1) * k * g for m, g in zip(ms, gs, strict=True)]
        vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, gs, strict=True)]
        d = max(d, r / ((1 - np.sqrt(b2)) * sum(np.sum(np.abs(s)) for s in ss)))
        us = [-m / (np.sqrt(v) + eps) - decay * k * p for m, v, p in zip(ms, vs, ps, strict=True)]
        return us, (ms, vs, ss, d, r)

    return TreeReference(lambda ps: (*_blank(ps, 3), d0, 0.0), step)


def _blank(ps, n):
    return tuple([np.zeros_like(p) for p in ps] for _ in range(n))


def prodigy(rate, b1, b2, b3, eps, d0, coefficient, decay, safeguard=False):
    """Mishchenko and Defazio, Algorithm 4, with Adam's bias correction; eps meets the new d."""

    def step(gs, state, ps, t):
        p0, ms, vs, ss, d, r = state
        k = d * _at(rate, t - 1) * np.sqrt(1 - b2**t) / (1 - b1**t)
        away = [q - p for p, q in zip(ps, p0, strict=True)]
        r = b3 * r + d / d0 * k * _dot(gs, away)
        add = d / d0 * (d if safeguard else k)
        ss = [b3 * s + add * g for s, g in zip(ss, gs, strict=True)]
        ms = [b1 * m + (1 - b1) * d * g for m, g in zip(ms, gs, strict=True)]
        vs = [b2 * v + (1 - b2) * (d * g) ** 2 for v, g in zip(vs, gs, strict=True)]
        d = max(d, coefficient * r / sum(np.sum(np.abs(s)) for s in ss))
        us = [
            -k * m / (np.sqrt(v) + d * eps) - decay * k * p
            for m, v, p in zip(ms, vs, ps, strict=True)
        ]
        return us, (p0, ms, vs, ss, d, r)

    return TreeReference(lambda ps: ([p.copy() for p in ps], *_blank(ps, 3), d0, 0.0), step)


def momo(rate, beta, bound, decay, adapt, value):
    """Schaipp et al., Algorithm 1, averages begin at g; adapt: its estimated bound."""

    def step(gs, state, ps, t):
        ms, f, c, lb = state
        b = beta if t > 1 else 0.0
        ms = [b * m + (1 - b) * g for m, g in zip(ms, gs, strict=True)]
        f, c = b * f + (1 - b) * value, b * c + (1 - b) * _dot(gs, ps)
        a = _at(rate, t - 1)
        size, w, h = _dot(ms, ms), 1 + a * decay, _dot(ms, ps)
        if adapt and w * (f - c) + h < w * lb:
            lb = max((w * (f - c) + h) / (2 * w), bound)
        k = min(a, max(w * (f - lb - c) + h, 0) / size)
        us = [-k * m - a * decay / w * p for m, p in zip(ms, ps, strict=True)]
        return us, (ms, f, c, max(f + h - c - k * size / 2, bound) if adapt else lb)

    return TreeReference(lambda ps: (*_blank(ps, 1), 0.0, 0.0, bound), step)


def momo_adam(rate, b1, b2, eps, bound, decay, adapt, value):
    """Schaipp et al., Algorithm 2; adapt: its estimated bound."""

    def step(gs, state, ps, t):
        ms, vs, f, c, lb = state
        ms = [b1 * m + (1 - b1) * g for m, g in zip(ms, gs, strict=True)]
        vs = [b2 * v + (1 - b2) * g**2 for v, g in zip(vs, gs, strict=True)]
        f, c = b1 * f + (1 - b1) * value, b1 * c + (1 - b1) * _dot(gs, ps)
        xs = [m / (np.sqrt(v / (1 - b2**t)) + eps) for m, v in zip(ms, vs, strict=True)]
        a, rho = _at(rate, t - 1), 1 - b1**t
        size, w, h = _dot(ms, xs), 1 + a * decay, _dot(ms, ps)
        if adapt and w * (f - c) + h < w * rho * lb:
            lb = max((w * (f - c) + h) / (2 * rho * w), bound)
        k = min(a / rho, max(w * (f - rho * lb - c) + h, 0) / size)
        us = [-k * x - a * decay / w * p for x, p in zip(xs, ps, strict=True)]
        return us, (ms, vs, f, c, max((f + h - c - k * size / 2) / rho, bound) if adapt else lb)

    return TreeReference(lambda ps: (*_blank(ps, 2), 0.0, 0.0, bound), step)


def sophia(b1, b2, eps, gamma, clip, interval, diagonal):
    """Liu et al., Algorithm 3, with the curvature of step t first used at t + 1."""

    def step(g, slots, p, t):
        m, h = b1 * slots[0] + (1 - b1) * g, slots[1]
        u = np.clip(m / (1 - b1**t) / np.maximum(gamma * h, eps), -clip, clip)
        if (t - 1) % interval == 0:
            h = b2 * h + (1 - b2) * diagonal(p)
        return u, (m, h)

    return Reference(zeros(2), step)


def private_mean(limit):
    """Abadi et al., Algorithm 1, without noise: examples are along axis 0."""

    def step(gs, state, ps, t):
        n = len(gs[0])
        norms = [np.sqrt(sum(np.sum(g[i] ** 2) for g in gs)) for i in range(n)]
        weights = [1 / max(1.0, norm / limit) for norm in norms]
        return [sum(w * x for w, x in zip(weights, g, strict=True)) / n for g in gs], state

    return TreeReference(lambda ps: None, step)

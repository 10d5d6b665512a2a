"""The other rules of Optax's core, each from its paper; decays are one minus Adan's betas."""

import functools

import numpy as np

from tests.references.base import Reference, TreeReference, stateless, zeros


def belief(b1, b2, eps, eps_root, nesterov=False):
    """Zhuang et al., Algorithm 2."""

    def step(g, slots, p, t):
        m, s = slots
        m = b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * (g - m) ** 2 + eps_root
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        return m_hat / (np.sqrt(s / (1 - b2**t)) + eps), (m, s)

    return Reference(zeros(2), step)


def yogi(b1, b2, eps, eps_root=0.0, first=1e-6):
    """Zaheer et al., Algorithm 2, with Adam's corrections."""

    def step(g, slots, p, t):
        m, v = slots
        m = b1 * m + (1 - b1) * g
        v = v - (1 - b2) * np.sign(v - g**2) * g**2
        return m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t) + eps_root) + eps), (m, v)

    return Reference(lambda p: (np.full_like(p, first), np.full_like(p, first)), step)


def adamax(b1, b2, eps, inside=True):
    """Kingma and Ba, Algorithm 2, with an eps inside the maximum or outside."""

    def step(g, slots, p, t):
        m, v = slots
        m = b1 * m + (1 - b1) * g
        v = np.maximum(b2 * v, np.abs(g) + (eps if inside else 0))
        return m / (1 - b1**t) / (v if inside else v + eps), (m, v)

    return Reference(zeros(2), step)


def radam(b1, b2, eps, threshold=5.0, nesterov=False, eps_root=0.0):
    """Liu et al., Algorithm 2."""
    r_inf = 2 / (1 - b2) - 1

    def step(g, slots, p, t):
        m, v = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if nesterov:
            m_hat = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        r = r_inf - 2 * t * b2**t / (1 - b2**t)
        if r < threshold:
            return m_hat, (m, v)
        c = np.sqrt((r - 4) * (r - 2) * r_inf / ((r_inf - 4) * (r_inf - 2) * r))
        return c * m_hat / (np.sqrt(v / (1 - b2**t) + eps_root) + eps), (m, v)

    return Reference(zeros(2), step)


def adan(b1, b2, b3, eps, eps_root=0.0, weight=None):
    """Xie et al., Algorithm 1, where the weight is b2; Optax has 1 - b2."""
    w = 1 - b2 if weight is None else weight

    def step(g, slots, p, t):
        m, v, n, last = slots
        d = g - last if t > 1 else 0 * g
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * d
        n = b3 * n + (1 - b3) * (g + w * d) ** 2
        top = m / (1 - b1**t) + w * v / (1 - b2**t)
        return top / (np.sqrt(n / (1 - b3**t) + eps_root) + eps), (m, v, n, g)

    return Reference(zeros(4), step)


def optimistic(alpha, beta):
    """Generalized OGDA of Mokhtari et al.: the first change is 0."""

    def step(g, slots, p, t):
        last = slots[0] if t > 1 else g
        return alpha * g + beta * (g - last), (g,)

    return Reference(zeros(1), step)


def rprop(first, minus=0.5, plus=1.2, least=1e-6, largest=50.0, delayed=True):
    """Igel and Huesken, iRprop-; delayed: the step of the gradient before, if the sign stays."""

    def step(g, slots, p, t):
        s, last = slots
        sign = np.sign(g * last)
        s = np.where(sign > 0, np.minimum(s * plus, largest), s)
        s = np.where(sign < 0, np.maximum(s * minus, least), s)
        now = np.where(sign < 0, 0, s * np.sign(g))
        return np.where(sign < 0, 0, last) if delayed else now, (s, now)

    return Reference(lambda p: (np.full_like(p, first), np.zeros_like(p)), step)


def factored_rms(exponent=0.8, epsilon=1e-30, smallest=128, offset=0):
    """Shazeer and Stern, Algorithms 4 and 5, with decay 1 - t^-0.8 (section 7.2)."""

    def start(p):
        return (np.zeros_like(p),)  # the whole second moment: means of it are means of its terms

    def step(g, slots, p, t):
        b = 1 - max(t - offset, 1) ** -exponent
        v = b * slots[0] + (1 - b) * (g**2 + epsilon)
        axes = sorted(range(g.ndim), key=lambda k: g.shape[k])[-2:]
        if g.ndim < 2 or g.shape[axes[0]] < smallest:
            return g / np.sqrt(v), (v,)
        second, first = axes
        r, c = v.mean(axis=first, keepdims=True), v.mean(axis=second, keepdims=True)
        return g / np.sqrt(r * c / r.mean(axis=second, keepdims=True)), (v,)

    return Reference(start, step)


def sm3(b1, b2=1.0, eps=1e-8):
    """Anil et al., SM3-II: one maximum for each index of each axis."""

    def start(p):
        return [np.zeros(n) for n in p.shape or (1,)], np.zeros_like(p)

    def step(g, slots, p, t):
        maxima, m = slots
        least = functools.reduce(np.minimum, np.ix_(*maxima)).reshape(g.shape)
        s = b2 * least + (1 if b2 == 1 else 1 - b2) * g**2
        with np.errstate(divide="ignore", invalid="ignore"):
            m = b1 * m + (1 - b1) * np.where(s > 0, g / np.sqrt(s + eps), 0)
        axes = range(g.ndim)
        found = [s.max(axis=tuple(k for k in axes if k != j)) for j in axes]
        return m, (found or [s.reshape(1)], m)

    return Reference(start, step)


def adadelta(rho, eps):
    """Zeiler, Algorithm 1, without the minus."""

    def step(g, slots, p, t):
        v, x = slots
        v = rho * v + (1 - rho) * g**2
        u = np.sqrt(x + eps) / np.sqrt(v + eps) * g
        return u, (v, rho * x + (1 - rho) * u**2)

    return Reference(zeros(2), step)


def layerwise_dog(reps_rel=1e-6, eps=1e-8, factor=1.0):
    """Ivgi et al., L-DoG."""

    def start(p):
        return reps_rel * (1 + np.linalg.norm(p.ravel())), 0.0, p.copy()

    def step(g, slots, p, t):
        d, s, p0 = slots
        d, s = max(d, np.linalg.norm((p - p0).ravel())), s + np.sum(g**2)
        return factor * d / np.sqrt(s + eps) * g, (d, s, p0)

    return Reference(start, step)


def polyak(value, f_min=0.0, largest=1.0, eps=0.0, plus=False):
    """Loizou et al., SPS_max; Garrigos et al., SPS+."""

    def step(gs, state, ps, t):
        gap = max(value - f_min, 0) if plus else value - f_min
        square = sum(np.sum(g**2) for g in gs) + eps
        return [g * min(gap / square, largest) for g in gs], state

    return TreeReference(lambda ps: None, step)


def block_norm(least=1e-3):
    """Times the norm of the parameter."""
    return stateless(lambda g, p, t: g * max(np.linalg.norm(p.ravel()), least))


def block_rms(least=1e-3):
    """Shazeer and Stern, section 8: times the root mean square of the parameter."""
    return stateless(lambda g, p, t: g * max(np.sqrt(np.mean(p**2)), least))


def novograd(b1, b2, eps, eps_root=0.0, decay=0.0):
    """Ginsburg et al., Algorithm 1."""
    value = decay if callable(decay) else lambda n: decay

    def step(g, slots, p, t):
        m, v = slots
        size = np.sum(g**2)
        v = size if t == 1 else b2 * v + (1 - b2) * size
        m = b1 * m + g / (np.sqrt(v + eps_root) + eps) + value(t - 1) * p
        return m, (m, v)

    return Reference(lambda p: (np.zeros_like(p), 0.0), step)


def shrink(rate):
    """Bernstein et al., Algorithm 1: w <- (w + step) / sqrt(1 + eta^2)."""
    value = rate if callable(rate) else lambda n: rate
    return stateless(lambda g, p, t: (p + g) / np.sqrt(1 + value(t - 1) ** 2) - p)


def apply_every(k):
    """The sum of k updates at every k-th, zeros between."""

    def step(g, slots, p, t):
        total = g + (slots[0] if t % k != 1 % k else 0)
        return total if t % k == 0 else 0 * g, (total,)

    return Reference(zeros(1), step)

"""The rules that TensorFlow 1, its contrib, RETURNN and Keras had, from what each computes."""

import numpy as np

from tests.references.base import Reference, stateless, zeros


def decay_down(wd):
    """Decoupled weight decay after the learning rate."""
    return stateless(lambda g, p, t: g - wd * p)


def adam_hat(b1, b2, eps, look_ahead=False):
    """TF1 Adam; contrib Nadam: the numerator (1 - b1) g + b1 m."""

    def step(g, slots, p, t):
        m, v = slots
        m = m + (g - m) * (1 - b1)
        v = v + (g**2 - v) * (1 - b2)
        rate = np.sqrt(1 - b2**t) / (1 - b1**t)
        return rate * ((1 - b1) * g + b1 * m if look_ahead else m) / (np.sqrt(v) + eps), (m, v)

    return Reference(zeros(2), step)


def keras_amsgrad(b1, b2, eps):
    """Keras Adam with amsgrad: the largest uncorrected v, the learning rate corrected."""

    def step(g, slots, p, t):
        m, v, h = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        h = np.maximum(h, v)
        return np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(h) + eps), (m, v, h)

    return Reference(zeros(3), step)


def keras_nadam(b1, b2, eps, schedule_decay):
    """Keras Nadam: a momentum that warms up, and the product of all of them."""

    def mu(t):
        return b1 * (1 - 0.5 * 0.96 ** (schedule_decay * t))

    def step(g, slots, p, t):
        m, v = slots
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        product = np.prod([mu(k) for k in range(1, t + 1)])
        bar = (1 - mu(t)) * g / (1 - product) + mu(t + 1) * m / (1 - product * mu(t + 1))
        return bar / (np.sqrt(v / (1 - b2**t)) + eps), (m, v)

    return Reference(zeros(2), step)


def adagrad_outside(start, eps):
    """Keras Adagrad."""

    def step(g, slots, p, t):
        s = slots[0] + g**2
        return g / (np.sqrt(s) + eps), (s,)

    return Reference(lambda p: (np.full_like(p, start),), step)


def adagrad_keeping(start):
    """RegAdagrad inside avoid_updating_slots."""
    return Reference(lambda p: (np.full_like(p, start),), lambda g, s, p, t: (g / np.sqrt(s[0]), s))


def agreement(b, factor):
    """AddSign, PowerSign, NeuralOptimizer1: a factor of sign(g) sign(m'), and the step."""

    def step(g, slots, p, t):
        m = b * slots[0] + (1 - b) * g
        return factor(np.sign(g) * np.sign(m), t - 1) * g, (m,)

    return Reference(zeros(1), step)


def grad_variance(b1, b2, eps):
    """RETURNN GradVarianceScaled."""

    def step(g, slots, p, t):
        m, v = slots
        m = b1 * m + (1 - b1) * g
        w = (g - m) ** 2
        v = b2 * v + (1 - b2) * w
        return g * np.minimum(v / (w + eps), 1), (m, v)

    return Reference(zeros(2), step)


def _soft(x, by):
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


def proximal_sgd(lr, l1, l2):
    """ProximalGradientDescent."""
    rate = lr if callable(lr) else lambda n: lr

    def f(g, p, t):
        e = rate(t - 1)
        return _soft(p - e * g, e * l1) / (1 + e * l2) - p

    return stateless(f)


def proximal_adagrad(lr, start, l1, l2):
    """ProximalAdagrad."""

    def step(g, slots, p, t):
        s = slots[0] + g**2
        e = lr / np.sqrt(s)
        return _soft(p - e * g, e * l1) / (1 + e * l2) - p, (s,)

    return Reference(lambda p: (np.full_like(p, start),), step)


def adagrad_da(lr, start, l1, l2):
    """AdagradDA."""

    def step(g, slots, p, t):
        total, squares = slots[0] + g, slots[1] + g**2
        return -lr * _soft(total, l1 * t) / (l2 * t * lr + np.sqrt(squares)) - p, (total, squares)

    return Reference(lambda p: (np.zeros_like(p), np.full_like(p, start)), step)


def ftrl(lr, power=-0.5, start=0.1, l1=0.0, l2=0.0, shrink=0.0, beta=0.0):
    """Ftrl; beta as in Keras."""
    rate = lr if callable(lr) else lambda n: lr

    def step(g, slots, p, t):
        n, z = slots
        e, q = rate(t - 1), -power
        new = n + g**2
        z = z + g + 2 * shrink * p - (new**q - n**q) / e * p
        below = new**q / e + 2 * (l2 + beta / (2 * e))
        return np.where(np.abs(z) <= l1, 0, (l1 * np.sign(z) - z) / below) - p, (new, z)

    return Reference(lambda p: (np.full_like(p, start), np.zeros_like(p)), step)


def block_normalized(scale=1.0, least=1e-6):
    """RETURNN NormalizedSGD without the learning rate."""
    return stateless(lambda g, p, t: scale * g / np.sqrt(max(np.sum(g**2), least**2)))


def clip_by_block_norm(limit):
    """Keras clipnorm."""
    return stateless(lambda g, p, t: g * limit / max(np.sqrt(np.sum(g**2)), limit))


def lars_sum(wd, coefficient, eps, selected=lambda p: True):
    """The contrib LARS ratio, without learning rate and momentum."""

    def f(g, p, t):
        if not selected(p):
            return g
        size_p, size_g = np.sqrt(np.sum(p**2)), np.sqrt(np.sum(g**2))
        ratio = 1.0
        if size_p > 0 and size_g > 0:
            ratio = coefficient * size_p / (size_g + wd * size_p + eps)
        return ratio * (g + wd * p)

    return stateless(f)


def shifted(ref, start):
    """The rule always at its step `start + 1`: what a constant external step does."""
    return Reference(ref.start, lambda g, s, p, t: ref.step(g, s, p, start + 1))

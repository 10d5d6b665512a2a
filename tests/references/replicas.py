"""Rules of replicas in NumPy float64, with gradient descent inside; v is [N, ...]."""

import numpy as np

RATE = 0.1


def model_average(v, grads, period, warmup=0):
    """Local steps, and the mean after every period."""
    for t, g in enumerate(grads, 1):
        v = v - RATE * g
        if t % period == 0 or t <= warmup:
            v = np.broadcast_to(v.mean(0), v.shape)
        yield v


def elastic_average(v, grads, period, a, rho):
    """EASGD: all replicas see the same centre."""
    c, seen = v[0], v
    for t, g in enumerate(grads, 1):
        v = v - RATE * (g + rho * (v - seen))
        if t % period == 0:
            seen = np.broadcast_to(c, v.shape)
            v, c = v - a * (v - c), c + a * (v - c).sum(0)
        yield v, c


def agn(v, grads, period):
    """A centre that steps along the mean of all gradients of a period."""
    c, total = v[0], 0
    for t, g in enumerate(grads, 1):
        v, total = v - RATE * g, total + g
        if t % period == 0:
            c = c - RATE * total.mean(0) / period
            v, total = np.broadcast_to(c, v.shape), 0
        yield v, c


def outer(v, grads, period, rate, momentum, nesterov=False):
    """Momentum on the mean difference to where replicas last met."""
    x, m = v[0], 0
    for t, g in enumerate(grads, 1):
        v = v - RATE * g
        if t % period == 0:
            d = x - v.mean(0)
            m = momentum * m + d
            x = x - rate * (d + momentum * m if nesterov else m)
            v = np.broadcast_to(x, v.shape)
        yield v, x

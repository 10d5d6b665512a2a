"""The rules of `gradxform/transforms/dion.py` in NumPy float64."""

import math

import jax
import numpy as np

from tests.references.base import Reference, zeros
from tests.references.orthogonal import newton_schulz


def _stacked(x):
    """The matrices of an array with rows first and columns last, with the shorter side first."""
    x = np.moveaxis(x, (0, -1), (-2, -1))
    x = x.reshape(-1, *x.shape[-2:])
    return np.swapaxes(x, 1, 2) if x.shape[1] > x.shape[2] else x


def _unstacked(x, shape):
    """Undo `_stacked`."""
    x = np.swapaxes(x, 1, 2) if shape[0] > shape[-1] else x
    x = x.reshape(*shape[1:-1], *x.shape[-2:])
    return np.moveaxis(x, (-2, -1), (0, len(shape) - 1))


def dion(fraction=0.25, mu=0.95, key=0):
    """Ahn et al., Algorithm 1, with Gaussian Q, the same for matrices of the same sides."""

    def start(p):
        count, m, n = _stacked(p).shape
        q = jax.random.normal(jax.random.key(key), (n, math.ceil(fraction * m)), np.float32)
        return np.zeros((count, m, n)), np.stack([np.asarray(q, np.float64)] * count)

    def step(g, slots, p, t):
        us, ms, qs = [], [], []
        for x, m, q in zip(_stacked(g), *slots, strict=True):
            b = m + x
            left, _ = np.linalg.qr(b @ q)
            right = b.T @ left
            ms.append(b - (1 - mu) * left @ right.T)
            qs.append(right / np.linalg.norm(right, axis=0))
            us.append(left @ qs[-1].T)
        return _unstacked(np.stack(us), g.shape), (np.stack(ms), np.stack(qs))

    return Reference(start, step)


def dion2(fraction=0.25, mu=0.95, eps=1e-8, groups=1):
    """The rows of largest l1 norm of each group are orthogonalized, and only these decay."""

    def step(g, slots, p, t):
        m = _stacked(slots[0] + g)
        u = np.zeros_like(m)
        for i in range(len(m)):
            sizes = np.abs(m[i]).sum(axis=1).reshape(math.gcd(groups, len(m[i])), -1)
            length = sizes.shape[1]
            order = np.argsort(-sizes, kind="stable")[:, : math.ceil(fraction * length)]
            rows = (order + length * np.arange(len(sizes))[:, None]).ravel()
            # The library's m is smaller by 1 - mu, and so is what its eps is added to.
            u[i, rows] = newton_schulz((1 - mu) * m[i, rows], eps=eps)
            m[i, rows] *= mu
        return _unstacked(u, g.shape), (_unstacked(m, g.shape),)

    return Reference(zeros(1), step)

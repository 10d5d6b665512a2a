"""The rules of `gradxform/transforms/splus.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, from_batch, stateless, to_batch, zeros


def splus(b1=0.9, b2=0.999, frequency=100, max_dim=10000, columns=1):
    """Frans et al., Algorithm 1, without its scaling; matrix i is renewed at steps i (mod ...)."""

    def start(p):
        x = to_batch(p, columns)
        count, m, n = x.shape
        sides = [(count, d, d) for d in (m, n)]
        eyes = [np.tile(np.eye(d), (count, 1, 1)) for d in (m, n)]
        return (np.zeros(x.shape), *map(np.zeros, sides), *eyes)

    def step(g, slots, p, t):
        m, left, right, ql, qr = (x.copy() for x in slots)
        x = to_batch(g, columns)
        u = np.zeros_like(x)
        for i in range(len(x)):
            m[i] = b1 * m[i] + (1 - b1) * x[i]
            u[i] = ql[i] @ np.sign(ql[i].T @ m[i] @ qr[i]) @ qr[i].T
            left[i] = b2 * left[i] + (1 - b2) * x[i] @ x[i].T
            right[i] = b2 * right[i] + (1 - b2) * x[i].T @ x[i]
            if t == 1 or t % frequency == i % frequency:
                for a, q in ((left, ql), (right, qr)):
                    if len(a[i]) <= max_dim:
                        q[i] = np.linalg.eigh(a[i])[1]
        return from_batch(u, g.shape, columns), (m, left, right, ql, qr)

    return Reference(start, step)


def sign_of_average(b1=0.9):
    """What parameters that are not matrices get."""

    def step(g, slots, p, t):
        m = b1 * slots[0] + (1 - b1) * g
        return np.sign(m), (m,)

    return Reference(zeros(1), step)


def mean_side(longest=10000, other=1e-3):
    """Two over the sum of the first and the last axis; `other` for matrices with long sides."""

    def f(g, p, t):
        sides = g.shape[0], g.shape[-1]
        return (other if max(sides) > longest else 2 / sum(sides)) * g

    return stateless(f)

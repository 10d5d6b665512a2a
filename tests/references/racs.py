"""The rules of `gradxform/transforms/racs.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def rows_and_columns(beta, eps, iterations):
    """Gong et al., RACS without its limiter; with 0 iterations, means of squares."""

    def flat(x):
        return x.reshape(-1, x.shape[-1] if x.ndim else 1)

    def step(g, slots, p, t):
        s, q = slots
        P = flat(g) ** 2
        a = np.ones(len(P))
        for _ in range(iterations):
            b = a @ P / (a @ a)
            a = P @ b / (b @ b)
        if not iterations:
            b, a = P.mean(0), P.mean(1)
        s = beta * s + (1 - beta) * b
        q = beta * q + (1 - beta) * a
        u = flat(g) / np.sqrt(np.outer(q + eps, s + eps))
        return u.reshape(g.shape), (s, q)

    return Reference(lambda p: (np.zeros(flat(p).shape[1]), np.ones(len(flat(p)))), step)

"""The rule of `gradxform/transforms/kl_shampoo.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, from_batch, to_batch
from tests.references.soap import kl_products


def kl_shampoo(b1=0.9, beta=0.98, eps=1e-8, frequency=10, max_dim=10000, start=0.1, columns=1):
    """Lin et al., KL-Shampoo, with the first step and the renewals of SOAP's code."""

    def first(p):
        x = to_batch(p, columns)
        sides = [np.tile(np.eye(d), (len(x), 1, 1)) for d in x.shape[1:]]
        return (np.zeros(x.shape), *(start * s for s in sides), *sides)

    def step(g, slots, p, t):
        m, left, right, ql, qr = (x.copy() for x in slots)
        x = to_batch(g, columns)
        u = np.zeros_like(x)
        has = [d <= max_dim for d in x.shape[1:]]
        for i in range(len(x)):
            if t > 1:
                m[i] = b1 * m[i] + (1 - b1) * x[i]
            rows, cols = (
                np.diag(q.T @ a @ q) if there else np.ones(len(q))
                for a, q, there in ((left[i], ql[i], has[0]), (right[i], qr[i], has[1]))
            )
            root = np.sqrt(np.outer(rows, cols)) + eps
            u[i] = ql[i] @ ((ql[i].T @ m[i] @ qr[i]) / root) @ qr[i].T
            new = kl_products(x[i], left[i], right[i], ql[i], qr[i], *has)
            for a, q, product, there in zip((left, right), (ql, qr), new, has, strict=True):
                if not there:
                    continue
                a[i] = beta * a[i] + (1 - beta) * product
                if t == 1:
                    q[i] = np.linalg.eigh(a[i])[1][:, ::-1]
                elif (t - 1) % frequency == i % frequency:
                    turned = a[i] @ q[i]
                    order = np.argsort(-np.sum(q[i] * turned, axis=0), kind="stable")
                    q[i] = np.linalg.qr(turned[:, order])[0]
        return from_batch(u, g.shape, columns), (m, left, right, ql, qr)

    return Reference(first, step)

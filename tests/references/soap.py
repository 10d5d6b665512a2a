"""The rules of `gradxform/transforms/soap.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, from_batch, to_batch


def _eigenvectors(a):
    return np.linalg.eigh(a)[1][:, ::-1]


def kl_products(g, left, right, ql, qr, rows=True, cols=True):
    """Lin et al.: G R^-1 G^T / n and G^T L^-1 G / m, with the eigenvalues that Q_L and Q_R see.

    A side without a matrix is the identity.
    """
    m, n = g.shape
    over_left = ql @ np.diag(1 / np.diag(ql.T @ left @ ql)) @ ql.T if rows else np.eye(m)
    over_right = qr @ np.diag(1 / np.diag(qr.T @ right @ qr)) @ qr.T if cols else np.eye(n)
    return g @ over_right @ g.T / n, g.T @ over_left @ g / m


def soap(
    b1=0.95,
    b2=0.95,
    shampoo_beta=None,
    eps=1e-8,
    frequency=10,
    max_dim=10000,
    normalize=False,
    one_sided=False,
    columns=1,
    first=0,
    kl_start=None,
    eps_first=False,
):
    """Vyas et al., Algorithm 3, with the first step and the renewals of its code.

    The average stays in the parameter's space, and is turned at each step. `first` is the index of
    the leaf's first matrix among all matrices of equal sides.
    """
    beta = b2 if shampoo_beta is None else shampoo_beta

    def has(m, n):
        long = not one_sided
        row, column = (True, long) if m <= n else (long, True)
        return row and m <= max_dim, column and n <= max_dim

    def start(p):
        x = to_batch(p, columns)
        count, m, n = x.shape
        return (
            np.zeros(x.shape),
            np.zeros(x.shape),
            np.tile((kl_start or 0) * np.eye(m), (count, 1, 1)),
            np.tile((kl_start or 0) * np.eye(n), (count, 1, 1)),
            np.tile(np.eye(m), (count, 1, 1)),
            np.tile(np.eye(n), (count, 1, 1)),
        )

    def step(g, slots, p, t):
        m, v, left, right, ql, qr = (x.copy() for x in slots)
        x = to_batch(g, columns)
        u = np.zeros_like(x)
        rows, cols = has(*x.shape[1:])
        s = t - 1
        for i in range(len(x)):
            if s:
                m[i] = b1 * m[i] + (1 - b1) * x[i]
                h, turned = (ql[i].T @ a @ qr[i] for a in (x[i], m[i]))
                v[i] = b2 * v[i] + (1 - b2) * h**2
                c2 = 1 - b2**s
                root = (
                    (np.sqrt(v[i]) + eps) / np.sqrt(c2) if eps_first else np.sqrt(v[i] / c2) + eps
                )
                u[i] = ql[i] @ (turned / (1 - b1**s) / root) @ qr[i].T
                if normalize:
                    u[i] /= np.sqrt(np.mean(u[i] ** 2)) * (1 - b1**s) / np.sqrt(1 - b2**s)
            both = x[i] @ x[i].T, x[i].T @ x[i]
            if kl_start is not None:
                both = kl_products(x[i], left[i], right[i], ql[i], qr[i], rows, cols)
            left[i] = beta * left[i] + (1 - beta) * both[0]
            right[i] = beta * right[i] + (1 - beta) * both[1]
            for axis, uses, a, q in ((0, rows, left, ql), (1, cols, right, qr)):
                if uses and not s:
                    q[i] = _eigenvectors(a[i])
                elif uses and s % frequency == (first + i) % frequency:
                    product = a[i] @ q[i]
                    order = np.argsort(-np.sum(q[i] * product, axis=0), kind="stable")
                    q[i] = np.linalg.qr(product[:, order])[0]
                    v[i] = np.take(v[i], order, axis=axis)
        return from_batch(u, g.shape, columns), (m, v, left, right, ql, qr)

    return Reference(start, step)

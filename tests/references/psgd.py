"""The rules of `gradxform/transforms/psgd.py` in NumPy float64."""

import jax
import numpy as np

from tests.references.base import Reference, from_batch, to_batch


def _bound(a):
    """The lower bound of the spectral norm that the public code takes."""
    x = a[np.argmax(np.sum(a**2, axis=1))] @ a
    return np.linalg.norm(x / np.linalg.norm(x) @ a)


def _fitted(q, a, b, rate):
    one, two = a @ a.T, b @ b.T
    if q.ndim == 1:
        one, two = np.diag(one), np.diag(two)
        return q - rate * (one - two) / np.max(one + two) * q
    return q - rate * np.triu(one - two) @ q / _bound(one + two)


def psgd_kron(
    b1=0.9,
    due=lambda t: True,
    diagonal=(),
    into=True,
    rate=0.1,
    scale=1.0,
    skew=np.inf,
    columns=1,
    seed=0,
):
    """Li, 2018: the fit of two factors; the noise is JAX's, by key, step, sides and index.

    `due(t)` says whether step t fits; `diagonal` holds 0 for the shorter side, 1 for the longer.
    """

    def turned(x):
        return np.swapaxes(x, -1, -2) if x.shape[-2] > x.shape[-1] else x

    def start(p):
        x = turned(to_batch(p, columns))
        qs = []
        for k, d in enumerate(x.shape[1:]):
            is_long = d > skew * x.shape[2 - k]
            one = np.ones(d) if k in diagonal or d == 1 or is_long else np.eye(d)
            qs.append([np.sqrt(scale) * one for _ in x])
        return np.zeros(x.shape), qs[0], qs[1]

    def whole(q):
        return np.diag(q) if q.ndim == 1 else q

    def step(g, slots, p, t):
        m, lefts, rights = slots
        batch = to_batch(g, columns)
        x = turned(batch)
        m = b1 * m + (1 - b1) * x
        c = m / (1 - b1**t)
        lefts, rights, u = list(lefts), list(rights), np.empty_like(x)
        key = jax.random.fold_in(jax.random.key(seed), t - 1)
        key = jax.random.fold_in(jax.random.fold_in(key, x.shape[1]), x.shape[2])
        for i in range(len(x)):
            if due(t):
                noise = jax.random.normal(jax.random.fold_in(key, i), x.shape[1:], np.float32)
                left, right = whole(lefts[i]), whole(rights[i])
                a = left @ (c if into else x)[i] @ right.T
                b = np.linalg.inv(left).T @ np.asarray(noise, np.float64) @ np.linalg.inv(right)
                lefts[i] = _fitted(lefts[i], a, b, rate)
                rights[i] = _fitted(rights[i], a.T, b.T, rate)
            left, right = whole(lefts[i]), whole(rights[i])
            u[i] = left.T @ left @ c[i] @ right.T @ right
            u[i] *= min(1.0, 1.1 / np.sqrt(np.mean(u[i] ** 2)))
        if x.shape != batch.shape:
            u = np.swapaxes(u, -1, -2)
        return from_batch(u, g.shape, columns), (m, lefts, rights)

    return Reference(start, step)

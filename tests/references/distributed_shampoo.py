"""The rules of `gradxform/transforms/shampoo/distributed_shampoo.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, from_batch, to_batch


def _root(a, epsilon, p):
    w, v = np.linalg.eigh(a)
    return v * (np.maximum(w, 0) + epsilon * max(w.max(), 1e-6)) ** (-1 / p) @ v.T


def distributed_shampoo(
    block_size=1024,
    beta2=0.999,
    diagonal_epsilon=1e-10,
    matrix_epsilon=1e-6,
    start_step=5,
    root_steps=1,
    statistics_steps=1,
    graft="sgd",
    exponent=4,
    columns=1,
    first=0,
):
    """Anil et al., blocks and grafting; `first` counts earlier blocks of equal sides.

    For blocks that divide the sides, or are as large: the statistics of every block by itself.
    """

    def cuts(m, n):
        if m > n:
            m, n = n, m
        return [
            (slice(i, i + block_size), slice(j, j + block_size))
            for i in range(0, m, block_size)
            for j in range(0, n, block_size)
        ]

    def turned(x):
        return np.swapaxes(x, -1, -2) if x.shape[-2] > x.shape[-1] else x

    def start(p):
        x = turned(to_batch(p, columns))
        blocks = [[x[i][at] for at in cuts(*x.shape[1:])] for i in range(len(x))]
        eyes = [[[np.eye(b.shape[k]) for k in (0, 1)] for b in row] for row in blocks]
        return (
            np.zeros(x.shape),
            [[[matrix_epsilon * e for e in b] for b in row] for row in eyes],
            eyes,
        )

    def step(g, slots, p, t):
        v, stats, roots = slots
        batch = to_batch(g, columns)
        x = turned(batch)
        w = 1.0 if beta2 == 1 else 1 - beta2
        v = v + x**2 if graft == "adagrad" else beta2 * v + w * x**2
        u, number = np.empty_like(x), first
        new_stats, new_roots = [], []
        for i in range(len(x)):
            s = np.empty_like(x[i])
            new_stats.append([])
            new_roots.append([])
            for k, at in enumerate(cuts(*x.shape[1:])):
                b = x[i][at]
                ours, old = stats[i][k], roots[i][k]
                if (t - 1) % statistics_steps == 0:
                    ours = [beta2 * ours[0] + w * b @ b.T, beta2 * ours[1] + w * b.T @ b]
                if t == 1 or (t - 1) % root_steps == number % root_steps:
                    old = [_root(a, matrix_epsilon, exponent) for a in ours]
                new_stats[-1].append(ours)
                new_roots[-1].append(old)
                s[at] = old[0] @ b @ old[1]
                number += 1
            d = x[i]
            if graft != "sgd":
                fix = 1 - beta2**t if graft == "adam" else 1.0
                d = d / (np.sqrt(v[i] / fix) + diagonal_epsilon)
            u[i] = s * np.linalg.norm(d) / np.linalg.norm(s) if t > start_step else d
        if x.shape != batch.shape:
            u = np.swapaxes(u, -1, -2)
        return from_batch(u, g.shape, columns), (v, new_stats, new_roots)

    return Reference(start, step)

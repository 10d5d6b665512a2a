"""The rules of `gradxform/transforms/apollo.py` in NumPy float64."""

import zlib

import jax
import numpy as np

from tests.references.base import Reference

# By shape, the paths in the parameters of the catalogue.
PATHS = {(3, 4): "w", (2, 3, 2): "deep/k", (4,): "b", (): "s"}


def draws_of(shape, period, size):
    """What JAX draws for a parameter, with the key 0."""
    key = jax.random.fold_in(jax.random.key(0), period)
    key = jax.random.fold_in(key, zlib.crc32(PATHS[shape].encode()))
    return np.asarray(jax.random.normal(key, size), np.float64)


def apollo(
    rank,
    gap,
    scale,
    b1=0.9,
    b2=0.999,
    eps=1e-6,
    growth=1.01,
    eps_norm=1e-8,
    *,
    whole=False,
    low=False,
    stacks=False,
):
    """Zhu et al., Algorithm 1, with the limit of the norm; short side first.

    Matrices are arrays of two dimensions; with `stacks` those of three, whose first axis is a
    batch, too.
    """

    def moments(g, m, v):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        return m / (np.sqrt(v) + eps), m, v

    def sizes(p):
        short, long = sorted(p.shape[-2:])
        return (*p.shape[:-2], min(rank, short), short, long)

    def projected(p):
        return p.ndim == 2 or (stacks and p.ndim == 3)

    def start(p):
        if not projected(p):
            return np.zeros_like(p), np.zeros_like(p), None
        *batch, r, _, long = sizes(p)
        return np.zeros((*batch, r, long)), np.zeros((*batch, r, long)), np.full(batch, np.inf)

    def step(g, slots, p, t):
        factor = np.sqrt(1 - b2**t) / (1 - b1**t)
        m, v, last = slots
        if not projected(g):
            u, m, v = moments(g, m, v)
            return factor * u, (m, v, last)
        *batch, r, short, _ = sizes(g)
        tall = g.shape[-2] > g.shape[-1]
        G = np.swapaxes(g, -1, -2) if tall else g
        P = draws_of(g.shape, (t - 1) // gap, (*batch, r, short)) / np.sqrt(r)
        R = P @ G
        N, m, v = moments(R, m, v)
        axes = (-2, -1) if whole else -2
        of_n, of_r = (np.sqrt(np.sum(x**2, axes, keepdims=True)) for x in (N, R))
        s = of_n / (of_r + eps_norm)
        S = s * (R if low else G)
        size = np.sqrt(np.sum(S**2, (-2, -1)))
        kept = np.minimum(size, growth * (last + eps_norm))
        S = S * (kept / size)[..., None, None]
        u = np.swapaxes(P, -1, -2) @ S if low else S
        return scale * factor * (np.swapaxes(u, -1, -2) if tall else u), (m, v, kept)

    return Reference(start, step)

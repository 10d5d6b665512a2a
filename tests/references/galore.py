"""The rules of `gradxform/transforms/galore.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def galore(rank, gap, scale, base, axes=None, longer=True):
    """Zhao et al., Algorithm 1, for matrices; other arrays go to the base as they are.

    Matrices are arrays of two dimensions; or with `axes`, a pair of the rows and the columns, all
    of two or more, whose other axes are batches.
    """

    def is_projected(x):
        return x.ndim == 2 if axes is None else x.ndim >= 2

    def last(x):
        return x if axes is None else np.moveaxis(x, axes, (-2, -1))

    def is_tall(g):
        return (g.shape[-2] >= g.shape[-1]) == longer

    def projection(P, g):
        return np.swapaxes(P, -1, -2) @ g if is_tall(g) else g @ P

    def projector(g):
        P = np.empty((*g.shape[:-2], g.shape[-2 if is_tall(g) else -1], min(rank, *g.shape[-2:])))
        for i in np.ndindex(g.shape[:-2]):
            u, _, vt = np.linalg.svd(g[i], full_matrices=False)
            P[i] = u[:, :rank] if is_tall(g) else vt[:rank].T
        return P

    def start(p):
        if not is_projected(p):
            return None, base.start(p)
        p = last(p)
        P = np.zeros((*p.shape[:-2], p.shape[-2 if is_tall(p) else -1], min(rank, *p.shape[-2:])))
        return P, base.start(projection(P, p))

    def step(g, slots, p, t):
        P, held = slots
        if not is_projected(g):
            u, held = base.step(g, held, p, t)
            return u, (None, held)
        g = last(g)
        P = projector(g) if (t - 1) % gap == 0 else P
        s, held = base.step(projection(P, g), held, p, t)
        u = scale * (P @ s if is_tall(g) else s @ np.swapaxes(P, -1, -2))
        return u if axes is None else np.moveaxis(u, (-2, -1), axes), (P, held)

    return Reference(start, step)

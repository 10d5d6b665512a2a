"""The rule of `gradxform/transforms/input_moments.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference


def by_inputs(moments, beta=0.95, every=64, ridge=0.2, eps=1e-8):
    """Du and Su, Algorithm 1, for W of shape (inputs, outputs) and moments that the parameter says.

    A parameter for which `moments` returns None has K = 0.001 I at every renewal.
    """

    def turned(x):
        return np.moveaxis(x, (0, -1), (-2, -1))

    def start(p):
        x = turned(p)
        identity = np.broadcast_to(np.eye(len(p)), (*x.shape[:-2], len(p), len(p)))
        return 1e-3 * identity, identity

    def step(g, slots, p, t):
        k, inverse = slots
        n = k.shape[-1]
        if t % every == 0:
            seen = moments(p)
            k = k if seen is None else beta * k + (1 - beta) * np.reshape(seen, k.shape)
            trace = np.trace(k, axis1=-2, axis2=-1)[..., None, None]
            inverse = np.linalg.inv(k + (ridge * trace / n + eps) * np.eye(n))
        u = inverse @ turned(g)
        return np.moveaxis(u, (-2, -1), (0, u.ndim - 1)), (k, inverse)

    return Reference(start, step)

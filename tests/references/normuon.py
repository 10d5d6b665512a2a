"""The rules of `gradxform/transforms/normuon.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros
from tests.references.muon import looks_ahead
from tests.references.orthogonal import newton_schulz, on_matrices


def normuon(beta=0.95, beta2=0.95, eps=1e-8, rms=0.2, nesterov=False, debias=False):
    """Li et al., Algorithm 1, with the neurons in the columns: W is their transpose."""

    def one(m, v):
        o = newton_schulz(m, eps=eps)
        kept = max(1, o.shape[1] / o.shape[0]) ** 0.5 * np.linalg.norm(o)
        size = kept if rms is None else rms * np.sqrt(o.size)
        neurons = beta2 * v[:1] + (1 - beta2) * np.mean(o**2, axis=0, keepdims=True)
        o = o / (np.sqrt(neurons) + eps)
        return size / np.linalg.norm(o) * o, np.broadcast_to(neurons, o.shape)

    def step(g, slots, p, t):
        m, v = slots
        m = beta * m + (1 - beta) * g
        u, v = on_matrices(one, looks_ahead(m, g, beta, t, nesterov, debias), v)
        return u, (m, v)

    return Reference(zeros(2), step)


def adamuon(beta=0.95, beta2=0.95, eps=1e-8, rms=0.2, nesterov=False, signs=True, debias=False):
    """Si et al., Algorithm 1."""

    def one(m, v):
        o = newton_schulz(np.sign(m) if signs else m, eps=eps)
        v = beta2 * v + (1 - beta2) * o**2
        o = o / (np.sqrt(v) + eps)
        return rms * np.sqrt(o.size) / np.linalg.norm(o) * o, v

    def step(g, slots, p, t):
        m, v = slots
        m = beta * m + g
        a = looks_ahead((1 - beta) * m, g, beta, t, nesterov, debias)
        u, v = on_matrices(one, a, v)
        return u, (m, v)

    return Reference(zeros(2), step)

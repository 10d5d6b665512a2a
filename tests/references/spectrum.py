"""The rules of `gradxform/transforms/spectrum.py` and its kin in NumPy float64."""

import numpy as np

from tests.references.base import Reference, zeros
from tests.references.muon import looks_ahead
from tests.references.orthogonal import STANDARD, on_matrices

SIMPLE = [(2.0, -1.5, 0.5)] * 12
# Published for s^0.1, of the iterates 0 to 11.
SOFT_WEIGHTS = [
    *(0.1091613623, 0.07085664498, 0.05210528973, 0.05457295795, 0.05011334061, 0.03334622198),
    *(0.05022104481, 0.1053727358, 0.1187323776, 0.1185061091, 0.1185059576, 0.1185059576),
]


def schatten(x):
    """The fourth root of the sum of fourth powers of singular values."""
    return np.sum(np.linalg.svd(x, compute_uv=False) ** 4) ** 0.25


SIZES = {"frobenius": np.linalg.norm, "schatten": schatten}


def iterates(x, turns, eps, norm="frobenius"):
    """X_0 = X / |X|, and X_k after each turn."""
    size = np.linalg.norm(x) + eps if norm == "frobenius" else schatten(x)
    x = x / size
    out = [x]
    for a, b, c in turns:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
        out.append(x)
    return out


def muon_spectrum(turns=STANDARD):
    """Muon's own: the last iterate."""
    return lambda x, eps, norm, t: (iterates(x, turns, eps, norm)[-1],) * 2


def contra(c):
    """1 - c s, c a number or a function of the count."""

    def f(x, eps, norm, t):
        xs = iterates(x, SIMPLE, eps, norm)
        now = c(t - 1) if callable(c) else c
        return xs[-1], xs[-1] - now * xs[0]

    return f


def soft():
    """About s^0.1."""

    def f(x, eps, norm, t):
        xs = iterates(x, SIMPLE, eps, norm)
        return xs[-1], sum(w * x for w, x in zip(SOFT_WEIGHTS, xs[:-1], strict=True))

    return f


def of_singular_values(function):
    """A function of the singular values of X / |X|, by a decomposition."""

    def f(x, eps, norm, t):
        u, s, v = np.linalg.svd(iterates(x, [], eps, norm)[0], full_matrices=False)
        return u @ v, u * function(s) @ v

    return f


def spectrum(
    f,
    beta=0.95,
    eps=1e-8,
    nesterov=True,
    debias=True,
    norm="frobenius",
    keep=None,
    equal=None,
    adaptive=False,
    to=None,
    share=0.0,
):
    """The average with other singular values."""

    def replaced(f, x, t):
        last, u = f(x, eps, norm, t)
        return last, u if keep is None else u * SIZES[keep](last) / SIZES[keep](u)

    def one(a, t):
        rows = np.sqrt(np.sum(a**2, axis=1, keepdims=True) + eps)
        columns = np.sqrt(np.sum(a**2, axis=0, keepdims=True) + eps)
        x = a / {None: 1, "inputs": rows, "outputs": columns, "both": rows * columns}[equal]
        last, u = replaced(f, x, t)
        if to is not None:
            _, u2 = replaced(to, x, t)
            now = share(t - 1) if callable(share) else share
            u = u + now * (u2 - u)
            u = u if keep is None else u * SIZES[keep](last) / SIZES[keep](u)
        return np.sum(a * last) * u if adaptive else u

    def step(g, slots, p, t):
        m = beta * slots[0] + (1 - beta) * g
        a = looks_ahead(m, g, beta, t, nesterov, debias)
        return on_matrices(lambda x: one(x, t), a), (m,)

    return Reference(zeros(1), step)


def neuron_rms(beta2=0.95, eps=1e-10, norm="frobenius"):
    """Along the longer side, with the norm as before."""

    def one(g, v):
        axis = 1 if g.shape[0] > g.shape[1] else 0
        mean = np.broadcast_to(np.mean(g**2, axis=axis, keepdims=True), g.shape)
        v = beta2 * v + (1 - beta2) * mean
        u = g / np.sqrt(np.maximum(v, eps))
        return u * SIZES[norm](g) / SIZES[norm](u), v

    def step(g, slots, p, t):
        u, v = on_matrices(one, g, slots[0])
        return u, (v,)

    return Reference(zeros(1), step)

"""The rules of `gradxform/transforms/orthogonal.py` in NumPy float64."""

import numpy as np

from tests.references.base import stateless

STANDARD = [(3.4445, -4.7750, 2.0315)] * 5


def newton_schulz(x, turns=STANDARD, eps=1e-8):
    """Jordan et al.: X / (|X|_F + eps), then X <- a X + b (X X^T) X + c (X X^T)^2 X."""
    x = x / (np.linalg.norm(x) + eps)
    for a, b, c in turns:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def on_matrices(f, *arrays):
    """Apply a function to each matrix of arrays whose first axis is rows, and whose last columns.

    It may return several arrays, of any shape.
    """
    turned = [np.moveaxis(x, (0, -1), (-2, -1)) for x in arrays]
    lead = turned[0].shape[:-2]
    done = [f(*(x[i] for x in turned)) for i in np.ndindex(lead)]
    if not isinstance(done[0], tuple):
        done = [(x,) for x in done]
    made = []
    for xs in zip(*done, strict=True):
        x = np.reshape(np.stack(xs), (*lead, *xs[0].shape))
        made.append(np.moveaxis(x, (-2, -1), (0, x.ndim - 1)))
    return made[0] if len(made) == 1 else tuple(made)


def orthogonalized(turns=STANDARD, eps=1e-8):
    """Newton-Schulz on every matrix."""
    return stateless(lambda g, p, t: on_matrices(lambda x: newton_schulz(x, turns, eps), g))


def fans():
    """The root of columns over rows, of the first and the last axis."""
    return stateless(lambda g, p, t: g * np.sqrt(g.shape[-1] / g.shape[0]))


def fans_of_kernel(places, inputs, outputs):
    """Pethick et al., sqrt(outputs / inputs) over the number of places, from axes of a kernel."""

    def f(g, p, t):
        size = np.prod([g.shape[i] for i in places])
        return g * np.sqrt(g.shape[outputs] / g.shape[inputs]) / size

    return stateless(f)

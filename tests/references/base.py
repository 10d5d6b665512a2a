"""The parts of every reference: the library's own, and helpers that several families share."""

import jax
import numpy as np

from gradxform.testing import (
    Reference as Reference,
    TreeReference as TreeReference,
    as_tree as as_tree,
    only as only,
    sequence as sequence,
    stateless as stateless,
    zeros as zeros,
)


def value_at(x, n):
    """The value of a number or schedule after `n` steps."""
    return x(n) if callable(x) else x


def dot(xs, ys):
    """The inner product of two lists of arrays."""
    return sum(np.sum(x * y) for x, y in zip(xs, ys, strict=True))


def norm(gs):
    """The norm of a list of arrays."""
    return np.sqrt(sum(np.sum(g**2) for g in gs))


def blank(ps, n):
    """`n` lists of zeros, each shaped like the parameters."""
    return tuple([np.zeros_like(p) for p in ps] for _ in range(n))


def on_rows(ref, table):
    """Apply a rule to the touched rows of a table.

    Returns `step(indices, values, t)`, which returns the table after the step. Values of the same
    row are summed; an index of `len(table)` is padding.
    """
    rule, n = as_tree(ref), len(table)
    state = rule.start([table])

    def step(indices, values, t):
        nonlocal state, table
        indices, values = np.asarray(indices), np.asarray(values, np.float64)
        rows = np.unique(indices[indices < n])
        dense = np.zeros((n + 1, *table.shape[1:]))
        np.add.at(dense, indices, values)
        seen = jax.tree.map(lambda s: s[rows], state)
        (u,), seen = rule.step([dense[rows]], seen, [table[rows]], t)
        state, table = jax.tree.map(lambda s: s.copy(), (state, table))
        jax.tree.map(lambda s, new: s.__setitem__(rows, new), state, seen)
        table[rows] += u
        return table

    return step


def to_batch(x, columns=1):
    """The matrices of an array, (B, m, n): rows are axis 0, columns axis 1 or -1."""
    x = np.moveaxis(x, (0, columns), (-2, -1))
    return x.reshape(-1, *x.shape[-2:])


def from_batch(x, shape, columns=1):
    """Undo `to_batch` for an array of that shape."""
    moved = np.moveaxis(np.empty(shape), (0, columns), (-2, -1)).shape
    return np.moveaxis(x.reshape(moved), (-2, -1), (0, columns))

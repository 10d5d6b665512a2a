"""CAME's confidence: how far directions are from their average, kept by rows and columns."""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.numerics import abs_sq
from gradxform.slots import zeros_like
from gradxform.transforms.factored import over_factored_root
from gradxform.transforms.tree_rules import zero_sums
from gradxform.types import Decay, NonNegative, NonNegativeSlot, PyTree, Slot


class ScaleByConfidenceState(NamedTuple):
    """State of `scale_by_confidence`. Of arrays without a matrix, r and c have length 1."""

    mu: Slot  # like params, at least float32; the average m
    r: NonNegativeSlot  # at least float32; the mean deviations of rows, (..., n, 1)
    c: NonNegativeSlot  # at least float32; the mean deviations of columns, (..., 1, k)


@transform
class scale_by_confidence(ArrayRule):
    """Average the updates, and divide the average by how far they are from it.

    Update rule for a matrix, from m = r = c = 0:

        m <- b1 m + (1 - b1) g
        s = |g - m|^2 + eps
        r <- b3 r + (1 - b3) (mean of s over each row)
        c <- b3 c + (1 - b3) (mean of s over each column)
        u = m / sqrt(r c / mean(r))

    The last two axes of an array form the matrix, and the others are batch axes. For vectors and
    scalars u = m. None of the averages is corrected for having started at 0.

    Args:
      b1: the decay of m, in [0, 1).
      b3: the decay of r and c, in [0, 1).
      eps: added to every squared deviation, at least 0; with 0, u is 0 where r or c is.

    Reference: Luo et al., CAME: Confidence-guided Adaptive Memory Efficient Optimization, 2023,
    Algorithm 2, its last lines.
    """

    b1: Decay = 0.9
    b3: Decay = 0.9999
    eps: NonNegative = 1e-16

    State = ScaleByConfidenceState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return averages of zeros."""

        def zeros(axis: int) -> PyTree:
            # Along this axis, or the only one.
            return zero_sums(params, lambda p: tuple(range(jnp.ndim(p)))[axis:][:1])

        return ScaleByConfidenceState(zeros_like(params), zeros(-1), zeros(-2))

    def rule(self, g, m, r, c, p):
        """Return the update, the average, and the deviations."""
        m = self.b1 * m + (1 - self.b1) * g
        if g.ndim < 2:
            return m, m, r, c
        n, k = (max(size, 1) for size in engine.whole_shape(g)[-2:])
        s = abs_sq(g - m) + self.eps
        row_sums, column_sums = engine.array_sums((s, -1), (s, -2), keepdims=True)
        r = self.b3 * r + (1 - self.b3) * (row_sums / k)
        c = self.b3 * c + (1 - self.b3) * (column_sums / n)
        mean = engine.array_sums((r, -2), keepdims=True) / n
        return over_factored_root(m, r, c, mean), m, r, c

"""RACS: gradient descent scaled by rows and columns."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.errors import require_non_negative
from gradxform.numerics import over
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root
from gradxform.transforms.tree_rules import zero_sums
from gradxform.types import Array, Decay, NonNegative, NonNegativeSlot, Params, PyTree, Size


class ScaleByRowsAndColumnsState(NamedTuple):
    """State of `scale_by_rows_and_columns`."""

    s: NonNegativeSlot  # (1, ..., 1, k), at least float32; of the last axis, the columns
    q: NonNegativeSlot  # (..., 1), at least float32; of all other axes, the rows


@transform
class scale_by_rows_and_columns(ArrayRule):
    """Divide the gradient by the roots of one number for each row and one for each column.

    Update rule for a matrix, from s = 0 and q = 1; of the last axis of an array are the columns,
    which are the outputs of a kernel, and of all others together the rows:

        a = 1
        `iterations` times:      b_j = (sum of a_i g_ij^2 over i) / |a|^2
                                 a_i = (sum of b_j g_ij^2 over j) / |b|^2
        s <- beta s + (1 - beta) b
        q <- beta q + (1 - beta) a
        u_ij = g_ij / (sqrt(s_j + eps) sqrt(q_i + eps))

    The products a_i b_j come to the nearest matrix of rank 1 to the squares g_ij^2. Neither average
    is corrected for its start. A vector is a single row. A matrix of n x k entries needs n + k
    numbers.

    Args:
      beta: the decay of both averages, in [0, 1).
      eps: added under both roots, at least 0; with 0, u is 0 where s or q is.
      iterations: how often a and b are computed, at least 0. With 0 both are the means of squares
        over rows and over columns, as in some code, whose product has the scale of g^4.

    Reference: Gong et al., Towards Efficient Optimizer Design for LLM via Structured Fisher
    Approximation with a Low-Rank Extension, 2025, RACS.
    """

    beta: Decay = 0.9
    eps: NonNegative = 1e-8
    iterations: Size = 5

    State = ScaleByRowsAndColumnsState
    locality = "array"
    sees_pieces = True

    def __post_init__(self) -> None:
        require_non_negative(self, "iterations")

    def init(self, params):
        """Return averages of 0 and of 1."""
        s, q = sums_of_rows_and_columns(params)
        return ScaleByRowsAndColumnsState(s, jax.tree.map(lambda x: x + 1, q))

    def rule(self, g, s, q, p):
        """Return the update and the averages."""
        if not g.size:
            return g, s, q
        g = bounded_square(g)
        rows, columns = rows_and_columns(g)
        shape = engine.whole_shape(g)
        n, k = max(math.prod(shape[:-1]), 1), max(math.prod(shape[-1:]), 1)
        # Relative to the largest, squares and sums of them neither overflow nor vanish.
        largest = engine.array_max(jnp.abs(g))
        square = jnp.square(over(g, largest, 0))
        b, a = engine.array_sums((square, rows), (square, columns), keepdims=True)
        b = b / n
        if self.iterations:
            a = _quotient(b, square, columns)
            for _ in range(self.iterations - 1):
                b = _quotient(a, square, rows)
                a = _quotient(b, square, columns)
        else:
            a = largest * (largest * (a / k))
        b = largest * (largest * b)
        s = self.beta * s + (1 - self.beta) * b
        q = self.beta * q + (1 - self.beta) * a
        return over_root(over_root(g, s, 0.0, self.eps), q, 0.0, self.eps), s, q


def rows_and_columns(x: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of the rows and that of the columns."""
    axes = tuple(range(jnp.ndim(x)))
    return axes[:-1], axes[-1:]


def sums_of_rows_and_columns(params: Params) -> tuple[PyTree, PyTree]:
    """Return zeros for the sums over the rows, and over the columns, of every parameter."""
    over_rows, over_columns = (lambda p, k=k: rows_and_columns(p)[k] for k in range(2))
    return zero_sums(params, over_rows), zero_sums(params, over_columns)


def _quotient(x: Array, square: Array, axes: tuple[int, ...]) -> Array:
    """Return (sum of x square) / (sum of x^2) over some axes; 0 where x is."""
    top, below = engine.array_sums((x * square, axes), (x * x, axes), keepdims=True)
    return over(top, below, 0)

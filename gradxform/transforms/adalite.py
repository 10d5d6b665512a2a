"""Adalite: Adam's moments of matrices, kept as products of rows and columns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.numerics import abs_sq, count_and_debias, over, shrinking
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root
from gradxform.slots import zero_count, zero_scalars_like
from gradxform.transforms.matrices.array_norms import array_norm, array_size
from gradxform.transforms.racs import rows_and_columns, sums_of_rows_and_columns
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeSlot,
    Positive,
    Slot,
)


class ScaleByAdaliteState(NamedTuple):
    """State of `scale_by_adalite`, all at least float32; a vector is a matrix's last axis."""

    count: Array  # int32 scalar; the number of updates so far
    v_out: NonNegativeSlot  # (1, ..., 1, k); the sums of v for each output
    v_in: NonNegativeSlot  # (..., 1); the shares of each input in v
    m_out: Slot  # (1, ..., 1, k); the averages of m for each output
    m_in: Slot  # (..., 1); the averages of m for each input
    m_size: Slot  # a scalar per parameter; the factor of the product


@transform
class scale_by_adalite(ArrayRule):
    """Rescale updates by moments of rank 1, of gradients as large as their parameters.

    Update rule for an array p, with |x| the Euclidean norm, from m = v = 0 and t = 1, 2, ...:

        g <- g max(|p| / max(|g|, g_norm_min), ratio_min)      (not for a single number)
        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) (g - m)^2
        m <- m + (1 - a b) (g - m)                             (of matrices only)
        u = (b1 m + (1 - b1) g) / sqrt(v / (1 - b2^t) + eps)

    where a is the softmax of the means of v along columns, one number a row, and b that of its
    means along rows. Of the last axis of an array are the columns, which are the outputs of a
    kernel, and of all others together the rows. A matrix remembers of v the sums of columns and of
    rows, of which it makes a product whose entries add up to 1: v keeps its shape, and not its
    size. Of m it remembers the product of weighted sums of columns and of rows that is nearest to
    m, where the weights are the softmaxes of v / tau. A matrix of n x k entries needs 2 (n + k)
    numbers.

    Args:
      b1: the decay of m, in [0, 1).
      b2: the decay of v, in [0, 1).
      eps: added under the root, at least 0.
      eps2: a lower bound on divisors of products, greater than 0.
      tau: the temperature of the weights, greater than 0.
      g_norm_min: a lower bound on |g|, greater than 0.
      ratio_min: a lower bound on the factor of g, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: pytorch_optimizer, Adalite; a paper is not known.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-6
    eps2: Positive = 1e-10
    tau: Positive = 1.0
    g_norm_min: Positive = 1e-10
    ratio_min: NonNegative = 1e-4

    State = ScaleByAdaliteState
    locality = "array"
    sees_pieces = True
    needs_params = True

    def init(self, params):
        """Return moments of zeros."""
        v, m = (sums_of_rows_and_columns(params) for _ in range(2))
        return ScaleByAdaliteState(zero_count(), *v, *m, zero_scalars_like(params))

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor that debiases v."""
        return count_and_debias(state, self.b2)

    def rule(self, g, v_out, v_in, m_out, m_in, m_size, p, of_v):
        """Return the update and the moments."""
        if not g.size:
            return g, v_out, v_in, m_out, m_in, m_size
        g = self._as_large_as(g, p)
        if g.ndim < 2:
            m = self.b1 * m_out + (1 - self.b1) * g
            v = self.b2 * v_out + (1 - self.b2) * abs_sq(g - m)
            return self._divided(g, m, of_v * v), v, v_in, m, m_in, m_size
        rows, columns = rows_and_columns(g)
        total = engine.array_sums((v_out, columns), keepdims=True)
        v = v_in * (v_out / jnp.maximum(total, self.eps2))
        m = self.b1 * (m_size * (m_in * m_out)) + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g - m)
        v_out, v_in = engine.array_sums((v, rows), (v, columns), keepdims=True)
        k = engine.whole_shape(g)[-1]
        of_out, of_in = v_out / (array_size(g) // k), v_in / k
        m = m + (1 - _softmax(of_out, columns) * _softmax(of_in, rows)) * (g - m)
        u = self._divided(g, m, of_v * v)
        total = engine.array_sums((v_out, columns), keepdims=True)
        v_in = v_in / jnp.maximum(total, self.eps2)
        of_out, of_in = (
            _softmax(of_out / self.tau, columns),
            _softmax(of_in / self.tau, rows),
        )
        m_out, m_in = engine.array_sums((m * of_in, rows), (m * of_out, columns), keepdims=True)
        product = engine.array_sums(m_in * m * m_out)
        of_out = engine.array_sums((m_out * m_out, columns), keepdims=True)
        of_in = engine.array_sums((m_in * m_in, rows), keepdims=True)
        m_size = product / jnp.maximum(jnp.reshape(of_out * of_in, ()), self.eps2)
        return u, v_out, v_in, m_out, m_in, m_size

    def _divided(self, g: Array, m: Array, v: Array) -> Array:
        return over_root(self.b1 * m + (1 - self.b1) * g, v, 0.0, self.eps)

    def _as_large_as(self, g: Array, p: Array) -> Array:
        """Return the gradient as large as the parameter, but not beyond the range of products."""
        g = bounded_square(g)
        largest = engine.array_max(jnp.abs(g))
        if g.ndim > 1 or array_size(g) > 1:
            # Relative to the largest entry, whose square is in the range.
            size = largest * array_norm(over(g, largest, 0))
            ratio = array_norm(p) / jnp.maximum(size, self.g_norm_min)
            ratio = jnp.maximum(ratio, self.ratio_min)
            g, largest = g * ratio, largest * ratio
        # Products of four such entries are in the range.
        return g * shrinking(largest, float(jnp.finfo(g.dtype).max) ** 0.2)


def _softmax(x: Array, axes: tuple[int, ...]) -> Array:
    """Return exp(x) over its sum along axes, of all pieces; `x` is at least 0."""
    below = x - jax.lax.stop_gradient(engine.array_max(x, axes, keepdims=True))
    # XLA may compute x anew for the maximum, and round otherwise: of the largest numbers, all may
    # then be far above it, or below.
    x = jnp.exp(jnp.where(below > 0, 0, below))
    return over(x, engine.array_sums((x, axes), keepdims=True), 0)

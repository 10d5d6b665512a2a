"""KL-Shampoo: Shampoo's matrices as factors of least Kullback-Leibler divergence."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import transform
from gradxform.numerics import safe_increment, squarable
from gradxform.slots import zero_count
from gradxform.transforms.eigenbases import (
    InEigenbases,
    are_renewed_in_turns,
    eigenvectors,
    first_bases,
    kl_factors,
    kl_followed_by,
    power_iterated,
    renewed_in_turns,
    sandwich,
    transposed,
    turns_due,
)
from gradxform.types import (
    Array,
    Decay,
    DType,
    FixedDecay,
    MatrixSlot,
    NonNegative,
    Positive,
    Size,
    StaticTree,
)


class KLShampooState(NamedTuple):
    """State of `scale_by_kl_shampoo`; every parameter has B matrices of sides m <= n."""

    count: Array  # int32 scalar; the number of updates so far
    mu: MatrixSlot  # (B, m, n), at least float32; the average of the gradient
    # For a side that keeps the identity (B, 1, 1).
    left: MatrixSlot  # (B, m, m); the covariance of rows
    right: MatrixSlot  # (B, n, n); the covariance of columns
    left_basis: MatrixSlot  # (B, m, m); its eigenvectors as columns, nearly
    right_basis: MatrixSlot  # (B, n, n)


@transform
class scale_by_kl_shampoo(InEigenbases):
    """Multiply an average of the gradient by the inverse roots of the covariances of both sides.

    Update rule for a matrix of sides m <= n (a tall one is turned), from M = 0 and
    L = R = kl_start I, with l = diag(Q_L^T L Q_L) and r = diag(Q_R^T R Q_R):

        M <- b1 M + (1 - b1) G
        U = Q_L [ (Q_L^T M Q_R) / (sqrt(l r^T) + eps) ] Q_R^T
        L <- beta L + (1 - beta) / n G Q_R diag(1 / r) Q_R^T G^T
        R <- beta R + (1 - beta) / m G^T Q_L diag(1 / l) Q_L^T G

    where l and r are those from before this gradient. Steps are as large as those of Adam, without
    its second moment. The first update is zero, and leaves M: it forms L and R, and takes Q_L and
    Q_R as their eigenvectors. Later bases follow by power iterations, spread over the steps of a
    period, as in `scale_by_soap`.

    The authors average l and r by themselves, from kl_start, which is the same as long as Q_L and
    Q_R stay, and bound the inverse roots. Here l and r are at least a rounding of the largest.

    If an entry of a gradient exceeds 2.6e15 (in float32), its matrix is first scaled down to that
    size, so that no square overflows.

    Args:
      b1: the decay of M, in [0, 1).
      beta: the decay of L and R, in [0, 1).
      eps: added to the root, at least 0.
      precondition_frequency: the number of steps from one renewal of a basis to the next, an
        integer, at least 1.
      max_precond_dim: the longest side that has a basis, an integer, at least 0; a longer one keeps
        the identity.
      kl_start: the multiple of the identity that L and R start from, greater than 0.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_soap`. Keyword-only.

    Raises:
      ValueError: if precondition_frequency is below 1; at init and update, if a parameter is not a
        matrix, or its numbers do not fit.
      TypeError: at init and update, for complex and integer leaves.

    Reference: Lin et al., Understanding and Improving Shampoo and SOAP via Kullback-Leibler
    Minimization, 2025; the defaults are those of its code.
    """

    b1: Decay = 0.9
    beta: FixedDecay = 0.98
    eps: NonNegative = 1e-8
    precondition_frequency: Size = 10
    max_precond_dim: Size = 10000
    kl_start: Positive = 0.1
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)

    State = KLShampooState

    def init(self, params):
        """Return an average of zeros, and multiples of the identity."""
        mu = self.matrix_slots(params, lambda b, m, n, dtype: jnp.zeros((b, m, n), dtype))
        bases = first_bases(self, params, self.max_precond_dim, start=self.kl_start)
        return KLShampooState(zero_count(), mu, **bases)

    def prepare(self, state, params):
        """Return the state, and the number of updates after the first."""
        return state._replace(count=safe_increment(state.count)), state.count

    def rule(self, g, m, left, right, q_left, q_right, count):
        """Return the update of every matrix, and its new state."""
        g = squarable(g, (-2, -1))
        # The first gradient only makes the bases: it must not move in a basis made of itself.
        m = jnp.where(count == 0, m, self.b1 * m + (1 - self.b1) * g)
        of_rows, of_columns = kl_factors(left, right, q_left, q_right, g)
        u = sandwich(transposed(q_left), m, q_right, self.compute_dtype)
        size = of_rows * of_columns  # 1 / sqrt(l r^T)
        u = u * size / (1 + self.eps * size)
        u = sandwich(q_left, u, transposed(q_right), self.compute_dtype)
        factors = of_rows, of_columns
        left, right = kl_followed_by(left, right, q_left, q_right, g, self.beta, *factors)

        if are_renewed_in_turns(left, right):
            turns = turns_due(count, len(g), self.precondition_frequency)
            bases = renewed_in_turns((left, right), (q_left, q_right), (), turns)
            return u, m, left, right, *bases

        def first() -> tuple[Array, ...]:
            return eigenvectors(left), eigenvectors(right)

        def later() -> tuple[Array, ...]:
            args = (left, right), (q_left, q_right), count, self.precondition_frequency
            return engine.renewed(_renewed_bases, *args)

        q_left, q_right = lax.cond(count == 0, first, later)
        return u, m, left, right, q_left, q_right


def _renewed_bases(left: Array, right: Array, q_left: Array, q_right: Array) -> tuple[Array, ...]:
    return power_iterated(left, q_left)[0], power_iterated(right, q_right)[0]

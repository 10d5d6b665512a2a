"""SOAP: Adam in the eigenbasis of Shampoo's two matrices."""

import functools
from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform.base import transform
from gradxform.numerics import bias_correction, over, safe_increment, scalar, squarable
from gradxform.numerics.roots import over_root
from gradxform.slots import zero_count
from gradxform.transforms.eigenbases import (
    InEigenbases,
    are_renewed_in_turns,
    eigenvectors,
    first_bases,
    followed_by,
    followed_in_place,
    in_bases,
    is_basis,
    kl_factors,
    kl_followed_by,
    power_iterated,
    renewed_in_place,
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


class SoapState(NamedTuple):
    """State of `scale_by_soap`; every parameter has B matrices of sides m <= n."""

    count: Array  # int32 scalar; the number of updates so far
    mu: MatrixSlot  # (B, m, n), at least float32; the average of the gradient, in the basis
    nu: MatrixSlot  # (B, m, n); the average of its square, in the basis
    # For a side that keeps the identity (B, 1, 1): Orbax does not save arrays without entries.
    left: MatrixSlot  # (B, m, m); the average of G G^T
    right: MatrixSlot  # (B, n, n); the average of G^T G
    left_basis: MatrixSlot  # (B, m, m); its eigenvectors as columns, nearly
    right_basis: MatrixSlot  # (B, n, n)


@transform
class scale_by_soap(InEigenbases):
    """Run Adam in the eigenbasis of Shampoo's matrices.

    Update rule for a matrix of sides m <= n (a tall one is turned), from zeros and for
    s = 1, 2, ..., the number of updates after the first:

        H = Q_L^T G Q_R
        M <- b1 M + (1 - b1) H;    V <- b2 V + (1 - b2) H^2
        U = Q_L [ M / (1 - b1^s) / (sqrt(V / (1 - b2^s)) + eps) ] Q_R^T
        L <- shampoo_beta L + (1 - shampoo_beta) G G^T;    R likewise, with G^T G

    The first update is zero: it only forms L and R, and takes Q_L and Q_R as their eigenvectors, in
    falling order of the eigenvalues. So no gradient meets a basis that was made of it. Later, at
    every `precondition_frequency`-th step, one power iteration follows L, after the step:

        Q_L <- the Q of QR(L Q_L), with columns in falling order of diag(Q_L^T L Q_L)

    and Q_R likewise. M is turned into the new basis, and the entries of V are put in its order.

    Among the matrices of equal sides, those that are i-th modulo `precondition_frequency` are
    renewed at step i: no step waits for all decompositions, and each matrix is decomposed once a
    period. The number of the step decides, so that a resumed run goes on exactly.

    On TPUs, whose compiler takes minutes for an eigendecomposition, bases of sides of more than 256
    begin with 20 such iterations from the identity, and QR is by panels of columns.

    With a `kl_start`, which makes it KL-SOAP, each side is scaled by the other's inverse, for
    matrices whose Kronecker product is nearest to the covariance of the gradient:

        L <- shampoo_beta L + (1 - shampoo_beta) / n G Q_R diag(1 / r) Q_R^T G^T
        R <- shampoo_beta R + (1 - shampoo_beta) / m G^T Q_L diag(1 / l) Q_L^T G

    with l = diag(Q_L^T L Q_L) and r = diag(Q_R^T R Q_R) from before this gradient, and from
    L = R = kl_start I. A side that keeps the identity has 1 for l or r. The authors average l and r
    by themselves from 0.1, which is the same as long as Q_L and Q_R stay; so 0.1 is theirs.

    The three costs of a matrix beside Adam's: the memory of L, R and the two bases, 2 m^2 + 2 n^2;
    six to eight products a step; and QR decompositions, which are slow on accelerators. With
    one_sided, or a small max_precond_dim, the longer side costs nothing. Statistics, bases and
    renewals are computed in full float32, the other products in the precision that JAX is told to
    use (`jax.default_matmul_precision`).

    If an entry of a gradient exceeds 2.6e15 (in float32), its matrix is first scaled down to that
    size, so that no square overflows. Below 1e-20 the squares are 0, and so is the update.

    Args:
      b1: the decay of the average of the gradient, in [0, 1).
      b2: the decay of the average of its square, in [0, 1).
      shampoo_beta: the decay of L and R, in [0, 1). Defaults to b2.
      eps: added to the root, at least 0.
      precondition_frequency: the number of steps from one renewal of a basis to the next, an
        integer, at least 1.
      max_precond_dim: the longest side that has a basis, an integer, at least 0; a longer one keeps
        the identity. With 0 the rule is Adam's.
      correct_bias: whether to divide by 1 - b1^s and 1 - b2^s. Keyword-only.
      eps_before_correction: whether eps is added to the root before that is corrected, as in the
        authors' code. Keyword-only.
      normalize_grads: whether to divide every matrix of U by its root mean square, before the bias
        corrections: its entries then have the root mean square sqrt(1 - b2^s) / (1 - b1^s), or 1
        without correct_bias. Keyword-only.
      one_sided: whether the longer side keeps the identity; of equal sides, the columns.
        Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: "bfloat16" for products of 16-bit factors, and exchanges of 16-bit gradients
        and updates on a mesh; statistics and bases stay. None: the dtype of the gradient, at least
        float32. Keyword-only.
      kl_start: the multiple of the identity that L and R start from, greater than 0, for factors of
        least Kullback-Leibler divergence; None for Shampoo's. Keyword-only.

    Raises:
      ValueError: if precondition_frequency is below 1; at init and update, if a parameter is not a
        matrix, or its numbers do not fit.
      TypeError: at init and update, for complex and integer leaves.

    Reference: Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, 2024, Algorithm 3;
    the defaults are those of its code. Lin et al., Understanding and Improving Shampoo and SOAP via
    Kullback-Leibler Minimization, 2025, for kl_start.
    """

    b1: Decay = 0.95
    b2: FixedDecay = 0.95
    shampoo_beta: FixedDecay | None = None
    eps: NonNegative = 1e-8
    precondition_frequency: Size = 10
    max_precond_dim: Size = 10000
    correct_bias: bool = field(default=True, kw_only=True)
    eps_before_correction: bool = field(default=False, kw_only=True)
    normalize_grads: bool = field(default=False, kw_only=True)
    one_sided: bool = field(default=False, kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)
    kl_start: Positive | None = field(default=None, kw_only=True)

    State = SoapState

    def init(self, params):
        """Return averages and matrices of zeros, and the identity as basis."""

        def whole(count: int, m: int, n: int, dtype: Any) -> Array:
            return jnp.zeros((count, m, n), dtype)

        return SoapState(
            count=zero_count(),
            mu=self.matrix_slots(params, whole),
            nu=self.matrix_slots(params, whole),
            **first_bases(self, params, self.max_precond_dim, self.one_sided, self.kl_start or 0.0),
        )

    def prepare(self, state, params):
        """Return the state, the number of updates after the first, and the bias corrections."""
        count, of_m, of_v = state.count, scalar(1.0), scalar(1.0)
        if self.correct_bias:
            s = jnp.maximum(count, 1)
            of_m, of_v = bias_correction(self.b1, s), bias_correction(self.b2, s)
        if self.eps_before_correction:
            of_m, of_v = of_m / jnp.sqrt(of_v), jnp.ones_like(of_v)
        return state._replace(count=safe_increment(count)), count, of_m, of_v

    def rule(self, g, m, v, left, right, q_left, q_right, count, of_m, of_v):
        """Return the step of Adam, turned back, and the new state of every matrix."""
        g = squarable(g, (-2, -1))
        h = sandwich(transposed(q_left), g, q_right, self.compute_dtype)
        m, v, u = self._adam(m, v, h, count, of_m, of_v)
        u = sandwich(q_left, u, transposed(q_right), self.compute_dtype)
        u = self._as_long(u, count, of_m, of_v)
        beta = self.b2 if self.shampoo_beta is None else self.shampoo_beta
        if self.kl_start is None:
            left, right = followed_by(left, right, g, beta)
        else:
            factors = kl_factors(left, right, q_left, q_right, g)
            left, right = kl_followed_by(left, right, q_left, q_right, g, beta, *factors)

        if are_renewed_in_turns(left, right):
            turns = turns_due(count, len(g), self.precondition_frequency)
            new = renewed_in_turns((left, right), (q_left, q_right), (m, v), turns)
            return u, new[2], new[3], left, right, *new[:2]

        def first() -> tuple[Array, ...]:
            return eigenvectors(left), eigenvectors(right), m, v

        def later() -> tuple[Array, ...]:
            factors, old = (left, right), (q_left, q_right, m, v)
            return engine.renewed(_renewed_bases, factors, old, count, self.precondition_frequency)

        if is_basis(left, g, -2) or is_basis(right, g, -1):
            # The first step needs the eigenvectors of all matrices. It is once in a run, so that a
            # branch does not make one step of every period longer, as it would later.
            q_left, q_right, m, v = lax.cond(count == 0, first, later)
        return u, m, v, left, right, q_left, q_right

    def goes_in_place(self, m, v, left, right, q_left, q_right):
        """Whether `rule_in_place` stands for `rule`: where bases are renewed in turns."""
        return self.kl_start is None and are_renewed_in_turns(left, right)

    def rule_in_place(self, at, count, of_m, of_v):
        """Return a matrix after the step of `rule`, with few arrays at once."""
        averages, factors, bases = (0, 1), (2, 3), (4, 5)
        at = followed_in_place(
            at, factors, self.b2 if self.shampoo_beta is None else self.shampoo_beta
        )
        h = squarable(at.gradient(), (-2, -1))
        at, h = in_bases(at, bases, h, self.compute_dtype)
        step = functools.partial(self._adam, count=count, of_m=of_m, of_v=of_v)
        at, (u,) = at.with_slots(step, averages, h)
        at, u = at.settled(u)
        at, u = in_bases(at, bases, u, self.compute_dtype, is_back=True)
        at = at.with_update(self._as_long(u, count, of_m, of_v)).settled()[0]
        (turns,) = turns_due(count, 1, self.precondition_frequency)
        return renewed_in_place(at, factors, bases, averages, turns)

    def _adam(self, m, v, h, count, of_m, of_v):
        """Return the averages of a gradient and of its square, and the step of Adam."""
        # The first gradient only makes the bases: it must not move in a basis made of itself.
        is_first = count == 0
        m = jnp.where(is_first, m, self.b1 * m + (1 - self.b1) * h)
        v = jnp.where(is_first, v, self.b2 * v + (1 - self.b2) * h * h)
        return m, v, of_m * over_root(m, of_v * v, self.eps)

    def _as_long(self, u, count, of_m, of_v):
        """Return the step as long as it is taken."""
        u = jnp.where(count == 0, 0, u)
        if self.normalize_grads:
            size = (u.shape[-2] * u.shape[-1]) ** 0.5
            # The corrections of the averages must not cancel with the size of the matrix.
            u = of_m / jnp.sqrt(of_v) * over(u * size, linalg.frobenius_norm(u))
        return u


def _renewed_bases(
    left: Array, right: Array, q_left: Array, q_right: Array, m: Array, v: Array
) -> tuple[Array, ...]:
    """Return the next bases, with both averages in them."""
    new_left, of_rows = power_iterated(left, q_left) if is_basis(left, m, -2) else (q_left, None)
    new_right, of_columns = q_right, None
    if is_basis(right, m, -1):
        new_right, of_columns = power_iterated(right, q_right)
    if of_rows is not None:
        m = linalg.matmul(linalg.matmul(transposed(new_left), q_left), m)
        v = jnp.take_along_axis(v, of_rows[..., :, None], axis=-2)
    if of_columns is not None:
        m = linalg.matmul(m, linalg.matmul(transposed(q_right), new_right))
        v = jnp.take_along_axis(v, of_columns[..., None, :], axis=-1)
    return new_left, new_right, m, v

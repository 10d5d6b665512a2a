"""AdaGO: orthogonalized momentum with the step size of AdaGrad."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import linalg
from gradxform.base import transform
from gradxform.errors import name_of
from gradxform.numerics import not_zero, over, safe_increment, value_at
from gradxform.numerics.roots import root
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.orthogonal import Orthogonalizing
from gradxform.types import (
    Array,
    Decay,
    DType,
    MatrixSlot,
    NonNegative,
    NonNegativeOrSchedule,
    Positive,
    Scalar,
    Slot,
)


class AdaGOState(NamedTuple):
    """State of `scale_by_adago` and `scale_by_shaped_adago`."""

    mu: Slot  # like params, at least float32; the average m of the gradient
    sum_of_squares: MatrixSlot  # (B,), at least float32; the sum V of each parameter's B matrices
    count: Array | None = None  # int32 scalar; the number of updates; None without a schedule


@transform
class scale_by_adago(Orthogonalizing):
    """Orthogonalize an average of the gradient, with a step size from the sum of squared norms.

    Update rule for a matrix, from m = 0, V = initial_accumulator_value, and with |g| its Frobenius
    norm:

        m <- beta m + (1 - beta) g
        c = min(|g|, max_norm)
        V <- V + c^2
        u = max(min_step, learning_rate c / sqrt(V)) NewtonSchulz(m)

    The learning rate is inside the maximum: a schedule does not lead below `min_step`. What follows
    must not scale by a rate again; `scale(-1.0)` makes u point downhill.

    Args:
      learning_rate: a number, at least 0, or a schedule.
      beta: the decay of m, in [0, 1).
      max_norm: the bound of the norms, gamma in the paper, greater than 0.
      min_step: the least step size, epsilon in the paper, at least 0.
      initial_accumulator_value: the first V, at least 0.
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the norm of a matrix, at least 0; with 0 a matrix of zeros stays. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Zhang et al., AdaGrad Meets Muon: Adaptive Stepsizes for Orthogonal Updates, 2025,
    Algorithm 1.
    """

    learning_rate: NonNegativeOrSchedule
    beta: Decay = 0.95
    max_norm: Positive = 10.0
    min_step: NonNegative = 5e-4
    initial_accumulator_value: NonNegative = 1e-6
    mu_dtype: DType = None

    oriented = True
    averages_of = (("mu", "g"),)
    State = AdaGOState

    @property
    def unused_slots(self) -> tuple[str, ...]:
        """The count, unless there is a schedule."""
        return () if callable(self.learning_rate) else ("count",)

    def init(self, params):
        """Return averages of zeros, and sums of the first value."""

        def first(b: int, n: int, k: int, dtype: Any) -> Array:
            return jnp.full((b,), self.initial_accumulator_value, dtype)

        count = zero_count() if callable(self.learning_rate) else None
        slots = zeros_like(params, self.mu_dtype), self.matrix_slots(params, first)
        return AdaGOState(*slots, count)

    def prepare(self, state, params):
        """Return the state and this step's learning rate."""
        if state.count is None:
            return state, value_at(self.learning_rate, zero_count())
        rate = value_at(self.learning_rate, state.count)
        return state._replace(count=safe_increment(state.count)), rate

    def entries(
        self, g: Array, m: Array, p: Array | None, rate: Scalar
    ) -> tuple[tuple[Array, Array], Array]:
        """Return the gradient and what is orthogonalized, and the average."""
        m = self.beta * m + (1 - self.beta) * g
        return (g, m), m

    def rule(self, g, a, total, rate):
        """Return the update of a batch of matrices, and the sums."""
        total = total + self.clipped_norm(g) ** 2
        size = jnp.maximum(self.size(rate, g, a, total), self.min_step)
        return size[:, None, None] * self.orthogonal(a), total

    def size(self, rate: Scalar, g: Array, a: Array, total: Array) -> Array:
        """Return the step sizes, before their least."""
        return rate * self.over_sum(self.clipped_norm(g), root(total))

    def clipped_norm(self, x: Array) -> Array:
        """Return the norms of a batch of matrices, at most `max_norm`."""
        return jnp.minimum(linalg.frobenius_norm(x)[:, 0, 0], self.max_norm)

    def over_sum(self, x: Array, divisor: Array) -> Array:
        """Return the quotient, 0 where nothing was added to a sum that began with 0."""
        return over(x, divisor, not_zero(self.initial_accumulator_value, x.dtype))


@transform
class scale_by_shaped_adago(scale_by_adago):
    """Do what pytorch_optimizer's AdaGO does: `scale_by_adago` with factors of the shape, over V.

    Update rule for a matrix of n rows and k columns, with m, c and V of `scale_by_adago`:

        f = sqrt(max(1, k / n))      (by_shape)
        f = consistent_rms sqrt(max(n, k))
        u = max(min_step, learning_rate f c / V) NewtonSchulz(m)      (with root: c / sqrt(V))

    With nesterov, beta m + (1 - beta) g stands for m in the last line, and in c there for g.

    Args:
      learning_rate: a number, at least 0, or a schedule.
      beta: the decay of m, in [0, 1).
      max_norm: the bound of the norms, greater than 0.
      min_step: the least step size, at least 0.
      initial_accumulator_value: the first V, at least 0.
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the norm of a matrix, at least 0; with 0 a matrix of zeros stays. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.
      nesterov: whether to look one step ahead. Keyword-only.
      root: whether to divide by the root of V, as the paper does. Keyword-only.
      by_shape: whether wide matrices have larger steps. Keyword-only.
      consistent_rms: the root mean square of the entries of an update for a step size of 1, at
        least 0; not with `by_shape`. Keyword-only.

    Raises:
      ValueError: with both `by_shape` and `consistent_rms`; at init and update, if a parameter is
        not a matrix, or its numbers do not fit.

    Reference: `pytorch_optimizer.AdaGO`; Zhang et al., AdaGrad Meets Muon: Adaptive Stepsizes for
    Orthogonal Updates, 2025, Algorithm 1.
    """

    nesterov: bool = field(default=False, kw_only=True)
    root: bool = field(default=False, kw_only=True)
    by_shape: bool = field(default=False, kw_only=True)
    consistent_rms: NonNegative | None = field(default=None, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if self.by_shape and self.consistent_rms is not None:
            raise ValueError(
                f"{name_of(self)}: by_shape and consistent_rms are two factors of the shape; set "
                "one of them."
            )

    def entries(self, g, m, p, rate):
        """Return the gradient and what is orthogonalized, and the average."""
        (g, m), _ = super().entries(g, m, p, rate)
        return (g, self.beta * m + (1 - self.beta) * g if self.nesterov else m), m

    def size(self, rate, g, a, total):
        """Return the step sizes, before their least."""
        (n, k), factor = g.shape[-2:], 1.0
        if self.consistent_rms is not None:
            factor = self.consistent_rms * max(n, k) ** 0.5
        elif self.by_shape:
            factor = max(1, k / max(n, 1)) ** 0.5
        clipped = self.clipped_norm(a if self.nesterov else g)
        return rate * factor * self.over_sum(clipped, root(total) if self.root else total)

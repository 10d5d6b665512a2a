"""Muon whose steps have rows or columns of equal length: Aurora."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import transform
from gradxform.errors import require_at_least
from gradxform.linalg.products import with_largest_one
from gradxform.numerics.roots import norm
from gradxform.slots import zeros_like
from gradxform.transforms.matrices.dimensions import axes_of_all
from gradxform.transforms.muon import averaged
from gradxform.transforms.orthogonal import Orthogonalizing
from gradxform.transforms.spectra import SIMPLE_TURN
from gradxform.types import Array, Decay, DType, PositiveShare, Size, Slot


class ScaleByAuroraState(NamedTuple):
    """State of `scale_by_aurora`."""

    mu: Slot  # like params, at least float32; the moving average m


@transform
class scale_by_aurora(Orthogonalizing):
    """Orthogonalize an average so that the vectors along the longer side become equally long.

    Update rule for a matrix with sides m < n, j counting the longer one, from m = 0:

        m <- beta m + (1 - beta) g
        a = beta m + (1 - beta) g                          (without nesterov: m)
        d_j = 1 / max(norm of a_ij over i, 1e-7)
        u = NewtonSchulz(a_ij d_j)
        d_j <- d_j (m / (n sum of u_ij^2 over i))^damping;  u = NewtonSchulz(a_ij d_j)

    where the last line is repeated, iterations - 1 times in all. The orthogonal factor of a alone
    leaves some neurons of a high or wide matrix nearly without update; with d all have
    sqrt(m / n). A square matrix is orthogonalized as it is.

    Args:
      beta: the decay of m, in [0, 1).
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`; by default 2, -1.5, 0.5. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the norm of a matrix, at least 0; with 0 a matrix of zeros stays. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.
      iterations: how often a matrix is orthogonalized, at least 1; with 1 its vectors are only made
        equal before. Keyword-only.
      damping: the power of the correction of d, in (0, 1]. Keyword-only.
      nesterov: whether to look one step ahead. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Tilde Research, Aurora, github.com/tilde-research/aurora-release, 2026.
    """

    beta: Decay = 0.95
    mu_dtype: DType = None
    iterations: Size = field(default=2, kw_only=True)
    damping: PositiveShare = field(default=0.5, kw_only=True)
    nesterov: bool = field(default=True, kw_only=True)
    ns_coeffs: tuple[Any, ...] = field(default=SIMPLE_TURN, kw_only=True)
    ns_steps: Size = field(default=12, kw_only=True)

    State = ScaleByAuroraState
    averages_of = (("mu", "g"),)

    def __post_init__(self):
        super().__post_init__()
        require_at_least(self, 1, "iterations")

    def init(self, params):
        """Return an average of zeros."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return ScaleByAuroraState(zeros_like(params, self.mu_dtype))

    def entries(self, g: Array, m: Array, p: Array | None) -> tuple[Array, Array]:
        """Return what is orthogonalized, and the average."""
        return averaged(self, g, m, *((self.beta, 1 - self.beta) if self.nesterov else (1.0, 0.0)))

    def rule(self, a):
        """Return matrices with equal columns, which are not fewer than the rows."""
        m, n = a.shape[-2:]
        if m == n:
            return self.orthogonal(a)
        a = with_largest_one(a)
        d = 1 / jnp.maximum(norm(a, -2), _LEAST)
        u = self.orthogonal(a * d)
        for _ in range(self.iterations - 1):
            square = jnp.maximum(jnp.sum(u * u, axis=-2, keepdims=True), _LEAST**2)
            d = d * (m / n / square) ** self.damping
            u = self.orthogonal(a * d)
        return u


# The least norm of a vector.
_LEAST = 1e-7

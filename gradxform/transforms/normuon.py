"""Muon with second moments of what it has orthogonalized: NorMuon, AdaMuon."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import slots_with, transform
from gradxform.numerics import safe_increment
from gradxform.numerics.roots import norm, over_root
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.muon import weights_of
from gradxform.transforms.orthogonal import Orthogonalizing, with_norm
from gradxform.types import Array, Decay, DType, MatrixSlot, NonNegative, Scalar, Slot


class MuonMomentsState(NamedTuple):
    """State of `scale_by_normuon` and `scale_by_adamuon`."""

    mu: Slot  # like params, at least float32; the average m of the gradient
    # (B, outputs) for NorMuon, (B, inputs, outputs) for AdaMuon, of each parameter's B matrices, at
    # least float32; the average v of the squares
    nu: MatrixSlot
    count: Array | None = None  # int32 scalar; the number of updates so far; None without debias


class _DebiasingNorMuon(Orthogonalizing):
    """Base of the rules here: two moments, and a count with `debias`."""

    debias: bool

    State = MuonMomentsState
    unused_slots = slots_with(count="debias")
    averages_of = (("mu", "g"),)

    def prepare(self, state, params):
        """Return the state and, with debias, the weights of the average and the gradient."""
        if state.count is None:
            return (state,)
        count = safe_increment(state.count)
        return state._replace(count=count), *weights_of(self, count)


def _nesterov_direction(
    rule: Any, g: Array, m: Array, weights: tuple[Scalar, ...]
) -> tuple[Array, Array]:
    m = rule.beta * m + (1 - rule.beta) * g
    if not weights and not rule.nesterov:
        return m, m
    of_m, of_g = weights or (rule.beta, 1 - rule.beta)
    return of_m * m + of_g * g, m


@transform
class scale_by_normuon(_DebiasingNorMuon):
    """Orthogonalize an average of the gradient, and divide each neuron by its root mean square.

    Update rule for a matrix of n rows, its inputs, and k columns, its neurons, from m = 0, v = 0:

        m <- beta m + (1 - beta) g
        a = m
        a = beta m + (1 - beta) g                                        (with nesterov)
        a = beta m / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)      (and debias)
        o = NewtonSchulz(a)
        v_j <- beta2 v_j + (1 - beta2) mean of o_ij^2 over i
        o_ij <- o_ij / (sqrt(v_j) + eps)
        u = rms sqrt(n k) o / |o|
        u = sqrt(max(1, k / n)) |NewtonSchulz(a)| o / |o|                (without rms)

    The norm of u is the same at every step; with an `rms` of 0.2 it is that of Adam's updates, so
    that learning rates and weight decays for AdamW fit. Without rms, as in the authors' code, it is
    that of `muon`, whose learning rates fit.

    Which neurons a matrix has is decided by its output axes; a tall matrix is not turned.

    Args:
      beta: the decay of m, in [0, 1).
      beta2: the decay of v, in [0, 1).
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the roots, and to the norm of a matrix, at least 0. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.
      nesterov: whether to look one step ahead. Keyword-only.
      debias: whether to correct the average for its start at 0, as `scale_by_muon` does by
        default; a step along m alone does not depend on it. Keyword-only.
      rms: the root mean square of the entries of u, at least 0, or None. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Li et al., NorMuon: Making Muon more efficient and scalable, 2025, Algorithm 1.
    """

    beta: Decay = 0.95
    beta2: Decay = 0.95
    mu_dtype: DType = None
    nesterov: bool = field(default=False, kw_only=True)
    debias: bool = field(default=False, kw_only=True)
    rms: NonNegative | None = field(default=0.2, kw_only=True)

    oriented = True

    def init(self, params):
        """Return averages of zeros."""
        return MuonMomentsState(
            mu=zeros_like(params, self.mu_dtype),
            count=zero_count() if self.debias else None,
            nu=self.matrix_slots(params, lambda b, n, k, dtype: jnp.zeros((b, k), dtype)),
        )

    def entries(self, g: Array, m: Array, p: Array | None, *weights: Scalar) -> tuple[Array, Array]:
        """Return what is orthogonalized, and the average."""
        return _nesterov_direction(self, g, m, weights)

    def rule(self, a, v, *_):
        """Return the update of a batch of matrices, and the average of the squares."""
        o = self.orthogonal(a)
        n, k = o.shape[-2:]
        if self.rms is None:
            size = max(1, k / max(n, 1)) ** 0.5 * norm(o, (-2, -1))
        else:
            size = self.rms * (n * k) ** 0.5
        v = self.beta2 * v + (1 - self.beta2) * jnp.mean(o * o, axis=-2)
        return with_norm(over_root(o, v[:, None, :], self.eps), size), v


@transform
class scale_by_adamuon(_DebiasingNorMuon):
    """Orthogonalize the signs of a momentum, and divide each entry by its root mean square.

    Update rule for a matrix of n rows and k columns, from m = 0, v = 0:

        m <- beta m + (1 - beta) g
        a = m
        a = beta m + (1 - beta) g                                        (with nesterov)
        a = beta m / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)      (and debias)
        o = NewtonSchulz(sign(a))    (without `signs`: of a)
        v <- beta2 v + (1 - beta2) o^2
        o <- o / (sqrt(v) + eps)
        u = rms sqrt(n k) o / |o|

    The norm of u is the same at every step; with an `rms` of 0.2 it is that of Adam's updates, so
    that learning rates and weight decays for AdamW fit.

    Differs from the paper, where m is a sum and both decays are one number, in that m is an
    average, which cannot overflow. Neither signs nor NewtonSchulz depend on its size.

    Args:
      beta: the decay of m, in [0, 1).
      beta2: the decay of v, in [0, 1).
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the roots, and to the norm of a matrix, at least 0. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.
      signs: whether to orthogonalize the signs of m, so that no entry outweighs others.
        Keyword-only.
      nesterov: whether to look one step ahead. Keyword-only.
      debias: as in `scale_by_normuon`. Keyword-only.
      rms: the root mean square of the entries of u, at least 0. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Si et al., AdaMuon: Adaptive Muon Optimizer, 2025, Algorithm 1.
    """

    beta: Decay = 0.95
    beta2: Decay = 0.95
    mu_dtype: DType = None
    signs: bool = field(default=True, kw_only=True)
    nesterov: bool = field(default=False, kw_only=True)
    debias: bool = field(default=False, kw_only=True)
    rms: NonNegative = field(default=0.2, kw_only=True)

    def init(self, params):
        """Return averages of zeros."""
        return MuonMomentsState(
            mu=zeros_like(params, self.mu_dtype),
            count=zero_count() if self.debias else None,
            nu=self.matrix_slots(params, lambda b, m, n, dtype: jnp.zeros((b, m, n), dtype)),
        )

    def entries(self, g: Array, m: Array, p: Array | None, *weights: Scalar) -> tuple[Array, Array]:
        """Return what is orthogonalized, and the average."""
        a, m = _nesterov_direction(self, g, m, weights)
        return jnp.sign(a) if self.signs else a, m

    def rule(self, a, v, *_):
        """Return the update of a batch of matrices, and the average of the squares."""
        o = self.orthogonal(a)
        v = self.beta2 * v + (1 - self.beta2) * o * o
        o = over_root(o, v, self.eps)
        return with_norm(o, self.rms * (o.shape[-2] * o.shape[-1]) ** 0.5), v

"""Muown: Muon for the directions of neurons, Adam for their norms."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import transform
from gradxform.numerics import count_and_debias, value_at
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import norm, over_root
from gradxform.slots import zero_count
from gradxform.transforms.orthogonal import Orthogonalizing
from gradxform.types import Array, Decay, MatrixSlot, NonNegative, NonNegativeOrSchedule

_LEAST = 1e-12  # the least norm: a neuron of zeros has a direction after its first step


class MuownState(NamedTuple):
    """State of `step_by_muown`; every parameter has B matrices of n inputs and k neurons."""

    count: Array  # int32 scalar; the number of updates so far
    mu: MatrixSlot  # (B, n, k), at least float32; the average m of the gradient of V
    # (B, k); the norm r of the columns of V, with the sign of s; 0 before the first step
    length: MatrixSlot
    magnitude_mu: MatrixSlot  # (B, k); the average of the gradient of s
    magnitude_nu: MatrixSlot  # (B, k); the average of its square


@transform
class step_by_muown(Orthogonalizing):
    """Emit the whole step of Muown: Muon for the directions of neurons, Adam for their norms.

    A matrix P of n rows, its inputs, and k columns, its neurons, is P_j = s_j V_j / |V_j|. Update
    rule, from m = mu = nu = 0, s_j = |P_j|, V = P and t = 1, 2, ..., with U_j = V_j / |V_j|:

        d_j = <g_j, U_j>
        m_j <- beta m_j + (1 - beta) (s_j / |V_j|) (g_j - d_j U_j)
        a = m    (nesterov: beta m + (1 - beta) (s_j / |V_j|) (g_j - d_j U_j))
        V <- V - lr(t-1) c NewtonSchulz(a)
        mu <- b1 mu + (1 - b1) d;    nu <- b2 nu + (1 - b2) d^2
        s <- s - lr(t-1) (mu / (1 - b1^t)) / (sqrt(nu / (1 - b2^t)) + adam_eps)
        s <- (1 - lr(t-1) weight_decay) s
        u_j = s_j V_j / |V_j| - P_j

    with c = consistent_rms sqrt(max(n, k)), or without it sqrt(max(1, k / n)).

    The norms of neurons are kept near what the loss asks for, where those of Muon grow. |V| grows,
    so that the directions turn ever more slowly. s is read from the parameter at every step, so
    that other parts may move it. A norm below 1e-12 counts as 1e-12: a neuron of zeros gets a
    direction in its first step, and its size from the second on.

    Which neurons a matrix has is decided by its output axes; a tall matrix is not turned. Must be
    the last part of a chain that changes updates.

    The authors' code differs in the decay alone, which there is -lr weight_decay P, before the
    step; the form here is that of NVIDIA's Emerging-Optimizers.

    Args:
      learning_rate: of directions and norms, at least 0, or a schedule.
      beta: the decay of m, in [0, 1).
      b1: the decay of mu, in [0, 1).
      b2: the decay of nu, in [0, 1).
      weight_decay: of the norms, at least 0, or a schedule.
      adam_eps: added to the root, at least 0.
      ns_coeffs: as in `orthogonalize_updates`. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the norm of a matrix, at least 0. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.
      nesterov: whether to look one step ahead. Keyword-only.
      consistent_rms: as in `scale_by_shape`. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; at
        update, if no parameters are given.

    Reference: Lion et al., Muown: Row-Norm Control for Muon Optimization, 2026.
    """

    learning_rate: NonNegativeOrSchedule
    beta: Decay = 0.95
    b1: Decay = 0.9
    b2: Decay = 0.95
    weight_decay: NonNegativeOrSchedule = 0.0
    adam_eps: NonNegative = 1e-8
    nesterov: bool = field(default=False, kw_only=True)
    consistent_rms: NonNegative | None = field(default=0.2, kw_only=True)

    State = MuownState
    oriented = True
    needs_params = True
    sets_params = True

    def init(self, params):
        """Return averages of zeros, and lengths that are not known yet."""

        def zeros() -> object:
            return self.matrix_slots(params, lambda b, n, k, dtype: jnp.zeros((b, k), dtype))

        mu = self.matrix_slots(params, lambda b, n, k, dtype: jnp.zeros((b, n, k), dtype))
        return MuownState(zero_count(), mu, zeros(), zeros(), zeros())

    def prepare(self, state, params):
        """Return the state, the learning rate, what the decay leaves, and Adam's corrections."""
        rate = value_at(self.learning_rate, state.count)
        kept = 1 - rate * value_at(self.weight_decay, state.count)
        state, of_mu, of_nu = count_and_debias(state, self.b1, self.b2)
        return state, rate, kept, of_mu, of_nu

    def entries(self, g, p, *_):
        """Return the gradient and the parameter."""
        return g, p

    def rule(self, g, p, m, r, mu, nu, rate, kept, of_mu, of_nu):
        """Return the step of a batch of matrices, and their new slots."""
        r, mu, nu = (x[:, None, :] for x in (r, mu, nu))
        size = jnp.maximum(norm(p, -2), _LEAST)
        s = jnp.where(r < 0, -size, size)
        r = jnp.where(r == 0, s, r)
        u = p / s
        d = jnp.sum(g * u, axis=-2, keepdims=True)
        of_v = s / jnp.abs(r) * (g - d * u)
        m = self.beta * m + (1 - self.beta) * of_v
        o = self.orthogonal(self.beta * m + (1 - self.beta) * of_v if self.nesterov else m)
        v = jnp.abs(r) * u - rate * self._factor(*p.shape[-2:]) * o
        d = bounded_square(d)
        mu = self.b1 * mu + (1 - self.b1) * d
        nu = self.b2 * nu + (1 - self.b2) * d * d
        s = kept * (s - rate * over_root(of_mu * mu, of_nu * nu, self.adam_eps))
        length = jnp.maximum(norm(v, -2), _LEAST)
        r = jnp.where(s < 0, -length, length)
        return s * (v / length) - p, m, r[:, 0], mu[:, 0], nu[:, 0]

    def _factor(self, n, k):
        """Return the factor of an orthogonal matrix of n rows and k columns."""
        if self.consistent_rms is None:
            return max(1, k / max(n, 1)) ** 0.5
        return self.consistent_rms * max(n, k) ** 0.5

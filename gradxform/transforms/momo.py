"""MoMo, for SGD and for Adam: step sizes from a model of the loss and its lower bound.

Both emit the whole step, learning rate included, and need the loss: `update(..., value=loss)`.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradxform.base import ArrayRule, transform
from gradxform.engine import tree_sums
from gradxform.numerics import (
    bias_correction,
    is_zero,
    safe_increment,
    scalar,
    scalar_dtype,
    value_at,
)
from gradxform.numerics.overflow import clipped
from gradxform.numerics.roots import over_root
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.tree_rules import as_loss, columns_of, decay_at
from gradxform.types import (
    Array,
    Decay,
    Finite,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Params,
    Scalar,
    Slot,
)

# A squared norm that counts as 0, as in Optax.
TINY = float(np.finfo(np.float64).eps)


class _Model(NamedTuple):
    """The scalars that model the loss around the parameters."""

    f: Array  # the average of the loss
    c: Array  # the average of <g, p>
    mp: Array  # <m, p>
    norm: Array  # |m|^2, in the metric of the step


def _polyak_step(part: Any, a: Array, s: Scalar, model: _Model, lb: Array) -> tuple[Array, Array]:
    """Return Polyak's step size k and the next bound, in the letters of the rules.

    Args:
      part: the rule, for its weight decay and bounds.
      a: the learning rate of this step.
      s: the sum of the weights in the averages, 1 if they are debiased.
      model: the model of the loss.
      lb: the bound so far.
    """
    f, c, mp, norm = model
    w = 1 if is_zero(part.weight_decay) else 1 + a * part.weight_decay
    if part.adapt_lower_bound:
        cap = w * (f - c) + mp
        lower = jnp.maximum(cap / (2 * s * w), part.lower_bound)
        lb = jnp.where(cap < w * s * lb, lower, lb)
    # No step where the momentum is zero, without a direction, or its norm overflows. A NaN is
    # neither: it is not hidden.
    is_zero_step = (norm <= TINY) | (norm == jnp.inf)
    gap = jnp.maximum(w * (f - s * lb - c) + mp, 0)
    k = jnp.minimum(a / s, gap / jnp.where(is_zero_step, 1, norm))
    k = jnp.where(is_zero_step, 0, k)
    if part.adapt_lower_bound:
        fall = jnp.where(is_zero_step, 0, k * norm / 2)
        lb = jnp.maximum((f + mp - c - fall) / s, part.lower_bound)
    return k, lb


def _shrinkage(a: Array, weight_decay: Scalar) -> Array:
    """Return d / (1 + d) with d = a weight_decay, also for an infinite learning rate a."""
    if is_zero(weight_decay):
        return jnp.zeros_like(a)
    decay = a * weight_decay
    # The limit where the product overflows: infinity over infinity is not a number.
    return jnp.where(decay == jnp.inf, 1, decay / (1 + decay))


def _average(old: Array, new: Array, decay: Scalar, weight: Scalar) -> Array:
    return decay * old + weight * new


def _first_fields(part: Any, params: Params) -> dict[str, Any]:
    """Return the fields that both states have, before the first update."""
    return {
        "exp_avg": zeros_like(params),
        "barf": jnp.zeros((), scalar_dtype()),
        "gamma": jnp.zeros((), scalar_dtype()),
        "lb": scalar(part.lower_bound),
        "count": zero_count(),
    }


class MomoState(NamedTuple):
    """State of `step_by_momo`."""

    exp_avg: Slot  # like params, at least float32; the average m of the gradient
    barf: Array  # scalar, at least float32; the average f of the loss
    gamma: Array  # scalar, at least float32; the average c of <g, p>
    lb: Array  # scalar, at least float32; the bound below the loss
    count: Array  # int32 scalar; the number of updates so far


def _sums(
    g: Array, m: Array, p: Array, beta: Scalar, one_minus_beta: Scalar
) -> tuple[Array, Array, Array]:
    m = _average(m, g, beta, one_minus_beta)
    return m * m, m * p, g * p


@transform
class step_by_momo(ArrayRule):
    """Emit the whole step of MoMo: SGD with momentum and a Polyak step size.

    Update rule, with sums and products over the whole tree, m = g, f = value and c = <g, p> at the
    first step and later

        m <- beta m + (1 - beta) g
        f <- beta f + (1 - beta) value
        c <- beta c + (1 - beta) <g, p>

    and then, with a = learning_rate(n) after n earlier updates, w = 1 + a weight_decay:

        k = min(a, max(w (f - lb - c) + <m, p>, 0) / |m|^2)
        u = -k m - (a weight_decay / w) p

    The learning rate is an upper bound of k: choose it large. `value` is the loss of the batch
    whose gradient this is. With adapt_lower_bound, lb is estimated anew at every step.

    Args:
      learning_rate: at least 0, or a schedule.
      beta: the decay of the averages, in [0, 1).
      lower_bound: the lower bound lb of the loss, finite; 0 suits most losses.
      weight_decay: at least 0.
      adapt_lower_bound: whether to estimate lb, which is then at least lower_bound.

    Raises:
      TypeError: at update, without `value`.
      ValueError: at update, if no parameters are given.

    Reference: Schaipp et al., MoMo: Momentum Models for Adaptive Learning Rates, 2023, Algorithm 1,
    and its estimates of a lower bound for adapt_lower_bound.
    """

    learning_rate: NonNegativeOrSchedule = 1.0
    beta: Decay = 0.9
    lower_bound: Finite = 0.0
    weight_decay: NonNegative = 0.0
    adapt_lower_bound: bool = False

    @property
    def set_by(self) -> tuple[tuple[str, str], ...]:
        """The lower bound, where it is not estimated."""
        return () if self.adapt_lower_bound else (("lb", "lower_bound"),)

    State = MomoState
    locality = "tree"
    sees_pieces = True
    needs_params = True

    def init(self, params):
        """Return averages of zeros and the first bound."""
        return MomoState(**_first_fields(self, params))

    def prepare(self, updates, state, params, *, value):
        """Return the new averages and bound; beta, 1 - beta (at first 0, 1), k, the shrinkage."""
        is_first = state.count == 0
        beta, one_minus_beta = decay_at(self.beta, state.count)
        beta, one_minus_beta = jnp.where(is_first, 0, beta), jnp.where(is_first, 1, one_minus_beta)
        a = value_at(self.learning_rate, state.count)
        leaves = columns_of(self, updates, state, params)
        norm, mp, gp = tree_sums(_sums, updates, leaves, beta, one_minus_beta)
        f = _average(state.barf, as_loss(self, value), beta, one_minus_beta)
        c = clipped(_average(state.gamma, clipped(gp), beta, one_minus_beta))
        k, lb = _polyak_step(self, a, 1, _Model(f, c, mp, norm), state.lb)
        state = state._replace(barf=f, gamma=c, lb=lb, count=safe_increment(state.count))
        return state, beta, one_minus_beta, k, _shrinkage(a, self.weight_decay)

    def rule(self, g, m, p, beta, one_minus_beta, k, shrinkage):
        """Return the step and the average."""
        m = _average(m, g, beta, one_minus_beta)
        return -k * m - shrinkage * p, m


class MomoAdamState(NamedTuple):
    """State of `step_by_momo_adam`."""

    exp_avg: Slot  # like params, at least float32; the first moment m
    exp_avg_sq: NonNegativeSlot  # like params, at least float32; the second moment v
    barf: Array  # scalar, at least float32; the average f of the loss
    gamma: Array  # scalar, at least float32; the average c of <g, p>
    lb: Array  # scalar, at least float32; the bound below the loss
    count: Array  # int32 scalar; the number of updates so far


def _adam_moments(
    g: Array,
    m: Array,
    v: Array,
    b1: Scalar,
    one_minus_b1: Scalar,
    b2: Scalar,
    one_minus_b2: Scalar,
    of_v: Scalar,
    eps: Scalar,
) -> tuple[Array, Array, Array]:
    """Return the new moments m and v, and the direction x."""
    m = _average(m, g, b1, one_minus_b1)
    v = _average(v, g * g, b2, one_minus_b2)
    return m, v, over_root(m, of_v * v, eps)


def _adam_sums(
    g: Array, m: Array, v: Array, p: Array, *scalars: Scalar
) -> tuple[Array, Array, Array]:
    m, _, x = _adam_moments(g, m, v, *scalars)
    return m * x, m * p, g * p


@transform
class step_by_momo_adam(ArrayRule):
    """Emit the whole step of MoMo-Adam: Adam with a Polyak step size.

    Update rule, with sums and products over the whole tree, from m = v = f = c = 0 and
    t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        f <- b1 f + (1 - b1) value
        c <- b1 c + (1 - b1) <g, p>

    and then, with x = m / (sqrt(v / (1 - b2^t)) + eps), s = 1 - b1^t, a = learning_rate(t-1) and
    w = 1 + a weight_decay:

        k = min(a / s, max(w (f - s lb - c) + <m, p>, 0) / <m, x>)
        u = -k x - (a weight_decay / w) p

    The learning rate is an upper bound of k s: choose it larger than Adam's. `value` is the loss of
    the batch whose gradient this is. With adapt_lower_bound, lb is estimated anew at every step.

    Args:
      learning_rate: at least 0, or a schedule.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      lower_bound: the lower bound lb of the loss, finite; 0 suits most losses.
      weight_decay: at least 0.
      adapt_lower_bound: whether to estimate lb, which is then at least lower_bound.

    Raises:
      TypeError: at update, without `value`.
      ValueError: at update, if no parameters are given.

    Reference: Schaipp et al., MoMo: Momentum Models for Adaptive Learning Rates, 2023, Algorithm 2,
    and its estimates of a lower bound for adapt_lower_bound.
    """

    learning_rate: NonNegativeOrSchedule = 1e-2
    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    lower_bound: Finite = 0.0
    weight_decay: NonNegative = 0.0
    adapt_lower_bound: bool = False

    @property
    def set_by(self) -> tuple[tuple[str, str], ...]:
        """The lower bound, where it is not estimated."""
        return () if self.adapt_lower_bound else (("lb", "lower_bound"),)

    State = MomoAdamState
    locality = "tree"
    sees_pieces = True
    needs_params = True

    def init(self, params):
        """Return averages of zeros and the first bound."""
        return MomoAdamState(exp_avg_sq=zeros_like(params), **_first_fields(self, params))

    def prepare(self, updates, state, params, *, value):
        """Return the new averages and bound; k, the shrinkage, and the scalars of the moments."""
        count, a = safe_increment(state.count), value_at(self.learning_rate, state.count)
        s, of_v = 1 / bias_correction(self.b1, count), bias_correction(self.b2, count)
        b1, one_minus_b1 = decay_at(self.b1, count)
        scalars = b1, one_minus_b1, *decay_at(self.b2, count), of_v, self.eps
        leaves = columns_of(self, updates, state, params)
        norm, mp, gp = tree_sums(_adam_sums, updates, leaves, *scalars)
        f = _average(state.barf, as_loss(self, value), b1, one_minus_b1)
        c = clipped(_average(state.gamma, clipped(gp), b1, one_minus_b1))
        k, lb = _polyak_step(self, a, s, _Model(f, c, mp, norm), state.lb)
        state = state._replace(barf=f, gamma=c, lb=lb, count=count)
        return state, k, _shrinkage(a, self.weight_decay), *scalars

    def rule(self, g, m, v, p, k, shrinkage, b1, one_minus_b1, b2, one_minus_b2, of_v, eps):
        """Return the step and the moments."""
        m, v, x = _adam_moments(g, m, v, b1, one_minus_b1, b2, one_minus_b2, of_v, eps)
        return -k * x - shrinkage * p, m, v

"""Rules between Adam and SGD: Padam, which divides by a smaller power, and AdaBound."""

from dataclasses import field

import jax.numpy as jnp

from gradxform.base import slots_with, transform
from gradxform.numerics import count_and_debias, not_zero, plus, scalar, scalar_dtype
from gradxform.numerics.roots import over_root, root
from gradxform.transforms.adam import AdamMoments, ScaleByAmsgradState, with_largest
from gradxform.types import Decay, DType, NonNegative, Positive, UnitInterval


class _Moments(AdamMoments):
    """Base of the rules here: Adam's moments, corrected, if at all, in the step only."""

    amsgrad: bool
    bias_correction: bool
    eps_before_correction = True

    State = ScaleByAmsgradState
    unused_slots = slots_with(nu_max="amsgrad")

    def prepare(self, updates, state, params):
        """Return the advanced count, and the corrections of both moments as a factor of m."""
        if not self.bias_correction:
            return *count_and_debias(state), jnp.ones((), scalar_dtype())
        return super().prepare(updates, state, params)[:2]


@transform
class scale_by_padam(_Moments):
    """Rescale updates as Padam does: Adam that divides by a power between 0 and the root.

    Update rule, from m = v = h = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v)                    (without amsgrad: h = v)
        u = m / (sqrt(h) + eps)^(2 partial)

    With bias_correction, u is multiplied by sqrt(1 - b2^t) / (1 - b1^t), as in the authors' code.
    With partial = 1/2 it is AMSGrad, with partial = 0 a moving average. Learning rates are those of
    SGD: begin with 0.1.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      partial: the power of h, in [0, 1]; the paper's p, at most 1/2 there.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      amsgrad: whether to divide by the largest second moment. Keyword-only.
      bias_correction: whether to correct for moments that started at 0. Keyword-only.

    Reference: Chen et al., Closing the Generalization Gap of Adaptive Gradient Methods in Training
    Deep Neural Networks, 2018, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    partial: UnitInterval = 0.125
    mu_dtype: DType = None
    amsgrad: bool = field(default=True, kw_only=True)
    bias_correction: bool = field(default=False, kw_only=True)

    def rule(self, g, m, v, h, p, correction):
        """Return the update, the moments and the largest second moment."""
        m, v = self.moments(g, m, v)
        square, h = with_largest(v, h)
        below = plus(root(square), not_zero(self.eps, v.dtype, 0.5))
        never = below == 0  # a power of 0 does not have a derivative
        power = jnp.where(never, 1, below) ** (2 * self.partial)
        return correction * (jnp.where(never, 0, m) / power), m, v, h


@transform
class scale_by_adabound(_Moments):
    """Rescale updates as AdaBound does: Adam whose rates end in that of SGD.

    Update rule, from m = v = h = 0 and t = 1, 2, ..., with c = sqrt(1 - b2^t) / (1 - b1^t)
    (without bias_correction: c = 1) and f = final_ratio:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v)                    (without amsgrad: h = v)
        k = c / (sqrt(h + eps_root) + eps)
        u = m min(max(k, f (1 - 1 / (gamma t + 1))), f (1 + 1 / (gamma t)))

    The bounds meet at f: after a few times 1 / gamma steps, u = f m. A learning rate multiplies the
    bounds too, so that they follow a schedule, as in the authors' code. The paper also divides by
    sqrt(t): use a schedule that does.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      final_ratio: the last rate f, relative to the learning rate, greater than 0.
      gamma: how fast the bounds meet, greater than 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      amsgrad: whether to divide by the largest second moment, as AMSBound does. Keyword-only.
      bias_correction: whether to correct for moments that started at 0, as the authors' code does;
        the paper does not. Keyword-only.

    Reference: Luo et al., Adaptive Gradient Methods with Dynamic Bound of Learning Rate, 2019,
    Algorithms 2 and 3.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    final_ratio: Positive = 100.0
    gamma: Positive = 1e-3
    mu_dtype: DType = None
    amsgrad: bool = field(default=False, kw_only=True)
    bias_correction: bool = field(default=True, kw_only=True)

    def prepare(self, updates, state, params):
        """Return the advanced count, the corrections as one factor, and both bounds."""
        state, correction = super().prepare(updates, state, params)
        way = self.gamma * scalar(state.count)
        bounds = self.final_ratio * (way / (way + 1)), self.final_ratio * (1 + 1 / way)
        return state, correction, *bounds

    def rule(self, g, m, v, h, p, *scalars):
        """Return the update, the moments and the largest second moment."""
        correction, least, most = scalars
        m, v = self.moments(g, m, v)
        square, h = with_largest(v, h)
        k = correction * over_root(jnp.ones_like(v), square, self.eps, self.eps_root)
        return jnp.clip(k, least, most) * m, m, v, h

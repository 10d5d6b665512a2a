"""Adam made stable: steps shortened where a gradient is unusually large, or without an epsilon."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.leaves import masks
from gradxform.numerics import abs_sq, count_and_debias, not_zero, over, shrinking, value_at
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import atan2_root, over_root, root
from gradxform.transforms.adam import AdamMoments
from gradxform.transforms.matrices.array_norms import array_rms
from gradxform.transforms.tree_rules import selected_by_mask
from gradxform.types import (
    Array,
    Decay,
    DType,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Positive,
    Scalar,
    StaticMask,
    Updates,
)


def _shortening(g: Array, v: Array, eps: Scalar) -> Array:
    """Return 1 / max(1, rms(g / max(sqrt(v), eps))): less than 1 where g is unusually large."""
    eps = not_zero(eps, v.dtype, 0.5)
    return shrinking(array_rms(over(g, jnp.maximum(root(v), eps), eps)), 1.0)


class ClipByMovingRmsState(NamedTuple):
    """State of `clip_by_moving_rms`."""

    count: Array  # int32 scalar; the number of updates so far
    nu: NonNegativeSlot  # like params, at least float32; the second moment v


@transform
class clip_by_moving_rms(ArrayRule):
    """Scale down every array whose entries are large beside their own root mean squares so far.

    Update rule, from v = 0 and t = 1, 2, ..., with rms(x) = sqrt(mean |x|^2) over the array:

        v <- b2 v + (1 - b2) |g|^2
        u = g / max(1, rms(g / max(sqrt(v / (1 - b2^t)), eps)))

    In front of an optimizer this keeps spikes out of its averages; `scale_by_stable_adam` shortens
    the step instead, and has that moment already. As g is in v, nothing is scaled down to less
    than sqrt(1 - b2). `clip_by_block_rms`, which `adafactor` has, bounds the size of what it gets,
    and does not know what came before.

    Args:
      b2: the decay of the second moment, in [0, 1).
      eps: the least root, at least 0; with 0, entries that never had a gradient do not count.

    Reference: Wortsman et al., Stable and low-precision training for large-scale vision-language
    models, 2023, Algorithm 2, which clips the step.
    """

    b2: Decay = 0.99
    eps: NonNegative = 1e-8

    State = ClipByMovingRmsState
    locality = "array"
    sees_pieces = True
    averages_of = (("nu", "|g|^2"),)
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor of v."""
        return count_and_debias(state, self.b2)

    def rule(self, g, v, p, of_v):
        """Return the update, scaled down if it is unusually large, and the second moment."""
        x = bounded_square(g)  # one infinity would stay in v for good
        v = self.b2 * v + (1 - self.b2) * abs_sq(x)
        return g * _shortening(x, of_v * v, self.eps), v


@transform
class scale_by_stable_adam(AdamMoments):
    """Rescale updates as StableAdamW does: AdamW, shorter where a gradient is unusually large.

    Update rule, from m = v = 0, t = 1, 2, ... and with rms(x) = sqrt(mean |x|^2) over the array:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        w = v / (1 - b2^t)
        r = max(1, rms(g / max(sqrt(w), eps)))
        u = ((m / (1 - b1^t)) / (sqrt(w) + eps) + weight_decay(t-1) p) / r

    The weight decay is in the rule because r divides it too. `clip_by_moving_rms` clips gradients
    by the same r in front of another optimizer.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, and its least value in r; at least 0. With 0, an entry that never had
        a gradient stays put.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      weight_decay: the multiple of p, at least 0, or a schedule of it. Keyword-only.
      mask: which parameters decay, as in `add_decayed_weights`. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Wortsman et al., Stable and low-precision training for large-scale vision-language
    models, 2023, Algorithm 2.
    """

    b1: Decay = 0.9
    b2: Decay = 0.99
    eps: NonNegative = 1e-8
    mu_dtype: DType = None
    weight_decay: NonNegativeOrSchedule = field(default=0.0, kw_only=True)
    mask: StaticMask | None = field(default=None, kw_only=True)

    locality = "array"
    sees_pieces = True
    needs_params = True

    def init(self, params):
        """Return moments of zeros."""
        masks.check_patterns(self, self.mask, params)
        return super().init(params)

    def statics(self, updates: Updates) -> list[Any]:
        """Return for every leaf whether it decays."""
        return selected_by_mask(self, self.mask, updates)

    def prepare(self, updates, state, params):
        """Return the advanced count, the factors of m and of v, and the weight decay."""
        decay = value_at(self.weight_decay, state.count)
        return *super().prepare(updates, state, params), decay

    def rule(self, g, m, v, p, *rest):
        """Return the update and the moments."""
        of_m, of_v, weight_decay, decays = rest
        g = bounded_square(g)  # one infinity would stay in v for good
        m, v = self.moments(g, m, v)
        u = of_m * over_root(m, of_v * v, self.eps)
        u = u + weight_decay * p if decays else u
        return u * _shortening(g, of_v * v, self.eps), m, v


@transform
class scale_by_adam_atan2(AdamMoments):
    """Rescale updates as Adam-atan2 does: Adam with an arctangent in the place of its division.

    Update rule, from m = v = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        u = a atan2(m / (1 - b1^t), b sqrt(v / (1 - b2^t)))

    It does not need an epsilon: gradients of any scale give the same updates, between -a pi/2 and
    a pi/2, and an entry that never had a gradient stays put. With a = b = 1, a gradient that
    never changes gives pi/4, where Adam gives 1: a = 1.27 makes them equal, and with a = b large it
    is nearly Adam.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      a: the factor of the arctangent, greater than 0.
      b: the factor of the root in it, greater than 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: Everett et al., Scaling Exponents Across Parameterizations and Optimizers, 2024,
    Adam-atan2.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    a: Positive = 1.0
    b: Positive = 1.0
    mu_dtype: DType = None

    handles_complex = False

    def rule(self, g, m, v, p, of_m, of_v):
        """Return the update and the moments."""
        g = bounded_square(g)  # of two infinities the arctangent is not a number
        m, v = self.moments(g, m, v)
        return self.a * atan2_root((of_m / self.b) * m, of_v * v), m, v

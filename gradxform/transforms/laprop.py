"""LaProp: momentum of gradients that have already been divided."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, slots_with, transform
from gradxform.numerics import abs_sq, count_and_debias
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root
from gradxform.transforms.adam import with_largest
from gradxform.types import (
    Array,
    Decay,
    DType,
    NonNegative,
    NonNegativeInt,
    NonNegativeSlot,
    Slot,
)


class ScaleByLaPropState(NamedTuple):
    """State of `scale_by_laprop` and `scale_by_torch_laprop`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the divided gradients
    nu: NonNegativeSlot  # like params, at least float32; the average v of |g|^2
    mean: Slot = None  # like params, at least float32; the average n of g; with centered_after
    nu_max: NonNegativeSlot = None  # like nu; the largest divisor's square so far, h; with amsgrad


@transform
class scale_by_laprop(ArrayRule):
    """Rescale updates as LaProp does: average the gradients after their division, not before.

    Update rule, from m = v = 0 and with t = 1, 2, ...:

        v <- b2 v + (1 - b2) |g|^2
        n <- b2 n + (1 - b2) g
        w = v - |n|^2                     (for t > centered_after; otherwise w = v)
        h <- max(h, w)                    (without amsgrad: h = w)
        m <- b1 m + (1 - b1) g / (sqrt(h / (1 - b2^t)) + eps)
        u = m / (1 - b1^t)

    Each gradient is divided by the root of the average that is known when it comes. So b1 may be
    larger than sqrt(b2), where Adam diverges. Learning rates of Adam will do.

    Args:
      b1: the decay of the average of the divided gradients, in [0, 1).
      b2: the decay of the average of squares, in [0, 1).
      eps: added to the root, at least 0; with 0 an entry that never had a gradient stays.
      mu_dtype: the dtype of m. Defaults to that of the parameter, but float32 for a 16-bit one.
      amsgrad: whether the largest w so far divides. Keyword-only.
      centered_after: after how many updates, at least 0, gradients are divided by their standard
        deviation; 10 in the authors' code, which offers it. Defaults to never. Keyword-only.

    Reference: Ziyin et al., LaProp: Separating Momentum and Adaptivity in Adam, 2020, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-15
    mu_dtype: DType = None
    amsgrad: bool = field(default=False, kw_only=True)
    centered_after: NonNegativeInt | None = field(default=None, kw_only=True)

    State = ScaleByLaPropState
    unused_slots = slots_with(mean="centered_after", nu_max="amsgrad")
    locality = "entry"
    handles_complex = True
    eps_before_correction = False

    def prepare(self, updates, state, params):
        """Return the count, the factors of m, g and h, and whether w is less than v."""
        state, of_m, of_h = count_and_debias(state, self.b1, self.b2)
        one = jnp.ones_like(of_h)
        factors = (jnp.sqrt(1 / of_h), one) if self.eps_before_correction else (one, of_h)
        after = self.centered_after
        return state, of_m, *factors, after is not None and state.count > after

    def rule(self, g, m, v, mean, h, p, *scalars):
        """Return the update, the averages and the largest w."""
        of_m, of_g, of_h, is_centered = scalars
        if mean is not None:
            g = bounded_square(g)  # the difference of two infinities is not a number
            mean = self.b2 * mean + (1 - self.b2) * g
        w = v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        if mean is not None:
            w = jnp.where(is_centered, jnp.maximum(v - abs_sq(mean), 0), v)
        w, h = with_largest(w, h)
        m = self.b1 * m + ((1 - self.b1) * of_g) * over_root(g, of_h * w, self.eps)
        return of_m * m, m, v, mean, h


@transform
class scale_by_torch_laprop(scale_by_laprop):
    """Rescale updates as pytorch_optimizer's LaProp does: eps is added before the correction.

    Update rule of `scale_by_laprop`, but with

        m <- b1 m + (1 - b1) sqrt(1 - b2^t) g / (sqrt(h) + eps)

    Args:
      b1: the decay of the average of the divided gradients, in [0, 1).
      b2: the decay of the average of squares, in [0, 1).
      eps: added to the root, at least 0; with 0 an entry that never had a gradient stays.
      mu_dtype: the dtype of m. Defaults to that of the parameter, but float32 for a 16-bit one.
      amsgrad: whether the largest w so far divides. Keyword-only.
      centered_after: after how many updates, at least 0, gradients are divided by their standard
        deviation. Defaults to never. Keyword-only.

    Reference: `pytorch_optimizer.LaProp`; Ziyin et al., LaProp: Separating Momentum and Adaptivity
    in Adam, 2020, Algorithm 1.
    """

    eps_before_correction = True

"""LaProp: momentum of gradients that have already been divided."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.numerics import abs_sq, count_and_debias
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root
from gradxform.types import (
    Array,
    Decay,
    DType,
    NonNegative,
    NonNegativeInt,
    NonNegativeSlot,
    Params,
    Slot,
)

__all__ = [
    "scale_by_laprop",
    "ScaleByCenteredLaPropState",
    "ScaleByCenteredLaPropWithMaxState",
    "ScaleByLaPropState",
    "ScaleByLaPropWithMaxState",
]


class ScaleByLaPropState(NamedTuple):
    """State of `scale_by_laprop`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the divided gradients
    nu: NonNegativeSlot  # like params, at least float32; the average v of |g|^2


class ScaleByLaPropWithMaxState(NamedTuple):
    """State of `scale_by_laprop` with amsgrad."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the divided gradients
    nu: NonNegativeSlot  # like params, at least float32; the average v of |g|^2
    nu_max: NonNegativeSlot  # like nu; the largest divisor's square so far, h


class ScaleByCenteredLaPropState(NamedTuple):
    """State of `scale_by_laprop` with centered_after."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the divided gradients
    nu: NonNegativeSlot  # like params, at least float32; the average v of |g|^2
    mean: Slot  # like params, at least float32; the average n of g


class ScaleByCenteredLaPropWithMaxState(NamedTuple):
    """State of `scale_by_laprop` with centered_after and amsgrad."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the divided gradients
    nu: NonNegativeSlot  # like params, at least float32; the average v of |g|^2
    mean: Slot  # like params, at least float32; the average n of g
    nu_max: NonNegativeSlot  # like nu; the largest divisor's square so far, h


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

    With eps_before_correction, the divisor is (sqrt(h) + eps) / sqrt(1 - b2^t).

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
      eps_before_correction: whether eps is added to the root before that is corrected.
        Keyword-only.

    Reference: Ziyin et al., LaProp: Separating Momentum and Adaptivity in Adam, 2020, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-15
    mu_dtype: DType = None
    amsgrad: bool = field(default=False, kw_only=True)
    centered_after: NonNegativeInt | None = field(default=None, kw_only=True)
    eps_before_correction: bool = field(default=False, kw_only=True)

    locality = "entry"
    handles_complex = True

    @property
    def State(self) -> type:
        """The class of the state, which follows from two options."""
        if self.centered_after is None:
            return ScaleByLaPropWithMaxState if self.amsgrad else ScaleByLaPropState
        return ScaleByCenteredLaPropWithMaxState if self.amsgrad else ScaleByCenteredLaPropState

    def prepare(self, updates: None, state: Any, params: Params | None) -> tuple[Any, ...]:
        """Return the count; the factors of m, g and h; with centered_after, whether w is less."""
        state, of_m, of_h = count_and_debias(state, self.b1, self.b2)
        one = jnp.ones_like(of_h)
        factors = (jnp.sqrt(1 / of_h), one) if self.eps_before_correction else (one, of_h)
        if self.centered_after is not None:
            factors += (state.count > self.centered_after,)
        return state, of_m, *factors

    def rule(self, g: Array, m: Array, v: Array, *rest: Any) -> tuple[Array, ...]:
        """Return the update, the averages and, with amsgrad, the largest w."""
        is_centered = self.centered_after is not None
        if is_centered:
            g = bounded_square(g)  # the difference of two infinities is not a number
        more = is_centered + self.amsgrad  # slots
        slots, (_, of_m, of_g, of_h, *after) = rest[:more], rest[more:]
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        w, new = v, [v]
        if is_centered:
            mean = self.b2 * slots[0] + (1 - self.b2) * g
            w = jnp.where(after[0], jnp.maximum(v - abs_sq(mean), 0), v)
            new.append(mean)
        if self.amsgrad:
            w = jnp.maximum(slots[-1], w)
            new.append(w)
        m = self.b1 * m + ((1 - self.b1) * of_g) * over_root(g, of_h * w, self.eps)
        return of_m * m, m, *new

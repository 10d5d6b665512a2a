"""LaProp: momentum of gradients that have already been divided."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, state_with, transform
from gradxform.numerics import abs_sq, count_and_debias
from gradxform.numerics.roots import over_root
from gradxform.types import Array, Decay, DType, NonNegative, NonNegativeSlot, Params, Slot

__all__ = [
    "scale_by_laprop",
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
    nu_max: NonNegativeSlot  # like nu; the largest v so far, h


@transform
class scale_by_laprop(ArrayRule):
    """Rescale updates as LaProp does: average the gradients after their division, not before.

    Update rule, from m = v = 0 and with t = 1, 2, ...:

        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v)                    (without amsgrad: h = v)
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
      amsgrad: whether the largest average of squares so far divides. Keyword-only.
      eps_before_correction: whether eps is added to the root before that is corrected.
        Keyword-only.

    Reference: Ziyin et al., LaProp: Separating Momentum and Adaptivity in Adam, 2020, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-15
    mu_dtype: DType = None
    amsgrad: bool = field(default=False, kw_only=True)
    eps_before_correction: bool = field(default=False, kw_only=True)

    State = state_with("amsgrad", ScaleByLaPropState, ScaleByLaPropWithMaxState)
    locality = "entry"
    handles_complex = True

    def prepare(self, updates: None, state: Any, params: Params | None) -> tuple[Any, ...]:
        """Return the advanced count, and the factors of m, of g and of the largest v."""
        state, of_m, of_v = count_and_debias(state, self.b1, self.b2)
        one = jnp.ones_like(of_v)
        if self.eps_before_correction:
            return state, of_m, jnp.sqrt(1 / of_v), one
        return state, of_m, one, of_v

    def rule(self, g: Array, m: Array, v: Array, *rest: Any) -> tuple[Array, ...]:
        """Return the update, the averages and, with amsgrad, the largest v."""
        largest, (_, of_m, of_g, of_v) = rest[: self.amsgrad], rest[self.amsgrad :]
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        squares = v, *[jnp.maximum(h, v) for h in largest]
        divided = over_root(of_g * g, of_v * squares[-1], self.eps)
        m = self.b1 * m + (1 - self.b1) * divided
        return of_m * m, m, *squares

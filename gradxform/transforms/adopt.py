"""Rules that divide by a second moment of the earlier gradients only: ACProp and ADOPT."""

from dataclasses import field
from typing import Any

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.numerics import (
    abs_sq,
    bias_correction,
    not_zero,
    over,
    plus,
    safe_increment,
    scalar,
    value_at,
)
from gradxform.numerics.roots import root
from gradxform.transforms.adam import ScaleByAdamState
from gradxform.transforms.adam_kin import ScaleByBeliefState
from gradxform.transforms.tree_rules import decay_at
from gradxform.types import Array, Decay, DType, NonNegative, Schedule
from gradxform.values.registry import register

__all__ = [
    "fourth_root",
    "scale_by_acprop",
    "scale_by_adopt",
]


@transform
class scale_by_acprop(ArrayRule):
    """Rescale updates as ACProp does: over the standard deviation of the earlier gradients.

    Update rule, from m = s = 0 and t = 1, 2, ...:

        d = sqrt(s / (1 - b2^(t-1)))      (d = 1 at t = 1)
        s <- b2 s + (1 - b2) |g - m|^2 + eps_root
        m <- b1 m + (1 - b1) g
        u = g / (d + eps)

    The divisor does not depend on this step's gradient. An entry whose gradients were all 0 so far
    moves by about 1e8 g: where gradients are sparse, choose a larger eps. As in Optax, s takes the
    deviation from the average before this step. The paper takes it from the average after, where it
    is b1 times as large.

    Args:
      b1: the decay of the average, in [0, 1).
      b2: the decay of the squared deviations, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added to s at every step, at least 0. If both are 0, an entry stays put until its
        gradient has deviated.

    Reference: Zhuang et al., Momentum Centering and Asynchronous Update for Adaptive Gradient
    Methods, 2021, ACProp.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-16
    eps_root: NonNegative = 1e-16

    State = ScaleByBeliefState
    locality = "entry"
    averages_of = (("mu", "g"), ("nu", "|g - earlier m|^2"))
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count, the factor of s, and the first d^2: 1 at t = 1, else 0."""
        is_first = state.count == 0
        of_s = jnp.where(is_first, 0, bias_correction(self.b2, jnp.maximum(state.count, 1)))
        state = state._replace(count=safe_increment(state.count))
        return state, of_s, scalar(is_first)

    def rule(self, g, m, s, p, of_s, first):
        """Return the update and the averages."""
        d = root(of_s * s + first)  # 1 in the first step, when s is still 0
        s = self.b2 * s + (1 - self.b2) * abs_sq(g - m) + self.eps_root
        m = self.b1 * m + (1 - self.b1) * g
        eps = not_zero(self.eps, d.dtype, 0.5)
        return over(g, plus(d, eps), eps), m, s


def fourth_root(count: Any) -> Array:
    """Return the fourth root of a count: the default bound of ADOPT's clipping."""
    return jnp.sqrt(jnp.sqrt(scalar(count)))


register("fourth_root", fourth_root)


@transform
class scale_by_adopt(ArrayRule):
    """Rescale updates as ADOPT does: the average of gradients over an earlier second moment.

    Update rule, from m = v = 0 and with n = 0, 1, ... the number of earlier updates:

        c = g / max(sqrt(v), eps), clipped to [-clip_value_fn(n), clip_value_fn(n)]
        m <- b1 m + (1 - b1) c      (m <- 0 at n = 0)
        v <- b2 v + (1 - b2) |g|^2      (v <- |g|^2 at n = 0)
        u = m

    With nesterov, u = b1 m + (1 - b1) c. The first update is 0: it only fills v. ADOPT converges
    for every b2, Adam does not.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: the least divisor, at least 0; with 0, an entry that never had a gradient stays put.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      nesterov: whether to look one step ahead. Keyword-only.
      use_clipping: whether c is clipped. If not, an entry whose first gradients were small may
        jump. Keyword-only.
      clip_value_fn: the bound as a function of the number of earlier updates. Keyword-only.

    Reference: Taniguchi et al., ADOPT: Modified Adam Can Converge with Any beta2 with the Optimal
    Rate, 2024, Algorithm 2, and the clipping of its section 4.
    """

    b1: Decay = 0.9
    b2: Decay = 0.9999
    eps: NonNegative = 1e-6
    mu_dtype: DType = None
    nesterov: bool = field(default=False, kw_only=True)
    use_clipping: bool = field(default=True, kw_only=True)
    clip_value_fn: Schedule = field(default=fourth_root, kw_only=True)

    State = ScaleByAdamState
    locality = "entry"

    def prepare(self, updates, state, params):
        """Return the advanced count; b2 and 1 - b2, or 0 and 1 at n = 0; the bound, 0 at n = 0."""
        is_first = state.count == 0
        bound = value_at(self.clip_value_fn if self.use_clipping else jnp.inf, state.count)
        state = state._replace(count=safe_increment(state.count))
        b2, one_minus_b2 = decay_at(self.b2, state.count)
        b2, one_minus_b2 = jnp.where(is_first, 0, b2), jnp.where(is_first, 1, one_minus_b2)
        # The first gradient only begins v: bounded by 0, it does not enter m.
        return state, b2, one_minus_b2, jnp.where(is_first, 0, bound)

    def rule(self, g, m, v, p, b2, one_minus_b2, bound):
        """Return the update and the moments."""
        eps = not_zero(self.eps, v.dtype, 0.5)
        c = jnp.clip(over(g, jnp.maximum(root(v), eps), eps), -bound, bound)
        m = self.b1 * m + (1 - self.b1) * c
        v = b2 * v + one_minus_b2 * abs_sq(g)
        u = m
        if self.nesterov:
            u = self.b1 * m + (1 - self.b1) * c
        return u, m, v

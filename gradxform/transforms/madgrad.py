"""MADGRAD: dual averaging with momentum."""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.numerics import safe_increment, scalar, value_at
from gradxform.numerics.roots import cube_root
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.tree_rules import copied_params
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Slot,
)


class MadgradState(NamedTuple):
    """State of `scale_by_madgrad`."""

    count: Array  # int32 scalar; the number of updates so far
    grad_sum_sq: NonNegativeSlot  # like params, at least float32; the weighted sum v of squares
    s: Slot  # like params, at least float32; the weighted sum s of gradients
    x0: Slot  # like params, at least float32; where the parameters began


@transform
class scale_by_madgrad(ArrayRule):
    """Emit the whole step of MADGRAD: towards the dual average of all gradients so far.

    Update rule, from v = s = 0, x0 = the parameter at `init`, with n = 0, 1, ... the number of
    earlier updates:

        k = (learning_rate(n) + eps) sqrt(n + 1)
        s <- s + k g
        v <- v + k g^2
        u = (1 - momentum) (x0 - s / (cbrt(v) + eps) - p)

    The step includes the learning rate, to which eps is added as in the authors' code, and points
    downhill. It must be the last part of a chain. Use little or no weight decay: it pulls towards
    0, and s towards x0.

    Args:
      learning_rate: at least 0, or a schedule.
      momentum: the share of the way that is left for later steps, in [0, 1).
      eps: added to the root and to the learning rate, at least 0. With 0, an entry that never had a
        gradient stays at x0 (in Optax it becomes NaN).

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Defazio and Jelassi, Adaptivity without Compromise: A Momentumized, Adaptive, Dual
    Averaged Gradient Method for Stochastic Optimization, 2021, Algorithm 1.
    """

    learning_rate: NonNegativeOrSchedule
    momentum: Decay = 0.9
    eps: NonNegative = 1e-6

    State = MadgradState
    locality = "entry"
    needs_params = True
    follows = ("x0",)

    def init(self, params):
        """Return sums of zeros, and a copy of the parameters."""
        return MadgradState(
            count=zero_count(),
            grad_sum_sq=zeros_like(params),
            s=zeros_like(params),
            x0=copied_params(params),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count and the weight k of this step's gradient."""
        count = safe_increment(state.count)
        rate = value_at(self.learning_rate, state.count) + self.eps
        return state._replace(count=count), rate * jnp.sqrt(scalar(count))

    def rule(self, g, v, s, x0, p, k):
        """Return the step, the sums and x0."""
        s = s + k * g
        v = v + k * jnp.square(g)
        divisor = cube_root(v) + self.eps
        z = x0 - s / jnp.where(divisor > 0, divisor, 1)
        return (1 - self.momentum) * (z - p), v, s, x0

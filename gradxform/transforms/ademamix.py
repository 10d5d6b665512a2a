"""AdEMAMix: Adam with a second, much slower average of the gradient; and its simplified form."""

from typing import NamedTuple

from gradxform.base import ArrayRule, transform
from gradxform.errors import require_decay
from gradxform.numerics import abs_sq, bias_correction, safe_increment, value_at
from gradxform.numerics.roots import over_root
from gradxform.slots import real_zeros_like, zero_count, zeros_like
from gradxform.transforms.tree_rules import decay_at
from gradxform.types import (
    Array,
    Decay,
    DType,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    ScalarOrSchedule,
    Slot,
)


class ScaleByAdemamixState(NamedTuple):
    """State of `scale_by_ademamix`."""

    count: Array  # int32 scalar; the number of updates so far
    count_m2: Array  # int32 scalar; the same, for the schedules of b3 and alpha
    m1: Slot  # like params, at least float32; the fast average m1
    m2: Slot  # like params, at least float32; the slow average m2
    nu: NonNegativeSlot  # like params, at least float32; the second moment v


@transform
class scale_by_ademamix(ArrayRule):
    """Rescale updates as AdEMAMix does: Adam with a second, much slower average of the gradient.

    Update rule, from m1 = m2 = v = 0 and t = 1, 2, ...:

        m1 <- b1 m1 + (1 - b1) g
        m2 <- b3(t-1) m2 + (1 - b3(t-1)) g
        v <- b2 v + (1 - b2) |g|^2
        u = (m1 / (1 - b1^t) + alpha(t-1) m2) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

    The slow average is not debiased: it fills over its own long horizon. In the paper b3 and alpha
    grow over the run; use schedules for that. For short runs, b3 = 0.999 is a good choice.

    Args:
      b1: the decay of the fast average, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      b3: the decay of the slow average, in [0, 1), or a schedule.
      alpha: the weight of the slow average, at least 0, or a schedule.
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of both averages. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: Pagliardini et al., The AdEMAMix Optimizer: Better, Faster, Older, 2024, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    b3: ScalarOrSchedule = 0.9999
    alpha: NonNegativeOrSchedule = 6.0
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    mu_dtype: DType = None

    State = ScaleByAdemamixState
    locality = "entry"
    handles_complex = True

    def __post_init__(self) -> None:
        require_decay(self, "b3")

    def init(self, params):
        """Return averages of zeros."""
        return ScaleByAdemamixState(
            count=zero_count(),
            count_m2=zero_count(),
            m1=zeros_like(params, self.mu_dtype),
            m2=zeros_like(params, self.mu_dtype),
            nu=real_zeros_like(params),
        )

    def prepare(self, updates, state, params):
        """Return the advanced counts; the factors of m1 and v; b3, 1 - b3 and alpha."""
        count, n = safe_increment(state.count), state.count_m2
        of_m1, of_v = bias_correction(self.b1, count), bias_correction(self.b2, count)
        state = state._replace(count=count, count_m2=safe_increment(n))
        b3, one_minus_b3 = decay_at(self.b3, n)
        return state, of_m1, of_v, b3, one_minus_b3, value_at(self.alpha, n)

    def rule(self, g, m1, m2, v, p, of_m1, of_v, b3, one_minus_b3, alpha):
        """Return the update, the averages and the second moment."""
        m1 = self.b1 * m1 + (1 - self.b1) * g
        m2 = b3 * m2 + one_minus_b3 * g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        square = of_v * v
        u = of_m1 * over_root(m1 + (alpha / of_m1) * m2, square, self.eps, self.eps_root)
        return u, m1, m2, v


class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    """State of `scale_by_simplified_ademamix`."""

    t: Array  # int32 scalar; the number of updates so far
    m: Slot  # like params, at least float32; the decaying sum m of gradients
    n: NonNegativeSlot  # like params, at least float32; the second moment v


@transform
class scale_by_simplified_ademamix(ArrayRule):
    """Rescale updates as Simplified AdEMAMix does: Adam on a sum, with more of the newest gradient.

    Update rule, from m = v = 0 and t = 1, 2, ...:

        m <- b1 m + g
        v <- b2 v + (1 - b2) |g|^2
        u = (m + alpha(t-1) g) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

    m is a sum and not an average: it is 1 / (1 - b1) times as large as Adam's. Divide the learning
    rate by as much.

    Args:
      b1: the decay of the sum, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      alpha: the additional weight of the newest gradient, at least 0, or a schedule.
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.

    Reference: Morwani et al., Connections between Schedule-Free Optimizers, AdEMAMix, and
    Accelerated SGD Variants, 2025, Simplified-AdEMAMix.
    """

    b1: Decay = 0.99
    b2: Decay = 0.95
    alpha: NonNegativeOrSchedule = 0.0
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0

    State = ScaleBySimplifiedAdEMAMixState
    locality = "entry"
    step_fields = ("t",)
    handles_complex = True

    def init(self, params):
        """Return a sum and a second moment of zeros."""
        m, n = zeros_like(params), real_zeros_like(params)
        return ScaleBySimplifiedAdEMAMixState(zero_count(), m=m, n=n)

    def prepare(self, updates, state, params):
        """Return the advanced count, the factor of v, and alpha."""
        t = safe_increment(state.t)
        return state._replace(t=t), bias_correction(self.b2, t), value_at(self.alpha, state.t)

    def rule(self, g, m, v, p, of_v, alpha):
        """Return the update, the sum and the second moment."""
        m = self.b1 * m + g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        return over_root(m + alpha * g, of_v * v, self.eps, self.eps_root), m, v

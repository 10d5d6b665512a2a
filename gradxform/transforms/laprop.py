"""LaProp: momentum of gradients that have already been divided."""

from typing import NamedTuple

from gradxform.base import ArrayRule, transform
from gradxform.numerics import abs_sq, count_and_debias
from gradxform.numerics.roots import over_root
from gradxform.types import Array, Decay, DType, NonNegative, NonNegativeSlot, Params, Scalar, Slot

__all__ = [
    "scale_by_laprop",
    "ScaleByLaPropState",
]


class ScaleByLaPropState(NamedTuple):
    """State of `scale_by_laprop`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the divided gradients
    nu: NonNegativeSlot  # like params, at least float32; the average v of |g|^2


@transform
class scale_by_laprop(ArrayRule):
    """Rescale updates as LaProp does: average the gradients after their division, not before.

    Update rule, from m = v = 0 and with t = 1, 2, ...:

        v <- b2 v + (1 - b2) |g|^2
        m <- b1 m + (1 - b1) g / (sqrt(v / (1 - b2^t)) + eps)
        u = m / (1 - b1^t)

    Each gradient is divided by the root of the average that is known when it comes. So b1 may be
    larger than sqrt(b2), where Adam diverges. Learning rates of Adam will do.

    Args:
      b1: the decay of the average of the divided gradients, in [0, 1).
      b2: the decay of the average of squares, in [0, 1).
      eps: added to the root, at least 0; with 0 an entry that never had a gradient stays.
      mu_dtype: the dtype of m. Defaults to that of the parameter, but float32 for a 16-bit one.

    Reference: Ziyin et al., LaProp: Separating Momentum and Adaptivity in Adam, 2020, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-15
    mu_dtype: DType = None

    State = ScaleByLaPropState
    locality = "entry"
    handles_complex = True

    def prepare(
        self, updates: None, state: ScaleByLaPropState, params: Params | None
    ) -> tuple[ScaleByLaPropState, Scalar, Scalar]:
        """Return the advanced count, and the factors that debias m and v."""
        return count_and_debias(state, self.b1, self.b2)

    def rule(
        self, g: Array, m: Array, v: Array, p: Array | None, of_m: Scalar, of_v: Scalar
    ) -> tuple[Array, Array, Array]:
        """Return the update and the averages."""
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        m = self.b1 * m + (1 - self.b1) * over_root(g, of_v * v, self.eps)
        return of_m * m, m, v

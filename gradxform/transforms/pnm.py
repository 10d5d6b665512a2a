"""Positive-negative momentum: the difference of two averages of alternating gradients."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, slots_with, transform
from gradxform.numerics import abs_sq
from gradxform.numerics.roots import over_root
from gradxform.transforms.adam import AdamMoments, with_largest
from gradxform.types import Array, Decay, NonNegative, NonNegativeSlot, Scalar, Slot


class ScaleByPnmState(NamedTuple):
    """State of `scale_by_pnm`."""

    older: Slot  # like params, at least float32; the average that takes the next gradient
    newer: Slot  # like params, at least float32; the average that took the last one


def positive_negative(
    g: Array, older: Array, newer: Array, b1: Scalar, b0: Scalar
) -> tuple[Array, Array, Array]:
    """Return the momentum, the average that waits, and the one whose turn it was."""
    a = b1**2 * older + (1 - b1**2) * g
    size = ((1 + b0) ** 2 + b0**2) ** 0.5
    u = ((1 + b0) / size) * a - (b0 / size) * newer
    # The two change places. XLA copies what it is told to move as it is; a choice joins the pass.
    return u, jnp.where(g == g, newer, g), a


@transform
class scale_by_pnm(ArrayRule):
    """Replace updates by a positive-negative momentum, whose noise is stronger than that of one.

    Update rule, with two averages a and n, both from 0, that take turns:

        a <- b1^2 a + (1 - b1^2) g
        u = ((1 + b0) a - b0 n) / sqrt((1 + b0)^2 + b0^2)
        a, n <- n, a

    The two average different gradients. Their difference has the mean of one momentum, divided by
    that root, and more noise, which leads to flatter minima. Learning rates of SGD without momentum
    will do.

    Args:
      b1: the root of the decay of the averages, in [0, 1).
      b0: the weight of the negative average, at least 0.

    Reference: Xie et al., Positive-Negative Momentum: Manipulating Stochastic Gradient Noise to
    Improve Generalization, 2021, Algorithm 2.
    """

    b1: Decay = 0.9
    b0: NonNegative = 1.0

    State = ScaleByPnmState
    locality = "entry"
    handles_complex = True

    def rule(self, g, older, newer, p):
        """Return the momentum, and the averages in their new order."""
        return positive_negative(g, older, newer, self.b1, self.b0)


class ScaleByAdapnmState(NamedTuple):
    """State of `scale_by_adapnm`."""

    count: Array  # int32 scalar; the number of updates so far
    older: Slot  # like params, at least float32; the average that takes the next gradient
    newer: Slot  # like params, at least float32; the average that took the last one
    nu: NonNegativeSlot  # like params, at least float32; the second moment v
    nu_max: NonNegativeSlot = None  # like nu; the largest v so far; with amsgrad


@transform
class scale_by_adapnm(AdamMoments):
    """Rescale updates as AdaPNM does: positive-negative momentum over the root of squares.

    Update rule, with d the momentum of `scale_by_pnm`, from v = w = 0 and t = 1, 2, ...:

        v <- b2 v + (1 - b2) |g|^2
        w <- max(w, v)                (without amsgrad: w <- v)
        u = (d / (1 - b1^t)) / (sqrt(w / (1 - b2^t) + eps_root) + eps)

    With eps_before_correction, the divisor is (sqrt(w + eps_root) + eps) / sqrt(1 - b2^t). Learning
    rates of Adam will do.

    Args:
      b1: the root of the decay of the averages, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      b0: the weight of the negative average, at least 0.
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      amsgrad: whether the largest second moment so far divides. Keyword-only.
      eps_before_correction: whether the epsilons are added before v is corrected. Keyword-only.

    Reference: Xie et al., Positive-Negative Momentum: Manipulating Stochastic Gradient Noise to
    Improve Generalization, 2021, Algorithm 3.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    b0: NonNegative = 1.0
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    amsgrad: bool = field(default=True, kw_only=True)
    eps_before_correction: bool = field(default=False, kw_only=True)

    State = ScaleByAdapnmState
    unused_slots = slots_with(nu_max="amsgrad")
    averages_of = ()

    def rule(self, g, older, newer, v, w, p, of_m, of_v):
        """Return the update, the averages in their new order, v and the maximum."""
        d, newer, a = positive_negative(g, older, newer, self.b1, self.b0)
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        below, w = with_largest(v, w)
        return of_m * over_root(d, of_v * below, self.eps, self.eps_root), newer, a, v, w

"""AdaNorm: gradients that do not become shorter than their norms have been on average."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import first_state_of, slots_with, transform
from gradxform.numerics import abs_sq, over, taming
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root
from gradxform.slots import zero_scalars_like
from gradxform.transforms.adam import AdamMoments, with_largest
from gradxform.transforms.matrices.array_norms import array_norm
from gradxform.types import Array, Decay, NonNegative, NonNegativeSlot, Slot


class ScaleByAdaNormState(NamedTuple):
    """State of `scale_by_adanorm`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the corrected gradient
    nu: NonNegativeSlot  # like params, at least float32; the second moment v
    norm: NonNegativeSlot  # a real scalar per parameter, at least float32; the average norm e
    nu_max: NonNegativeSlot = None  # like nu; the largest v so far; with amsgrad


@transform
class scale_by_adanorm(AdamMoments):
    """Rescale updates as AdamNorm does: Adam, with short gradients lengthened in its first moment.

    Update rule, with |g| the Euclidean norm of one array, from m = v = e = 0 and t = 1, 2, ...:

        e <- r e + (1 - r) |g|
        h = g e / |g| where e > |g| > 0, else g
        m <- b1 m + (1 - b1) h
        v <- b2 v + (1 - b2) |g|^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

    With amsgrad, the largest v so far stands in place of v in the last line. With
    eps_before_correction, the divisor is (sqrt(v + eps_root) + eps) / sqrt(1 - b2^t). Learning
    rates of Adam will do.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      r: the decay of the average norm, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      amsgrad: whether the largest second moment so far divides. Keyword-only.
      eps_before_correction: whether the epsilons are added before v is corrected. Keyword-only.

    Reference: Dubey et al., AdaNorm: Adaptive Gradient Norm Correction based Optimizer for CNNs,
    2023, the algorithm AdamNorm.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    r: Decay = 0.95
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    amsgrad: bool = field(default=False, kw_only=True)
    eps_before_correction: bool = field(default=False, kw_only=True)

    State = ScaleByAdaNormState
    unused_slots = slots_with(nu_max="amsgrad")
    locality = "array"
    sees_pieces = True
    averages_of = ()

    def init(self, params):
        """Return averages of zeros, one norm per parameter."""
        return first_state_of(self, params, norm=zero_scalars_like(params))

    def rule(self, g, m, v, e, h, p, of_m, of_v):
        """Return the update, the averages, the norm and the maximum."""
        g = bounded_square(g)
        tame = taming(engine.array_max(jnp.abs(g)))  # so that the sum of squares is finite
        size = array_norm(tame * g) / tame
        e = self.r * e + (1 - self.r) * size
        m = self.b1 * m + (1 - self.b1) * (jnp.where(e > size, over(e, size, 0), 1) * g)
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        below, h = with_largest(v, h)
        return of_m * over_root(m, of_v * below, self.eps, self.eps_root), m, v, e, h

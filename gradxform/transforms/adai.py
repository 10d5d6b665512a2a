"""Adai: momentum whose inertia is less where gradients are larger."""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.numerics import count_and_debias, is_zero, over
from gradxform.numerics.overflow import bounded_square
from gradxform.transforms.tree_rules import columns_of, mean_moment
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeSlot,
    Slot,
    UnitInterval,
)


class ScaleByAdaiState(NamedTuple):
    """State of `scale_by_adai`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the momentum m
    nu: NonNegativeSlot  # like params, at least float32; the second moment v
    weights: NonNegativeSlot  # like params, at least float32; 1 minus the product of 1 - w so far


@transform
class scale_by_adai(ArrayRule):
    """Replace updates by a momentum that forgets faster where gradients are large.

    Update rule, from m = v = c = 0 and t = 1, 2, ..., with V the mean of the new v / (1 - b2^t)
    over all entries of all arrays:

        v <- b2 v + (1 - b2) g^2
        w = b0 (v / (1 - b2^t) / V)^(1 / (3 - 2 damping)), at least eps and at most 1
        m <- (1 - w) m + w^damping g
        c <- c + w (1 - c)
        u = b0^(1 - damping) m / c

    1 - w is the decay beta_1 of the paper, for each entry and step, and c corrects for m having
    started at 0. Every entry moves by an average of its gradients: nothing is divided by their
    size, so that learning rates of SGD will do.

    Args:
      b0: the share of a gradient of average size in the momentum, at least 0.
      b2: the decay of the second moment, in [0, 1).
      eps: the least share, in [0, 1).
      damping: the power of the share in the momentum, in [0, 1]; 1 in Adai.

    Reference: Xie et al., Adaptive Inertia: Disentangling the Effects of Adaptive Learning Rate and
    Momentum, 2022, the algorithm Adai; the damping is of the authors' code.
    """

    b0: NonNegative = 0.1
    b2: Decay = 0.99
    eps: Decay = 1e-3
    damping: UnitInterval = 1.0

    State = ScaleByAdaiState
    locality = "tree"
    sees_pieces = True

    def prepare(self, updates, state, params):
        """Return the advanced count, and the factor of v that makes its mean 1."""
        gs, _, vs, _, _ = columns_of(self, updates, state, updates if params is None else params)
        state, of_v = count_and_debias(state, self.b2)
        mean, _ = mean_moment(updates, gs, vs, self.b2, of_v)
        return state, over(of_v, mean, 0)

    def rule(self, g, m, v, c, p, of_v):
        """Return the update, the momentum, the second moment and the weights."""
        v = self.b2 * v + (1 - self.b2) * jnp.square(bounded_square(g))
        ratio = of_v * v
        plain = is_zero(1 - self.damping)
        if not plain:
            is_zero_now = ratio == 0  # a power of 0 does not have a derivative
            power = jnp.where(is_zero_now, 1, ratio) ** (1 / (3 - 2 * self.damping))
            ratio = jnp.where(is_zero_now, 0, power)
        w = jnp.clip(self.b0 * ratio, self.eps, 1)
        m = (1 - w) * m + (w if plain else w**self.damping) * g
        c = c + w * (1 - c)
        u = over(m, c, self.eps)
        return u if plain else self.b0 ** (1 - self.damping) * u, m, v, c

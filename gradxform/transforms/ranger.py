"""The core of Ranger21: AdaPNM with a stable weight decay and a smooth divisor."""

from dataclasses import field
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.numerics import count_and_debias, is_zero, over, plus
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import root
from gradxform.transforms.normalization import over_std
from gradxform.transforms.pnm import positive_negative
from gradxform.transforms.tree_rules import columns_of, mean_moment
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeSlot,
    Positive,
    Slot,
)


class ScaleByRanger21State(NamedTuple):
    """State of `scale_by_ranger21`."""

    count: Array  # int32 scalar; the number of updates so far
    older: Slot  # like params, at least float32; the average that takes the next gradient
    newer: Slot  # like params, at least float32; the average that took the last one
    nu: NonNegativeSlot  # like params, at least float32; the second moment v
    nu_max: NonNegativeSlot  # like params, at least float32; the largest v so far


@transform
class scale_by_ranger21(ArrayRule):
    """Rescale updates as Ranger21 does: AdaPNM over a softplus, plus a stable weight decay.

    Update rule, with d the momentum of `scale_by_pnm`, from v = w = 0 and t = 1, 2, ...:

        v <- b2 v + (1 - b2) g^2
        w <- max(w, v)
        s = sqrt(w / (1 - b2^t)) + eps
        V = sqrt((1 + the sum of all v / (1 - b2^t)) / N)        (over the N entries of all arrays)
        u = (d / (1 - b1^t)) / (log(1 + exp(beta_softplus s)) / beta_softplus) + weight_decay / V p

    The softplus keeps the divisor above 0.69 / beta_softplus; None divides by s. The decay is the
    stronger the smaller the gradients are, so that it does not vanish beside them; the 1 in V, from
    the authors' code, bounds it while all gradients are 0.

    Args:
      b1: the root of the decay of the averages, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      b0: the weight of the negative average, at least 0.
      weight_decay: the multiple of p over V that is added, at least 0.
      eps: added to the root, at least 0.
      beta_softplus: how sharp the softplus is, greater than 0; None leaves it out.
      renormalize: whether the momentum averages g / (std(g) + eps), as in pytorch_optimizer. For
        gradients that `normalize_by_block_std` has divided already, that is about g, but longer
        where the entries of a vector are nearly equal. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Wright and Demeure, Ranger21: A Synergistic Deep Learning Optimizer, 2021; Xie et
    al., On the Overlooked Pitfalls of Weight Decay and How to Mitigate Them, 2020, for the decay.
    The softplus is a later part of the authors' code.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    b0: NonNegative = 0.9
    weight_decay: NonNegative = 1e-4
    eps: NonNegative = 1e-8
    beta_softplus: Positive | None = 50.0
    renormalize: bool = field(default=False, kw_only=True)

    State = ScaleByRanger21State
    locality = "tree"
    sees_pieces = True
    needs_params = True

    def prepare(self, updates, state, params):
        """Return the advanced count, the factors of the momentum and of v, and 1 / V."""
        leaves = columns_of(self, updates, state, params)
        state, of_m, of_v = count_and_debias(state, self.b1, self.b2)
        mean, entries = mean_moment(updates, leaves[0], leaves[3], self.b2, of_v)
        return state, of_m, of_v, 1 / jnp.sqrt(mean + 1 / entries)

    def rule(self, g, older, newer, v, w, p, *scalars):
        """Return the update, the averages in their new order, v and the maximum."""
        of_m, of_v, stability = scalars
        g = bounded_square(g)
        h = over_std(g, self.eps) if self.renormalize else g
        d, newer, a = positive_negative(h, older, newer, self.b1, self.b0)
        v = self.b2 * v + (1 - self.b2) * jnp.square(g)
        w = jnp.maximum(w, v)
        s = plus(root(of_v * w), self.eps)
        if self.beta_softplus is not None:
            s = jax.nn.softplus(self.beta_softplus * s) / self.beta_softplus
        u = of_m * over(d, s, self.eps)
        if not is_zero(self.weight_decay):
            u = u + (self.weight_decay * stability) * p
        return u, newer, a, v, w

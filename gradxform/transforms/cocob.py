"""COCOB: steps without a learning rate, by betting on coins."""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.slots import full_like, zeros_like
from gradxform.transforms.tree_rules import copied_params
from gradxform.types import NonNegative, NonNegativeSlot, Slot


class COCOBState(NamedTuple):
    """State of `scale_by_cocob`."""

    init_particles: Slot  # like params, at least float32; where the parameters began, p0
    cumulative_gradients: Slot  # like params, at least float32; minus the sum of gradients, C
    scale: NonNegativeSlot  # like params, at least float32; the largest gradient L
    subgradients: NonNegativeSlot  # like params, at least float32; the sum G of absolute gradients
    reward: NonNegativeSlot  # like params, at least float32; the reward R of all bets so far


@transform
class scale_by_cocob(ArrayRule):
    """Emit the whole step of COCOB: bet a share of the reward so far on the sign of the gradient.

    Update rule for every entry, from C = G = R = 0, L = eps and p0 = the parameter at `init`:

        L <- max(L, |g|)
        G <- G + |g|
        R <- max(R - g (p - p0), 0)
        C <- C - g
        u = p0 + (L + R) C / (L max(G + L, alpha L)) - p

    It does not take a learning rate: the first step of an entry is 1 / alpha, whatever its
    gradient. It must be the last part of a chain.

    Args:
      alpha: the larger, the smaller the first bets; at least 0. The paper uses 100.
      eps: the first L, at least 0. With 0, an entry that never had a gradient stays put (in Optax
        it becomes NaN).

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Orabona and Tommasi, Training Deep Networks without Learning Rates Through Coin
    Betting, 2017, Algorithm 2.
    """

    alpha: NonNegative = 100.0
    eps: NonNegative = 1e-8

    State = COCOBState
    locality = "entry"
    needs_params = True
    follows = ("init_particles",)

    def init(self, params):
        """Return a copy of the parameters, sums of zeros and the first L."""
        return COCOBState(
            init_particles=copied_params(params),
            cumulative_gradients=zeros_like(params),
            scale=full_like(params, self.eps),
            subgradients=zeros_like(params),
            reward=zeros_like(params),
        )

    def rule(self, g, p0, C, L, G, R, p):
        """Return the step to the new bet, and the slots."""
        abs_g = jnp.abs(g)
        L = jnp.maximum(L, abs_g)
        G = G + abs_g
        C = C - g
        R = jnp.maximum(R - g * (p - p0), 0)
        # L is 0 only with eps = 0 and without any gradient so far; C is 0 there too.
        safe_L = jnp.where(L > 0, L, 1)
        bet = C / jnp.maximum(G + safe_L, self.alpha * safe_L) * (1 + R / safe_L)
        return (p0 - p) + bet, p0, C, L, G, R

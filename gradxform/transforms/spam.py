"""Spike-aware clipping: SPAM's of single entries, Stable-SPAM's of entries and of norms."""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.numerics import (
    abs_sq,
    count_and_debias,
    not_zero,
    over,
    plus,
    safe_increment,
    scalar,
    within,
)
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import root
from gradxform.slots import zero_count, zero_scalars_like
from gradxform.transforms.matrices.array_norms import array_norm
from gradxform.types import (
    Array,
    Bound,
    Decay,
    NonNegative,
    NonNegativeInt,
    NonNegativeSlot,
    PositiveInt,
    UnitInterval,
)


class ClipBySecondMomentState(NamedTuple):
    """State of `clip_by_second_moment`."""

    count: Array  # int32 scalar; the number of updates so far
    nu: NonNegativeSlot  # like params, at least float32; the average v of clipped squares


@transform
class clip_by_second_moment(ArrayRule):
    """Clip every entry whose square is far above the average of its squares so far.

    Update rule, from v = 0 and t = 1, 2, ...:

        u = g min(1, sqrt(threshold v) / |g|)      (u = g while t < start, and where v = 0)
        v <- b2 v + (1 - b2) |u|^2

    Before Adam with the same b2, v is Adam's second moment before this gradient.

    Args:
      threshold: how many times the average is too much, greater than 0; infinite for no clipping.
      b2: the decay of the average, in [0, 1).
      start: the first step at which entries are clipped, at least 1.
      every: the number of steps from one reset of v to the next, at least 1, where `reset_state` is
        around this: then t mod every replaces t in the first line. None without resets.

    Reference: Huang et al., SPAM: Spike-Aware Adam with Momentum Reset for Stable LLM Training,
    2025, Algorithm 1.
    """

    threshold: Bound = 5000.0
    b2: Decay = 0.999
    start: PositiveInt = 20
    every: PositiveInt | None = None

    State = ClipBySecondMomentState
    locality = "entry"
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count, and whether entries are clipped."""
        count = safe_increment(state.count)
        since = count if self.every is None else count % self.every
        return state._replace(count=count), since >= self.start

    def rule(self, g, v, p, clips):
        """Return the clipped update and the average."""
        # Two roots, because their product may be finite where that of the squares is not.
        most = root(v) * jnp.sqrt(jnp.asarray(within(self.threshold, v.dtype), v.dtype))
        size = jnp.abs(g)
        spike = clips & (v > 0) & (size > most)
        g = g * jnp.where(spike, most / jnp.where(spike, size, 1), 1)
        return g, self.b2 * v + (1 - self.b2) * abs_sq(g)


class AdaClipState(NamedTuple):
    """State of `adaclip`."""

    count: Array  # int32 scalar; the number of updates so far
    largest: NonNegativeSlot  # a real scalar per parameter, at least float32; the average M


@transform
class adaclip(ArrayRule):
    """Clip the entries of every array that are above the average of its largest entries.

    Update rule for each array, with G the largest absolute value in it, from M = 0 and
    t = 1, 2, ...:

        M <- theta M + (1 - theta) G
        X = M / (1 - theta^t)
        u = g X / G                   (for entries with |g| > X; else u = g)

    Args:
      theta: the decay of the average, in [0, 1).

    Reference: Huang et al., Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit Adam, 2025,
    AdaClip.
    """

    theta: Decay = 0.999

    State = AdaClipState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return averages of 0."""
        return AdaClipState(zero_count(), zero_scalars_like(params))

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor that debiases the average."""
        return count_and_debias(state, self.theta)

    def rule(self, g, M, p, of_M):
        """Return the clipped update and the average."""
        size = jnp.abs(g)
        G = engine.array_max(size)
        M = self.theta * M + (1 - self.theta) * G
        X = of_M * M
        return g * jnp.where(size > X, over(jnp.minimum(X, G), G, 0), 1), M


class AdaGNState(NamedTuple):
    """State of `adagn`."""

    count: Array  # int32 scalar; the number of updates so far
    norm: NonNegativeSlot  # a real scalar per parameter, at least float32; the average a of |g|
    norm_sq: NonNegativeSlot  # a real scalar per parameter, at least float32; that of |g|^2


@transform
class adagn(ArrayRule):
    """Give every array the norm of its average gradient, over the root of the average square.

    Update rule for each array, with |g| its Euclidean norm, from a = b = 0 and t = 1, 2, ...:

        a <- gamma1 a + (1 - gamma1) |g|
        b <- gamma2 b + (1 - gamma2) |g|^2
        u = g / |g| (a / (1 - gamma1^t)) / (sqrt(b / (1 - gamma2^t)) + eps)      (0 where |g| = 0)

    Args:
      gamma1: the decay of a, in [0, 1).
      gamma2: the decay of b, in [0, 1).
      eps: added to the root, at least 0.

    Reference: Huang et al., Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit Adam, 2025,
    AdaGN.
    """

    gamma1: Decay = 0.7
    gamma2: Decay = 0.9
    eps: NonNegative = 1e-8

    State = AdaGNState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return averages of 0."""
        zeros = zero_scalars_like(params)
        return AdaGNState(zero_count(), zeros, zero_scalars_like(params))

    def prepare(self, updates, state, params):
        """Return the advanced count and the factors that debias both averages."""
        return count_and_debias(state, self.gamma1, self.gamma2)

    def rule(self, g, a, b, p, of_a, of_b):
        """Return the update and the averages."""
        g = bounded_square(g)
        # Relative to the largest entry, so that sums of squares neither overflow nor vanish.
        largest = engine.array_max(jnp.abs(g))
        x = over(g, largest, 0)
        length = array_norm(x)
        size = largest * length
        a = self.gamma1 * a + (1 - self.gamma1) * size
        b = self.gamma2 * b + (1 - self.gamma2) * saturated(size * size)
        eps = not_zero(self.eps, b.dtype, 0.5)
        return over(x, length, 0) * over(of_a * a, plus(root(of_b * b), eps), eps), a, b


class WarmUpAfterResetsState(NamedTuple):
    """State of `warm_up_after_resets`."""

    count: Array  # int32 scalar; the number of updates so far


@transform
class warm_up_after_resets(ArrayRule):
    """Multiply updates by a factor that climbs along a cosine after every reset.

    Update rule, with t = 1, 2, ... and k the remainder of t by `every`:

        u = g (1 - (1 - first) (1 + cos(pi (k + 1) / (warmup_steps + 1))) / 2)

    for t >= every and k < warmup_steps, else u = g. It goes with `reset_state(..., every)`.

    Args:
      every: the number of steps from one reset to the next, at least 1.
      warmup_steps: the length of a climb, at least 0; with 0, u = g.
      first: where a climb begins, in [0, 1].

    Reference: Huang et al., SPAM: Spike-Aware Adam with Momentum Reset for Stable LLM Training,
    2025, the warm-up after a reset.
    """

    every: PositiveInt = 500
    warmup_steps: NonNegativeInt = 150
    first: UnitInterval = 0.01

    State = WarmUpAfterResetsState
    locality = "entry"
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor."""
        t = safe_increment(state.count)
        k = t % self.every
        share = scalar(k + 1) / scalar(self.warmup_steps + 1)
        climbing = (t >= self.every) & (k < self.warmup_steps)
        factor = 1 - (1 - self.first) * (1 + jnp.cos(jnp.pi * share)) / 2
        return state._replace(count=t), jnp.where(climbing, factor, 1)

    def rule(self, g, p, factor):
        """Return the scaled update."""
        return factor * g

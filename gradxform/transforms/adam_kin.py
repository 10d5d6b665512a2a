"""Rules of Adam's form with another divisor: AdaBelief, Yogi, AdaMax and RAdam."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import first_state_of, slots_with, transform
from gradxform.numerics import (
    abs_sq,
    bias_correction,
    count_and_debias,
    not_zero,
    over,
    plus,
    safe_increment,
)
from gradxform.numerics.roots import over_root
from gradxform.schedules.rectified import check_threshold, rectification
from gradxform.slots import full_like, real_full_like
from gradxform.transforms.adam import AdamMoments, with_largest
from gradxform.types import Array, Decay, NonNegative, NonNegativeSlot, Scalar, Slot


def _factors(part: Any, state: Any) -> tuple[Any, ...]:
    """Return the advanced count, the factors of m and v, and for nesterov that of the next m."""
    state, of_m, of_v = count_and_debias(state, part.b1, part.b2)
    of_next_m = of_m
    if part.nesterov:
        of_next_m = bias_correction(part.b1, safe_increment(state.count))
    return state, of_m, of_v, of_next_m


def _numerator(part: Any, g: Array, m: Array, of_m: Scalar, of_next_m: Scalar) -> Array:
    """Return the debiased first moment; with nesterov one step ahead, in Dozat's form."""
    if part.nesterov:
        return (part.b1 * of_next_m) * m + ((1 - part.b1) * of_m) * g
    return of_m * m


class ScaleByBeliefState(NamedTuple):
    """State of `scale_by_belief`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    nu: NonNegativeSlot  # like params, at least float32; the average s of squared deviations from m


class RectifiedBeliefState(NamedTuple):
    """State of `scale_by_rectified_belief`."""

    count: Array  # as in `ScaleByBeliefState`, and so are the next two
    mu: Slot
    nu: NonNegativeSlot
    nu_max: NonNegativeSlot = None  # like nu; the largest of these averages, h; with amsgrad


@transform
class scale_by_belief(AdamMoments):
    """Rescale updates as AdaBelief does: the first moment over the root of the gradient's variance.

    Update rule, from m = s = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        s <- b2 s + (1 - b2) |g - m|^2 + eps_root
        u = (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)

    With nesterov, the numerator is b1 m / (1 - b1^(t+1)) + (1 - b1) g / (1 - b1^t).

    Where gradients are close to their average the steps are longer than Adam's: a gradient that
    never changes is divided by little more than eps_root, which accumulates in s.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the squared deviations, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added to s at every step, at least 0. If both are 0, an entry whose gradient never
        changes becomes NaN.
      nesterov: whether to look one step ahead. Keyword-only.

    Reference: Zhuang et al., AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
    Gradients, 2020, Algorithm 2, which uses one epsilon of 1e-8 for both of ours.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-16
    eps_root: NonNegative = 1e-16
    nesterov: bool = field(default=False, kw_only=True)

    State = ScaleByBeliefState
    averages_of = (("mu", "g"), ("nu", "|g - m|^2"))

    def prepare(self, updates, state, params):
        """Return the advanced count, and the factors of m, s and the next m."""
        return _factors(self, state)

    def halves(self, g: Array, m: Array, s: Array, of_m: Scalar, of_next_m: Scalar) -> Any:
        """Return half the numerator, whose whole may be beyond the range, and the averages."""
        m = self.b1 * m + (1 - self.b1) * g
        s = self.b2 * s + (1 - self.b2) * abs_sq(g - m) + self.eps_root
        return _numerator(self, g, m, of_m / 2, of_next_m / 2), m, s

    def rule(self, g, m, s, p, of_m, of_s, of_next_m):
        """Return the update and the averages."""
        half, m, s = self.halves(g, m, s, of_m, of_next_m)
        return 2 * over_root(half, of_s * s, self.eps), m, s


@transform
class scale_by_rectified_belief(scale_by_belief):
    """Rescale updates as the code of AdaBelief's authors does: rectified, or over the largest s.

    Update rule of `scale_by_belief`, with h in place of s in its last line:

        h <- max(h, s)      (without amsgrad: h = s)

    With a threshold, u is rectified as in `scale_by_radam`: the numerator alone in the first steps.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the squared deviations, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added to s at every step, at least 0. If both are 0, an entry whose gradient never
        changes becomes NaN.
      nesterov: whether to look one step ahead. Keyword-only.
      amsgrad: whether the largest average so far divides. Keyword-only.
      threshold: with how many gradients in the average RAdam's rectification begins to divide, at
        least 4, such as 5. Defaults to no rectification. Keyword-only.

    Reference: Zhuang et al., AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
    Gradients, 2020, with the options of its package `adabelief-pytorch`.
    """

    amsgrad: bool = field(default=False, kw_only=True)
    threshold: float | None = field(default=None, kw_only=True)

    State = RectifiedBeliefState
    unused_slots = slots_with(nu_max="amsgrad")

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_threshold(self)

    def prepare(self, updates, state, params):
        """Return the count, the factors of m, s and the next m, whether to use s, and c."""
        state, *factors = super().prepare(updates, state, params)
        if self.threshold is None:
            return state, *factors, jnp.ones((), jnp.bool_), jnp.ones_like(factors[0])
        return state, *factors, *rectification(self.b2, state.count, self.threshold)

    def rule(self, g, m, s, h, p, *scalars):
        """Return the update, the averages and the largest average."""
        of_m, of_s, of_next_m, uses_s, c = scalars
        half, m, s = self.halves(g, m, s, of_m, of_next_m)
        below, h = with_largest(s, h)
        scaled = c * (2 * over_root(half, of_s * below, self.eps))
        return jnp.where(uses_s, scaled, 2 * half), m, s, h


@transform
class scale_by_yogi(AdamMoments):
    """Rescale updates as Yogi does: as Adam, over a second moment that shrinks slowly.

    Update rule, from m = v = initial_accumulator_value and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- v - (1 - b2) sign(v - |g|^2) |g|^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

    Unlike Adam's, v cannot be forgotten in a few steps: one step lowers it by at most (1 - b2) v.
    The authors recommend a large eps and about ten times Adam's learning rate.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: 1 - b2 is the share of |g|^2 that is added or subtracted, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      initial_accumulator_value: the first value of both moments (as in Optax; of v alone in the
        paper), at least 0.

    Reference: Zaheer et al., Adaptive Methods for Nonconvex Optimization, 2018, Algorithm 2, with
    Adam's corrections.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-3
    eps_root: NonNegative = 0.0
    initial_accumulator_value: NonNegative = 1e-6

    averages_of = (("mu", "g"), ("nu", "|g|^2, added by sign"))

    def init(self, params):
        """Return moments of `initial_accumulator_value`."""
        first = self.initial_accumulator_value
        mu, nu = full_like(params, first), real_full_like(params, first)
        return first_state_of(self, params, mu=mu, nu=nu)

    def rule(self, g, m, v, p, of_m, of_v):
        """Return the update and the moments."""
        square = abs_sq(g)
        change = (1 - self.b2) * square
        m = self.b1 * m + (1 - self.b1) * g
        # Selected, not multiplied by sign(v - |g|^2): that is NaN where both are infinite.
        v = jnp.where(v < square, v + change, jnp.where(v > square, v - change, v))
        return of_m * over_root(m, of_v * v, self.eps, self.eps_root), m, v


@transform
class scale_by_adamax(AdamMoments):
    """Rescale updates as AdaMax does: the first moment over a decaying maximum of |g|.

    Update rule, from m = v = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- max(b2 v, |g| + eps)
        u = (m / (1 - b1^t)) / v

    Without eps_in_max, v <- max(b2 v, |g|) and u = (m / (1 - b1^t)) / (v + eps), as in TensorFlow.

    Args:
      b1: the decay of the average, in [0, 1).
      b2: the decay of the maximum, in [0, 1).
      eps: at least 0; with 0, an entry that never had a gradient stays put.
      eps_in_max: whether eps is added to |g|, not to the maximum. Keyword-only.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, Algorithm 2, which
    does not have an eps.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_in_max: bool = field(default=True, kw_only=True)

    averages_of = (("mu", "g"), ("nu", "max |g|"))

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor of m."""
        return count_and_debias(state, self.b1)

    def rule(self, g, m, v, p, of_m):
        """Return the update, the average and the maximum."""
        m = self.b1 * m + (1 - self.b1) * g
        eps = not_zero(self.eps, v.dtype)
        if self.eps_in_max:
            v = jnp.maximum(self.b2 * v, plus(jnp.abs(g), eps))
            return of_m * over(m, v, eps), m, v
        v = jnp.maximum(self.b2 * v, jnp.abs(g))
        return of_m * over(m, plus(v, eps), eps), m, v


@transform
class scale_by_radam(AdamMoments):
    """Rescale updates as RAdam does: Adam, but without the second moment in the first steps.

    Update rule, from m = v = 0, with t = 1, 2, ..., r_inf = 2 / (1 - b2) - 1 and
    r = r_inf - 2 t b2^t / (1 - b2^t), the number of gradients that v averages:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        c = sqrt((r - 4) (r - 2) r_inf / ((r_inf - 4) (r_inf - 2) r))
        u = c (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t) + eps_root) + eps)      where r >= threshold
        u = m / (1 - b1^t)                                                    before

    With nesterov, b1 m / (1 - b1^(t+1)) + (1 - b1) g / (1 - b1^t) replaces m / (1 - b1^t).

    The first steps (5 of them with b2 = 0.999) are not divided by anything, so that they are as
    large as the gradient. With b2 at most 0.6 this holds for all steps.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      threshold: the least r at which v is used, at least 4; below 4, c is not a real number.
      nesterov: whether to look one step ahead. Keyword-only.

    Reference: Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2020,
    Algorithm 2, which takes 4 as the threshold.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    threshold: float = 5.0
    nesterov: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_threshold(self)

    def prepare(self, updates, state, params):
        """Return the count, the factors of m, v and the next m, whether to use v, and c."""
        state, of_m, of_v, of_next_m = _factors(self, state)
        uses_v, c = rectification(self.b2, state.count, self.threshold)
        if self.eps_before_correction:
            of_v, c = jnp.ones_like(of_v), c * jnp.sqrt(1 / of_v)
        return state, of_m, of_v, of_next_m, uses_v, c

    def rule(self, g, m, v, p, *factors):
        """Return the update and the moments."""
        of_m, of_v, of_next_m, uses_v, c = factors
        m, v = self.moments(g, m, v)
        top = _numerator(self, g, m, of_m, of_next_m)
        scaled = over_root(c * top, of_v * v, self.eps, self.eps_root)
        return jnp.where(uses_v, scaled, top), m, v


@transform
class scale_by_torch_radam(scale_by_radam):
    """Rescale updates as PyTorch's RAdam does: eps is added before the correction.

    Update rule of `scale_by_radam`, but with

        u = c sqrt(1 - b2^t) (m / (1 - b1^t)) / (sqrt(v + eps_root) + eps)      where r >= threshold

    as in the authors' code, too. Early on, a large eps weighs more than in `scale_by_radam`.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      threshold: the least r at which v is used, at least 4; below 4, c is not a real number.
      nesterov: whether to look one step ahead. Keyword-only.

    Reference: `torch.optim.RAdam`; Liu et al., On the Variance of the Adaptive Learning Rate and
    Beyond, 2020, Algorithm 2.
    """

    eps_before_correction = True

"""Rules that divide by averaged or summed squares: RMSProp, Adagrad, KATE and Adadelta."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform.base import ArrayRule, first_state_of, state_with, transform
from gradxform.numerics import abs_sq, as_flag, count_and_debias, is_zero, not_zero, over, plus
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import one_over_root, over_root, root
from gradxform.slots import real_full_like
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeSlot,
    Positive,
    Scalar,
    Slot,
)

__all__ = [
    "scale_by_adadelta",
    "scale_by_kate",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_stddev",
    "ScaleByAdaDeltaState",
    "ScaleByKateState",
    "ScaleByRStdDevState",
    "ScaleByRmsState",
    "ScaleByRssState",
]


class ScaleByRmsState(NamedTuple):
    """State of `scale_by_rms`."""

    nu: NonNegativeSlot  # like params, at least float32; the second moment v


class ScaleByRmsWithCountState(NamedTuple):
    """State of `scale_by_rms` with its bias correction."""

    count: Array  # int32 scalar; the number of updates so far
    nu: NonNegativeSlot  # like params, at least float32; the second moment v


class _Averages(ArrayRule):
    """Base of the rules with averages, which need a count for their bias correction only."""

    decay: Any
    bias_correction: bool

    locality = "entry"
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the state and, with bias_correction, the factor that debiases its averages."""
        return count_and_debias(state, self.decay) if self.bias_correction else (state,)


def _over_root(g: Array, x: Array, eps: Scalar, eps_in_sqrt: bool) -> Array:
    """Return g / sqrt(x + eps), or g / (sqrt(x) + eps); 0 where that divides by 0."""
    if eps_in_sqrt and not is_zero(eps):
        return g * lax.rsqrt(x + not_zero(eps, x.dtype))
    return over_root(g, x, eps)


@transform
class scale_by_rms(_Averages):
    """Rescale updates as RMSProp does: the gradient over its root mean square.

    Update rule, from v = initial_scale and t = 1, 2, ...:

        v <- decay v + (1 - decay) |g|^2
        u = g / sqrt(v + eps)      (without eps_in_sqrt: g / (sqrt(v) + eps))

    With bias_correction, v / (1 - decay^t) replaces v in the second line.

    Args:
      decay: the decay of the average, in [0, 1).
      eps: at least 0; with 0, an entry that never had a gradient stays put.
      initial_scale: the average's first value, at least 0.
      eps_in_sqrt: whether eps is added under the root.
      bias_correction: whether to correct for the average having started at 0.

    Reference: Hinton, Neural Networks for Machine Learning, lecture 6e, 2012.
    """

    decay: Decay = 0.9
    eps: NonNegative = 1e-8
    initial_scale: NonNegative = 0.0
    eps_in_sqrt: bool = True
    bias_correction: bool = False

    State = state_with("bias_correction", ScaleByRmsState, ScaleByRmsWithCountState)
    averages_of = (("nu", "|g|^2"),)

    def init(self, params):
        """Return an average of `initial_scale`."""
        return first_state_of(self, params, nu=real_full_like(params, self.initial_scale))

    def rule(self, g, v, p, debias=1):
        """Return the update and the average."""
        v = self.decay * v + (1 - self.decay) * abs_sq(g)
        return _over_root(g, debias * v, self.eps, self.eps_in_sqrt), v


class ScaleByRStdDevState(NamedTuple):
    """State of `scale_by_stddev`."""

    mu: Slot  # like params, at least float32; the average m of the gradient
    nu: NonNegativeSlot  # like params, at least float32; the average v of its square


class ScaleByRStdDevWithCountState(NamedTuple):
    """State of `scale_by_stddev` with its bias correction."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the gradient
    nu: NonNegativeSlot  # like params, at least float32; the average v of its square


@transform
class scale_by_stddev(_Averages):
    """Rescale updates as centered RMSProp does: the gradient over its standard deviation.

    Update rule, from m = 0, v = initial_scale and t = 1, 2, ...:

        m <- decay m + (1 - decay) g
        v <- decay v + (1 - decay) |g|^2
        u = g / sqrt(v - |m|^2 + eps)      (without eps_in_sqrt: g / (sqrt(v - |m|^2) + eps))

    With bias_correction, both averages are divided by 1 - decay^t first. The difference
    v - |m|^2 is a variance: where rounding makes it negative it counts as 0 (in Optax it gives
    NaN).

    Args:
      decay: the decay of both averages, in [0, 1).
      eps: at least 0; with 0, an entry whose gradient never changes becomes NaN.
      initial_scale: the first value of v, at least 0.
      eps_in_sqrt: whether eps is added under the root.
      bias_correction: whether to correct for the averages having started at 0.

    Reference: Graves, Generating Sequences With Recurrent Neural Networks, 2013, (38-45).
    """

    decay: Decay = 0.9
    eps: NonNegative = 1e-8
    initial_scale: NonNegative = 0.0
    eps_in_sqrt: bool = True
    bias_correction: bool = False

    State = state_with("bias_correction", ScaleByRStdDevState, ScaleByRStdDevWithCountState)
    averages_of = (("mu", "g"), ("nu", "|g|^2"))

    def init(self, params):
        """Return averages of 0 and of `initial_scale`."""
        return first_state_of(self, params, nu=real_full_like(params, self.initial_scale))

    def rule(self, g, m, v, p, debias=1):
        """Return the update and the averages."""
        g = bounded_square(g)  # the difference of two infinities is not a number
        m = self.decay * m + (1 - self.decay) * g
        v = self.decay * v + (1 - self.decay) * abs_sq(g)
        variance = jnp.maximum(debias * v - abs_sq(debias * m), 0)
        return _over_root(g, variance, self.eps, self.eps_in_sqrt), m, v


class ScaleByRssState(NamedTuple):
    """State of `scale_by_rss`."""

    sum_of_squares: NonNegativeSlot  # like params, at least float32; the sum s


@transform
class scale_by_rss(ArrayRule):
    """Rescale updates as Adagrad does: the gradient over the root of the sum of its squares.

    Update rule, from s = initial_accumulator_value:

        s <- s + |g|^2
        u = g / sqrt(s + eps)      (without eps_in_sqrt: g / (sqrt(s) + eps); 0 where s = 0)

    The extra argument `update_slots` of `update` (a boolean, by default True) says whether this
    gradient is added to the sum. If not, the first line is left out, as for the gradient of a
    regularizer in TensorFlow's RegAdagrad.

    Args:
      initial_accumulator_value: the sum's first value, at least 0.
      eps: at least 0.
      eps_in_sqrt: whether eps is added under the root. Keyword-only.

    Reference: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, 2011, Figure 1, with a diagonal matrix.
    """

    initial_accumulator_value: NonNegative = 0.1
    eps: NonNegative = 1e-7
    eps_in_sqrt: bool = field(default=True, kw_only=True)

    State = ScaleByRssState
    locality = "entry"
    handles_complex = True

    def init(self, params):
        """Return a sum of `initial_accumulator_value`."""
        return ScaleByRssState(real_full_like(params, self.initial_accumulator_value))

    def prepare(self, updates, state, params, *, update_slots=True):
        """Return the state, and `update_slots` as an array unless it is statically True."""
        if update_slots is True:
            return (state,)
        return state, as_flag(self, "update_slots", update_slots)

    def rule(self, g, s, p, update_slots=None):
        """Return the update and the sum."""
        larger = s + abs_sq(g)
        s = larger if update_slots is None else jnp.where(update_slots, larger, s)
        if self.eps_in_sqrt:
            factor = jnp.where(s > 0, one_over_root(plus(s, self.eps)), 0)
        else:
            factor = jnp.where(s > 0, over(jnp.ones_like(s), plus(root(s), self.eps), self.eps), 0)
        return g * factor, s


class ScaleByKateState(NamedTuple):
    """State of `scale_by_kate`."""

    b_squared: NonNegativeSlot  # like params, at least float32; the sum s of squares, b^2
    m_squared: NonNegativeSlot  # like params, at least float32; the sum q of their shares, m^2


@transform
class scale_by_kate(ArrayRule):
    """Rescale updates as KATE does: Adagrad without its root, times a sum that takes its place.

    Update rule, from s = q = 0, the squares of the paper's b and m:

        s <- s + |g|^2 + eps
        q <- q + delta |g|^2 + |g|^2 / s
        u = sqrt(q) g / s

    Without the root, a linear model learns alike whatever the scale of its data is: with delta = 0
    gradients that are ten times as large give steps of a tenth. The eps is that of the authors'
    code, added at every step; the paper does not have one.

    Args:
      delta: the weight of squares in q, at least 0; the paper's eta.
      eps: added to s at every step, at least 0; with 0, an entry that never had a gradient stays
        put.

    Reference: Choudhury et al., Remove that Square Root: A New Efficient Scale-Invariant Version of
    AdaGrad, 2024, Algorithm 1.
    """

    delta: NonNegative = 0.0
    eps: NonNegative = 1e-8

    State = ScaleByKateState
    locality = "entry"
    handles_complex = True

    def rule(self, g, s, q, p):
        """Return the update and the sums."""
        g = bounded_square(g)  # the ratio of two infinities is not a number
        square, eps = abs_sq(g), not_zero(self.eps, s.dtype)
        s = saturated(plus(s + square, eps))
        q = saturated(q + self.delta * square + over(square, s, eps))
        return root(q) * over(g, s, eps), s, q


class ScaleByAdaDeltaState(NamedTuple):
    """State of `scale_by_adadelta`."""

    e_g: NonNegativeSlot  # like params, at least float32; the average of the squared gradient
    e_x: NonNegativeSlot  # like params, at least float32; the average of the squared update


@transform
class scale_by_adadelta(ArrayRule):
    """Rescale updates as Adadelta does: by the size of earlier updates over that of gradients.

    Update rule, from v = x = 0:

        v <- rho v + (1 - rho) |g|^2
        u = sqrt((x + eps) / (v + eps)) g
        x <- rho x + (1 - rho) |u|^2

    The steps begin at about sqrt(eps) and grow from there.

    Args:
      rho: the decay of both averages, in [0, 1).
      eps: added under both roots, greater than 0: with 0, nothing would ever move.

    Reference: Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012, Algorithm 1.
    """

    rho: Decay = 0.9
    eps: Positive = 1e-6

    State = ScaleByAdaDeltaState
    locality = "entry"
    handles_complex = True

    def rule(self, g, v, x, p):
        """Return the update and the averages."""
        v = self.rho * v + (1 - self.rho) * abs_sq(g)
        eps = not_zero(self.eps, v.dtype)
        u = (jnp.sqrt(x + eps) / jnp.sqrt(v + eps)) * g  # the quotient may not be normal
        return u, v, self.rho * x + (1 - self.rho) * abs_sq(u)

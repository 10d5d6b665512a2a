"""Rules that divide by a running size of the gradient: Adam, RMSProp, Adagrad and their kin."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform.base import ArrayRule, transform
from gradxform.errors import finite, non_negative, unit_interval
from gradxform.numerics import abs_sq, bias_correction, safe_increment
from gradxform.trees import real_full_like, real_zeros_like, zeros_like
from gradxform.types import Array, DType, Slot


def _zero_count() -> Array:
    return jnp.zeros((), jnp.int32)


class ScaleByAdamState(NamedTuple):
    """State of `scale_by_adam`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    nu: Slot  # like params, at least float32 and real; the second moment v


@transform
class scale_by_adam(ArrayRule):
    """Divide a moving average of the gradient by the root of one of its square.

    Update rule, from m = v = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

    With nesterov, the numerator is b1 m / (1 - b1^(t+1)) + (1 - b1) g / (1 - b1^t).

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0 an entry that never had a gradient becomes NaN.
      eps_root: added under the root, at least 0; needed to differentiate through the update.
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      nesterov: whether to look one step ahead, as NAdam does. Keyword-only.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, Algorithm 1;
    Dozat, Incorporating Nesterov Momentum into Adam, 2016, with b1 constant.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    eps_root: float = 0.0
    mu_dtype: DType = None
    nesterov: bool = field(default=False, kw_only=True)

    locality = "entry"
    handles_complex = True

    def __post_init__(self):
        unit_interval(self, "b1", "b2")
        non_negative(self, "eps", "eps_root")
        finite(self, "eps", "eps_root")

    def init(self, params):
        """Return moments of zeros."""
        mu = zeros_like(params, self.mu_dtype)
        return ScaleByAdamState(count=_zero_count(), mu=mu, nu=real_zeros_like(params))

    def prepare(self, updates, state, params):
        """Return the advanced count and the factors that debias m, v, and m a step ahead."""
        count = safe_increment(state.count)
        c1, c2 = bias_correction(self.b1, count), bias_correction(self.b2, count)
        state = state._replace(count=count)
        if not self.nesterov:
            return state, c1, c2
        return state, c1, c2, bias_correction(self.b1, safe_increment(count))

    def rule(self, g, m, v, p, c1, c2, ahead=None):
        """Return the update and the moments."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        top = c1 * m if ahead is None else (self.b1 * ahead) * m + ((1 - self.b1) * c1) * g
        return top / (jnp.sqrt(_plus(c2 * v, self.eps_root)) + self.eps), m, v


def _plus(x, eps):
    """`x + eps`, or `x` itself where eps is known to be 0."""
    return x if isinstance(eps, float) and not eps else x + eps


class ScaleByAmsgradState(NamedTuple):
    """State of `scale_by_amsgrad`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    nu: Slot  # like params, at least float32 and real; the second moment v
    nu_max: Slot  # like nu; the largest (corrected) second moment h


@transform
class scale_by_amsgrad(ArrayRule):
    """Divide a moving average of the gradient by the root of the largest one of its square.

    Update rule, from m = v = h = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v / (1 - b2^t))      (without bias_correction_nu: max(h, v))
        u = (m / (1 - b1^t)) / (sqrt(h + eps_root) + eps)

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0 an entry that never had a gradient becomes NaN.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      bias_correction_mu: whether to debias m. The paper does not.
      bias_correction_nu: whether to debias v before the maximum. The paper does not.

    Reference: Reddi et al., On the Convergence of Adam and Beyond, 2018, Algorithm 2.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    eps_root: float = 0.0
    mu_dtype: DType = None
    bias_correction_mu: bool = True
    bias_correction_nu: bool = True

    locality = "entry"
    handles_complex = True

    def __post_init__(self):
        unit_interval(self, "b1", "b2")
        non_negative(self, "eps", "eps_root")
        finite(self, "eps", "eps_root")

    def init(self, params):
        """Return moments of zeros."""
        return ScaleByAmsgradState(
            count=_zero_count(),
            mu=zeros_like(params, self.mu_dtype),
            nu=real_zeros_like(params),
            nu_max=real_zeros_like(params),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count and the factors that debias m and v."""
        count, one = safe_increment(state.count), jnp.ones((), jnp.float32)
        c1 = bias_correction(self.b1, count) if self.bias_correction_mu else one
        c2 = bias_correction(self.b2, count) if self.bias_correction_nu else one
        return state._replace(count=count), c1, c2

    def rule(self, g, m, v, h, p, c1, c2):
        """Return the update, the moments and the largest."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        h = jnp.maximum(h, c2 * v)
        return c1 * m / (jnp.sqrt(_plus(h, self.eps_root)) + self.eps), m, v, h


class ScaleByRmsState(NamedTuple):
    """State of `scale_by_rms`."""

    count: Array  # int32 scalar; the number of updates so far
    nu: Slot  # like params, at least float32 and real; the second moment v


def _over_root(x, g, eps, eps_in_sqrt):
    """Return g / sqrt(x + eps), or g / (sqrt(x) + eps)."""
    return g * lax.rsqrt(x + eps) if eps_in_sqrt else g / (jnp.sqrt(x) + eps)


@transform
class scale_by_rms(ArrayRule):
    """Divide the gradient by the root of a moving average of its square.

    Update rule, from v = initial_scale and t = 1, 2, ...:

        v <- decay v + (1 - decay) |g|^2
        u = g / sqrt(v + eps)      (without eps_in_sqrt: g / (sqrt(v) + eps))

    With bias_correction, v / (1 - decay^t) stands for v in the second line.

    Args:
      decay: the decay of the average, in [0, 1).
      eps: at least 0; with 0 an entry that never had a gradient becomes NaN.
      initial_scale: the average's first value, at least 0.
      eps_in_sqrt: whether eps is added under the root.
      bias_correction: whether to correct for the average's first value being 0.

    Reference: Hinton, Neural Networks for Machine Learning, lecture 6e, 2012.
    """

    decay: float = 0.9
    eps: float = 1e-8
    initial_scale: float = 0.0
    eps_in_sqrt: bool = True
    bias_correction: bool = False

    locality = "entry"
    handles_complex = True

    def __post_init__(self):
        unit_interval(self, "decay")
        non_negative(self, "eps", "initial_scale")
        finite(self, "eps", "initial_scale")

    def init(self, params):
        """Return an average of `initial_scale`."""
        return ScaleByRmsState(count=_zero_count(), nu=real_full_like(params, self.initial_scale))

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor that debiases v."""
        count = safe_increment(state.count)
        return state._replace(count=count), _debias(self.decay, count, self.bias_correction)

    def rule(self, g, v, p, c):
        """Return the update and the average."""
        v = self.decay * v + (1 - self.decay) * abs_sq(g)
        return _over_root(c * v, g, self.eps, self.eps_in_sqrt), v


def _debias(decay, count, wanted) -> Array:
    return bias_correction(decay, count) if wanted else jnp.ones((), jnp.float32)


class ScaleByRStdDevState(NamedTuple):
    """State of `scale_by_stddev`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the gradient
    nu: Slot  # like params, at least float32 and real; the average v of its square


@transform
class scale_by_stddev(ArrayRule):
    """Divide the gradient by a moving estimate of its standard deviation: centered RMSProp.

    Update rule, from m = 0, v = initial_scale and t = 1, 2, ...:

        m <- decay m + (1 - decay) g
        v <- decay v + (1 - decay) |g|^2
        u = g / sqrt(v - |m|^2 + eps)      (without eps_in_sqrt: g / (sqrt(v - |m|^2) + eps))

    With bias_correction, both averages are divided by 1 - decay^t first. The difference is a
    variance: where rounding makes it negative it counts as 0 (Optax gives NaN there).

    Args:
      decay: the decay of both averages, in [0, 1).
      eps: at least 0; with 0 an entry whose gradient never changes becomes NaN.
      initial_scale: the first value of v, at least 0.
      eps_in_sqrt: whether eps is added under the root.
      bias_correction: whether to correct for the averages having started at 0.

    Reference: Graves, Generating Sequences With Recurrent Neural Networks, 2013, (38-45).
    """

    decay: float = 0.9
    eps: float = 1e-8
    initial_scale: float = 0.0
    eps_in_sqrt: bool = True
    bias_correction: bool = False

    locality = "entry"
    handles_complex = True

    def __post_init__(self):
        unit_interval(self, "decay")
        non_negative(self, "eps", "initial_scale")
        finite(self, "eps", "initial_scale")

    def init(self, params):
        """Return averages of 0 and of `initial_scale`."""
        nu = real_full_like(params, self.initial_scale)
        return ScaleByRStdDevState(count=_zero_count(), mu=zeros_like(params), nu=nu)

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor that debiases both averages."""
        count = safe_increment(state.count)
        return state._replace(count=count), _debias(self.decay, count, self.bias_correction)

    def rule(self, g, m, v, p, c):
        """Return the update and the averages."""
        m = self.decay * m + (1 - self.decay) * g
        v = self.decay * v + (1 - self.decay) * abs_sq(g)
        variance = jnp.maximum(c * v - abs_sq(c * m), 0)
        return _over_root(variance, g, self.eps, self.eps_in_sqrt), m, v


class ScaleByRssState(NamedTuple):
    """State of `scale_by_rss`."""

    sum_of_squares: Slot  # like params, at least float32 and real; the sum s


@transform
class scale_by_rss(ArrayRule):
    """Divide the gradient by the root of the sum of all its squares: Adagrad.

    Update rule, from s = initial_accumulator_value:

        s <- s + |g|^2
        u = g / sqrt(s + eps)      (0 where s = 0)

    Args:
      initial_accumulator_value: the sum's first value, at least 0.
      eps: added under the root, at least 0.

    Reference: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, 2011, Figure 1, with a diagonal matrix.
    """

    initial_accumulator_value: float = 0.1
    eps: float = 1e-7

    locality = "entry"
    handles_complex = True

    def __post_init__(self):
        non_negative(self, "initial_accumulator_value", "eps")
        finite(self, "initial_accumulator_value", "eps")

    def init(self, params):
        """Return a sum of `initial_accumulator_value`."""
        return ScaleByRssState(real_full_like(params, self.initial_accumulator_value))

    def rule(self, g, s, p):
        """Return the update and the sum."""
        s = s + abs_sq(g)
        return g * jnp.where(s > 0, lax.rsqrt(s + self.eps), 0), s

"""Adam and its closest kin: NAdam and AMSGrad."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, first_state_of, transform
from gradxform.numerics import (
    abs_sq,
    bias_correction,
    count_and_debias,
    safe_increment,
    scalar,
    scalar_dtype,
)
from gradxform.numerics.roots import over_root
from gradxform.types import Array, Decay, DType, NonNegative, NonNegativeSlot, Slot


class ScaleByAdamState(NamedTuple):
    """State of `scale_by_adam`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    nu: NonNegativeSlot  # like params, at least float32; the second moment v


class AdamMoments(ArrayRule):
    """Base of the rules with Adam's two moments, which may also keep the largest second one."""

    b1: Any
    b2: Any
    eps_before_correction: Any = False  # a field of the rules that have this option

    State = ScaleByAdamState
    locality = "entry"
    averages_of = (("mu", "g"), ("nu", "|g|^2"))
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count, and the factors of m and of v.

        With eps_before_correction, the first has both corrections, and the second is 1.
        """
        state, of_m, of_v = count_and_debias(state, self.b1, self.b2)
        if self.eps_before_correction:
            of_m, of_v = of_m / jnp.sqrt(of_v), jnp.ones_like(of_v)
        return state, of_m, of_v

    def moments(self, g: Array, m: Array, v: Array) -> tuple[Array, Array]:
        """Return the moments."""
        m = self.b1 * m + (1 - self.b1) * g
        return m, self.b2 * v + (1 - self.b2) * abs_sq(g)


def with_largest(v: Array, h: Array | None) -> tuple[Array, Array | None]:
    """Return what divides, and the largest v so far: both the latter, or v where it is not kept."""
    if h is None:
        return v, None
    h = jnp.maximum(h, v)
    return h, h


@transform
class scale_by_adam(AdamMoments):
    """Rescale updates as Adam does: the first moment over the root of the second.

    Update rule, from m = v = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t) + eps_root) + eps)

    With nesterov, the numerator is b1 m / (1 - b1^(t+1)) + (1 - b1) g / (1 - b1^t).

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0; needed to differentiate through the update.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      nesterov: whether to look one step ahead, as NAdam does. Keyword-only.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, Algorithm 1; Dozat,
    Incorporating Nesterov Momentum into Adam, 2016, with b1 constant.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    mu_dtype: DType = None
    nesterov: bool = field(default=False, kw_only=True)

    def prepare(self, updates, state, params):
        """Return the advanced count, the factors of m and of v, and, with nesterov, that of g."""
        state, of_m, of_v = count_and_debias(state, self.b1, self.b2)
        if not self.nesterov:
            return state, of_m, of_v
        of_next_m = self.b1 * bias_correction(self.b1, safe_increment(state.count))
        return state, of_next_m, of_v, (1 - self.b1) * of_m

    def rule(self, g, m, v, p, *factors):
        """Return the update and the moments."""
        m, v = self.moments(g, m, v)
        of_m, of_v, *of_g = factors
        if not self.nesterov:
            return of_m * over_root(m, of_v * v, self.eps, self.eps_root), m, v
        # Halves, because the sum for the largest gradients is beyond the range.
        half = (of_m / 2) * m + (of_g[0] / 2) * g
        return 2 * over_root(half, of_v * v, self.eps, self.eps_root), m, v


class ScaleByNadamState(NamedTuple):
    """State of `scale_by_nadam`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    nu: NonNegativeSlot  # like params, at least float32; the second moment v
    mu_product: Array  # scalar, at least float32; the product P of the momenta so far


@transform
class scale_by_nadam(AdamMoments):
    """Rescale updates as the NAdam of Keras and PyTorch does: its Nesterov momentum warms up.

    Update rule, from m = v = 0, P = 1 and t = 1, 2, ...:

        mu(t) = b1 (1 - 0.96^(schedule_decay t) / 2)
        P <- P mu(t)
        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        top = mu(t+1) m / (1 - P mu(t+1)) + (1 - mu(t)) g / (1 - P)
        u = top / (sqrt(v / (1 - b2^t)) + eps)

    With a constant momentum use `scale_by_adam(nesterov=True)`.

    Args:
      b1: the decay of the first moment, and the limit of the momentum, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      schedule_decay: how fast the momentum warms up, from b1 / 2 to b1, at least 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: Dozat, Incorporating Nesterov Momentum into Adam, 2016, Algorithm 2; the momentum
    schedule is that of Sutskever et al., On the importance of initialization and momentum in deep
    learning, 2013, in the form of Dozat's report.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    schedule_decay: NonNegative = 0.004
    mu_dtype: DType = None

    State = ScaleByNadamState

    def init(self, params):
        """Return moments of zeros and a product of 1."""
        return first_state_of(self, params, mu_product=jnp.ones((), scalar_dtype()))

    def resumed(self, state: ScaleByNadamState, begun: frozenset[str]) -> ScaleByNadamState:
        """Return the state with the product of the momenta of as many steps as are counted."""
        if "mu_product" not in begun:
            return state

        def times_next(n: Array, product: Array) -> Array:
            return product * self._momentum_at(n + 1).astype(product.dtype)

        product = jax.lax.fori_loop(0, state.count, times_next, state.mu_product)
        return state._replace(mu_product=product)

    def _momentum_at(self, t: Array) -> Array:
        return self.b1 * (1 - 0.5 * 0.96 ** (self.schedule_decay * scalar(t)))

    def prepare(self, updates, state, params):
        """Return the advanced count and product, and the factors of m, g and v."""
        count = safe_increment(state.count)
        mu, next_mu = self._momentum_at(count), self._momentum_at(safe_increment(count))
        product = state.mu_product * mu
        of_m = next_mu / (1 - product * next_mu)
        of_g = (1 - mu) / (1 - product)
        state = state._replace(count=count, mu_product=product)
        return state, of_m, of_g, bias_correction(self.b2, count)

    def rule(self, g, m, v, p, *factors):
        """Return the update and the moments."""
        of_m, of_g, of_v = factors
        m, v = self.moments(g, m, v)
        half = (of_m / 2) * m + (of_g / 2) * g  # whose sum may be beyond the range
        return 2 * over_root(half, of_v * v, self.eps), m, v


class ScaleByAmsgradState(NamedTuple):
    """State of `scale_by_amsgrad`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    nu: NonNegativeSlot  # like params, at least float32; the second moment v
    nu_max: NonNegativeSlot  # like nu; the largest second moment h


@transform
class scale_by_amsgrad(AdamMoments):
    """Rescale updates as AMSGrad does: the first moment over the root of the largest second one.

    Update rule, from m = v = h = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v / (1 - b2^t))      (without bias_correction_nu: max(h, v))
        u = (m / (1 - b1^t)) / (sqrt(h + eps_root) + eps)

    PyTorch and Keras take the maximum before v is corrected: `scale_by_torch_amsgrad` and
    `scale_by_tf_amsgrad`.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      bias_correction_mu: whether to debias m. The paper does not.
      bias_correction_nu: whether to debias v before the maximum. The paper does not.

    Reference: Reddi et al., On the Convergence of Adam and Beyond, 2018, Algorithm 2.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    mu_dtype: DType = None
    bias_correction_mu: bool = True
    bias_correction_nu: bool = True

    State = ScaleByAmsgradState

    def prepare(self, updates, state, params):
        """Return the advanced count, and the factors of m and v."""
        state, of_m, of_v = super().prepare(updates, state, params)
        one = jnp.ones_like(of_m)
        of_m = of_m if self.bias_correction_mu else one
        return state, of_m, of_v if self.bias_correction_nu else one

    def rule(self, g, m, v, h, p, of_m, of_v):
        """Return the update, the moments and the largest second moment."""
        m, v = self.moments(g, m, v)
        h = jnp.maximum(h, of_v * v)
        return of_m * over_root(m, h, self.eps, self.eps_root), m, v, h


@transform
class scale_by_torch_amsgrad(AdamMoments):
    """Rescale updates as PyTorch's Adam with amsgrad does: the maximum comes before the correction.

    Update rule, from m = v = h = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v)
        u = (m / (1 - b1^t)) / (sqrt(h / (1 - b2^t) + eps_root) + eps)

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: `torch.optim.Adam`; Reddi et al., On the Convergence of Adam and Beyond, 2018,
    Algorithm 2.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    mu_dtype: DType = None

    State = ScaleByAmsgradState

    def rule(self, g, m, v, h, p, of_m, of_v):
        """Return the update, the moments and the largest second moment."""
        m, v = self.moments(g, m, v)
        h = jnp.maximum(h, v)
        return of_m * over_root(m, of_v * h, self.eps, self.eps_root), m, v, h


@transform
class scale_by_tf_amsgrad(scale_by_torch_amsgrad):
    """Rescale updates as Keras's Adam with amsgrad does: epsilon is added before the correction.

    Update rule, from m = v = h = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v)
        u = (sqrt(1 - b2^t) / (1 - b1^t)) m / (sqrt(h + eps_root) + eps)

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: `tf.keras.optimizers.Adam`; Reddi et al., On the Convergence of Adam and Beyond,
    2018, Algorithm 2.
    """

    eps_before_correction = True

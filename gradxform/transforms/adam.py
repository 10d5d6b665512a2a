"""Adam and its closest kin: NAdam and AMSGrad."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, first_state_of, transform
from gradxform.errors import name_of
from gradxform.numerics import (
    abs_sq,
    bias_correction,
    count_and_debias,
    safe_increment,
    scalar,
    scalar_dtype,
)
from gradxform.numerics.roots import over_root
from gradxform.types import Array, Decay, DType, NonNegative, NonNegativeSlot, Params, Scalar, Slot

__all__ = [
    "scale_by_adam",
    "scale_by_amsgrad",
    "scale_by_nadam",
    "ScaleByAdamState",
    "ScaleByAmsgradState",
    "ScaleByNadamState",
]


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

    def prepare(self, updates: None, state: Any, params: Params | None) -> tuple[Any, ...]:
        """Return the advanced count, and the factors of m and of v.

        With eps_before_correction, the first has both corrections, and the second is 1.
        """
        state, of_m, of_v = count_and_debias(state, self.b1, self.b2)
        if self.eps_before_correction:
            of_m, of_v = of_m / jnp.sqrt(of_v), jnp.ones_like(of_v)
        return state, of_m, of_v

    def moments(self, g: Array, m: Array, v: Array, *largest: Array) -> tuple[Array, ...]:
        """Return the moments and, if it is kept, the largest second one."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        return m, v, *[jnp.maximum(h, v) for h in largest]


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

    def prepare(self, updates: None, state: Any, params: Params | None) -> tuple[Any, ...]:
        """Return the advanced count, the factors of m and of v, and, with nesterov, that of g."""
        state, of_m, of_v = count_and_debias(state, self.b1, self.b2)
        if not self.nesterov:
            return state, of_m, of_v
        of_next_m = self.b1 * bias_correction(self.b1, safe_increment(state.count))
        return state, of_next_m, of_v, (1 - self.b1) * of_m

    def rule(self, g: Array, m: Array, v: Array, p: Any, *factors: Scalar) -> tuple[Array, ...]:
        """Return the update and the moments."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
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
    """Rescale updates as NAdam does: Adam with a Nesterov momentum that warms up.

    Update rule, from m = v = 0, P = 1 and t = 1, 2, ...:

        mu(t) = b1 (1 - 0.96^(schedule_decay t) / 2)
        P <- P mu(t)
        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        top = mu(t+1) m / (1 - P mu(t+1)) + (1 - mu(t)) g / (1 - P)
        u = top / (sqrt(v / (1 - b2^t)) + eps)

    This is the form of Keras. With a constant momentum use `scale_by_adam(nesterov=True)`.

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

    def init(self, params: Params) -> ScaleByNadamState:
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

    def prepare(self, updates: None, state: Any, params: Params | None) -> tuple[Any, ...]:
        """Return the advanced count and product, and the factors of m, g and v."""
        count = safe_increment(state.count)
        mu, next_mu = self._momentum_at(count), self._momentum_at(safe_increment(count))
        product = state.mu_product * mu
        of_m = next_mu / (1 - product * next_mu)
        of_g = (1 - mu) / (1 - product)
        state = state._replace(count=count, mu_product=product)
        return state, of_m, of_g, bias_correction(self.b2, count)

    def rule(self, g: Array, m: Array, v: Array, p: Any, *factors: Scalar) -> tuple[Array, ...]:
        """Return the update and the moments."""
        m, v = self.moments(g, m, v)
        of_m, of_g, of_v = factors
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

    With correct_after, as in Keras, the maximum is taken before v is corrected, and eps is added
    before the correction, as in `scale_by_tf_adam`:

        h <- max(h, v)
        u = (sqrt(1 - b2^t) / (1 - b1^t)) m / (sqrt(h + eps_root) + eps)

    PyTorch takes this maximum too, but adds eps after the correction, which correct_after with
    `eps_before_correction=False` computes:

        u = (m / (1 - b1^t)) / (sqrt(h / (1 - b2^t) + eps_root) + eps)

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      bias_correction_mu: whether to debias m. The paper does not.
      bias_correction_nu: whether to debias v before the maximum. The paper does not.
      correct_after: whether to debias v after the maximum instead. Keyword-only.
      eps_before_correction: with correct_after, whether eps is added to the root before that is
        corrected. Defaults to True with correct_after, as in Keras. Keyword-only.

    Reference: Reddi et al., On the Convergence of Adam and Beyond, 2018, Algorithm 2.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    mu_dtype: DType = None
    bias_correction_mu: bool = True
    bias_correction_nu: bool = True
    correct_after: bool = field(default=False, kw_only=True)
    eps_before_correction: bool | None = field(default=None, kw_only=True)

    State = ScaleByAmsgradState

    def __post_init__(self) -> None:
        if self.correct_after and not self.bias_correction_nu:
            raise ValueError(
                f"{name_of(self)}: correct_after=True does nothing without bias_correction_nu."
            )
        if self.eps_before_correction and not self.correct_after:
            raise ValueError(
                f"{name_of(self)}: eps_before_correction=True needs correct_after=True: otherwise "
                "the largest second moment is corrected before there is a root."
            )

    def prepare(self, updates: None, state: Any, params: Params | None) -> tuple[Any, ...]:
        """Return the advanced count and the factors that debias m, v and, if any, h."""
        count = safe_increment(state.count)
        one = jnp.ones((), scalar_dtype())
        of_m = bias_correction(self.b1, count) if self.bias_correction_mu else one
        of_v = bias_correction(self.b2, count) if self.bias_correction_nu else one
        state = state._replace(count=count)
        if self.correct_after and self.eps_before_correction is False:
            return state, of_m, one, of_v
        if self.correct_after:
            of_m, of_v = of_m * jnp.sqrt(1 / of_v), one
        return state, of_m, of_v

    def rule(
        self, g: Array, m: Array, v: Array, h: Array, p: Any, *factors: Scalar
    ) -> tuple[Array, ...]:
        """Return the update, the moments and the largest second moment."""
        m, v = self.moments(g, m, v)
        of_m, of_v, *of_h = factors
        h = jnp.maximum(h, of_v * v)
        corrected = of_h[0] * h if of_h else h
        return of_m * over_root(m, corrected, self.eps, self.eps_root), m, v, h

"""Rules that compare the signs of the gradient and its moving average."""

import abc
from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.leaves.row_sparse import RowSparse
from gradxform.numerics import count_and_debias, safe_increment, value_at
from gradxform.numerics.overflow import saturated
from gradxform.numerics.roots import over_root
from gradxform.slots import zeros_like
from gradxform.transforms.adam import ScaleByAdamState
from gradxform.types import (
    Array,
    Decay,
    DType,
    Finite,
    NonNegative,
    NonNegativeSlot,
    Params,
    Positive,
    Scalar,
    Schedule,
    Slot,
)


class ScaleByAgreementState(NamedTuple):
    """State of the rules that compare a gradient with its moving average."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the moving average m


class _Rule(ArrayRule, abc.ABC):
    """The base of the rules that compare signs: an average, and one factor per entry."""

    b1: float
    mu_dtype: DType
    sign_decay: Schedule | None = None  # fades the signs out; some rules have it as a field

    State = ScaleByAgreementState
    locality = "entry"
    averages_of = (("mu", "g"),)

    @abc.abstractmethod
    def factor(self, agreement: Array) -> Array:
        """Return the factor for an agreement: 1 for equal signs, -1 for opposite ones, else 0."""

    def prepare(
        self, updates: None, state: ScaleByAgreementState, params: Params | None
    ) -> tuple[Any, ...]:
        """Return the advanced count and, if there is a schedule, its value d."""
        advanced = state._replace(count=safe_increment(state.count))
        if self.sign_decay is None:
            return (advanced,)
        return advanced, value_at(self.sign_decay, state.count)

    def rule(
        self, g: Array, m: Array, p: Array | None, d: Scalar | None = None
    ) -> tuple[Array, Array]:
        """Return the scaled gradient and the average."""
        m = self.b1 * m + (1 - self.b1) * g
        agreement = jnp.sign(g) * jnp.sign(m)
        if d is not None:
            agreement = d * agreement
        return self.factor(agreement) * g, m


@transform
class scale_by_add_sign(_Rule):
    """Rescale updates as AddSign does: by a sum, larger where gradient and average agree in sign.

    Update rule, from m = 0 and with n = 0, 1, ... the number of earlier updates:

        m <- b1 m + (1 - b1) g
        u = (alpha + d(n) sign(g) sign(m)) g          (d = 1 without sign_decay)

    Args:
      alpha: the factor where the gradient or its average is 0, finite.
      b1: the decay of the average, in [0, 1).
      sign_decay: the schedule d, such as `linear_sign_decay`, which falls from 1 to 0. Defaults to
        none.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
        Keyword-only.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.4.
    """

    alpha: Finite = 1.0
    b1: Decay = 0.9
    sign_decay: Schedule | None = None
    mu_dtype: DType = field(default=None, kw_only=True)

    def factor(self, agreement: Array) -> Array:
        """Return the sum."""
        return self.alpha + agreement


@transform
class scale_by_power_sign(_Rule):
    """Rescale updates as PowerSign does: by a power, larger where gradient and average agree.

    Update rule, from m = 0 and with n = 0, 1, ... the number of earlier updates:

        m <- b1 m + (1 - b1) g
        u = base^(d(n) sign(g) sign(m)) g             (d = 1 without sign_decay)

    Args:
      base: the factor of full agreement, greater than 0 and finite; the paper uses e.
      b1: the decay of the average, in [0, 1).
      sign_decay: the schedule d, such as `linear_sign_decay`, which falls from 1 to 0. Defaults to
        none.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
        Keyword-only.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.4.
    """

    base: Positive = 2.718281828459045
    b1: Decay = 0.9
    sign_decay: Schedule | None = None
    mu_dtype: DType = field(default=None, kw_only=True)

    def factor(self, agreement: Array) -> Array:
        """Return the power."""
        return jnp.power(jnp.asarray(self.base, agreement.dtype), agreement)


@transform
class scale_by_sign_agreement(_Rule):
    """Rescale updates as NeuralOptimizer1 does: shrink entries of another sign than their average.

    Update rule, from m = 0:

        m <- b1 m + (1 - b1) g
        u = g where sign(g) = sign(m), else decrease_factor g

    Under `sparse_semantics(..., "raw")`, m decays in every row and every slice of a row is added to
    it, as in RETURNN. Each slice is then compared with that m.

    Args:
      b1: the decay of the average, in [0, 1).
      decrease_factor: the factor for entries of another sign, finite.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
        Keyword-only.

    Reference: RETURNN, NeuralOptimizer1; after Bello et al., Neural Optimizer Search with
    Reinforcement Learning, 2017.
    """

    b1: Decay = 0.9
    decrease_factor: Finite = 0.1
    mu_dtype: DType = field(default=None, kw_only=True)

    def factor(self, agreement: Array) -> Array:
        """Return 1 or the decrease; an entry whose gradient is 0 stays 0 with either."""
        return jnp.where(agreement > 0, jnp.ones_like(agreement), self.decrease_factor)

    def slice_rule(self, g: RowSparse, m: Array, p: Array | None) -> tuple[Array, Array]:
        """Return the scaled slices and the average."""
        m = _add_slices(self.b1, m, g, g.values)
        return self.factor(jnp.sign(g.values) * jnp.sign(g.take(m))) * g.values, m


def _add_slices(decay: Scalar, average: Array, g: RowSparse, values: Array) -> Array:
    """Let the whole average decay, and add `values`, one slice for each of `g`, to their rows."""
    return g.with_values((1 - decay) * values).add_to(decay * average)


class ScaleByGradVarianceState(NamedTuple):
    """State of `scale_by_grad_variance`."""

    mu: Slot  # like params, at least float32; the moving average m
    nu: NonNegativeSlot  # like params, at least float32; the moving average v of squared deviations


@transform
class scale_by_grad_variance(ArrayRule):
    """Rescale updates as GradVarianceScaled does: shrink entries unusually far from their average.

    Update rule, from m = v = 0:

        m <- b1 m + (1 - b1) g
        w = (g - m)^2
        v <- b2 v + (1 - b2) w
        u = g min(v / (w + eps), 1)

    The averages are not debiased: the first steps are about 1 - b2 of the gradient.

    Under `sparse_semantics(..., "raw")`, m and v decay in every row and every slice of a row is
    added to them, as in RETURNN. The w of a slice is its squared distance from that m.

    Args:
      b1: the decay of the average, in [0, 1).
      b2: the decay of the average of squared deviations, in [0, 1).
      eps: added to the squared deviation, at least 0; an entry without deviation is not scaled.

    Reference: RETURNN, GradVarianceScaled.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8

    State = ScaleByGradVarianceState
    locality = "entry"

    def init(self, params):
        """Return averages of zeros."""
        return ScaleByGradVarianceState(mu=zeros_like(params), nu=zeros_like(params))

    def rule(self, g, m, v, p):
        """Return the scaled gradient and the averages."""
        m = self.b1 * m + (1 - self.b1) * g
        w = saturated(jnp.square(g - m))
        v = self.b2 * v + (1 - self.b2) * w
        return self._scale(g, w, v), m, v

    def slice_rule(
        self, g: RowSparse, m: Array, v: Array, p: Array | None
    ) -> tuple[Array, Array, Array]:
        """Return the scaled slices and the averages."""
        m = _add_slices(self.b1, m, g, g.values)
        w = saturated(jnp.square(g.values - g.take(m)))
        v = _add_slices(self.b2, v, g, w)
        return self._scale(g.values, w, g.take(v)), m, v

    def _scale(self, g: Array, w: Array, v: Array) -> Array:
        """Return g min(v / (w + eps), 1), and g where w + eps is 0."""
        divisor = w + self.eps
        ratio = jnp.where(divisor > 0, v / jnp.where(divisor > 0, divisor, 1), 1)
        return g * jnp.minimum(ratio, 1)


@transform
class scale_by_grams(ArrayRule):
    """Rescale updates as Grams does: the size of Adam's step, in the direction of the gradient.

    Update rule, from m = v = 0 and with t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        u = sign(g) |m / (1 - b1^t)| / (sqrt(v / (1 - b2^t) + eps_root) + eps)

    An entry never moves against its gradient, which a momentum does after the gradient has turned.
    An entry without a gradient stays. The state is that of `scale_by_adam`, and learning rates of
    Adam will do.

    Args:
      b1: the decay of the average of gradients, in [0, 1).
      b2: the decay of the average of squares, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of m. Defaults to that of the parameter, but float32 for a 16-bit one.

    Reference: Cao et al., Grams: Gradient Descent with Adaptive Momentum Scaling, 2024,
    Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    mu_dtype: DType = None

    State = ScaleByAdamState
    locality = "entry"
    averages_of = (("mu", "g"), ("nu", "|g|^2"))

    def prepare(self, updates, state, params):
        """Return the advanced count, and the factors that debias m and v."""
        return count_and_debias(state, self.b1, self.b2)

    def rule(self, g, m, v, p, of_m, of_v):
        """Return the update and the moments."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * g**2
        size = of_m * over_root(jnp.abs(m), of_v * v, self.eps, self.eps_root)
        return jnp.sign(g) * size, m, v

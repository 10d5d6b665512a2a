"""Rules that assign parameters a new value: proximal steps, dual averaging, FTRL.

They emit `new - p`, the whole step, learning rate included, and must be the last part of a chain.
An entry whose new value is 0 is then exactly 0 after `apply_updates`: p + (0 - p). This needs
gradients of a dtype that can represent the parameters, because the update has that dtype.
"""

import abc
from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.errors import name_of, require_finite, require_positive
from gradxform.numerics import cast, is_zero, safe_increment, scalar, value_at
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import root
from gradxform.slots import full_like, zero_count, zeros_like
from gradxform.types import (
    Array,
    Finite,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Params,
    Positive,
    Scalar,
    ScalarOrSchedule,
    Slot,
)


class _Rule(ArrayRule, abc.ABC):
    """The base of these rules: a count, and a learning rate that each uses in its own place."""

    learning_rate: ScalarOrSchedule

    locality = "entry"
    needs_params = True

    def prepare(self, updates: None, state: Any, params: Params) -> tuple[Any, ...]:
        """Return the advanced count and the learning rate of this step."""
        rate = value_at(self.learning_rate, state.count)
        return state._replace(count=safe_increment(state.count)), rate


def _shrink(x: Array, threshold: Scalar) -> Array:
    """Move x towards 0 by the threshold, and stop there: soft thresholding."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


def _minimizer(w: Array, step: Scalar, l1: Scalar, l2: Scalar) -> Array:
    """Return the minimizer of |x - w|^2 / 2 + step (l1 |x|_1 + l2 |x|^2 / 2)."""
    if not is_zero(l1):
        w = _shrink(w, step * l1)
    return w / (1 + step * l2)


class ProximalGradientState(NamedTuple):
    """State of `step_by_proximal_gradient`."""

    count: Array  # int32 scalar; the number of updates so far


@transform
class step_by_proximal_gradient(_Rule):
    """Emit the whole step of proximal gradient descent: down the gradient, then towards 0.

    Update rule, with n = 0, 1, ... the number of earlier updates and lr = learning_rate(n):

        w = p - lr g
        u = sign(w) max(|w| - lr l1, 0) / (1 + lr l2) - p

    Args:
      learning_rate: at least 0, or a schedule.
      l1: the weight of the absolute values, at least 0; makes exact zeros.
      l2: the weight of half the squares, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Duchi and Singer, Efficient Online and Batch Learning Using Forward Backward
    Splitting, 2009, equations (2), (3) and (22).
    """

    learning_rate: NonNegativeOrSchedule
    l1: NonNegative = 0.0
    l2: NonNegative = 0.0

    State = ProximalGradientState

    def rule(self, g, p, rate):
        """Return the step."""
        w = p - rate * g
        return _minimizer(w, rate, self.l1, self.l2) - p


class ProximalAdagradState(NamedTuple):
    """State of `step_by_proximal_adagrad`."""

    count: Array  # int32 scalar; the number of updates so far
    sum_of_squares: NonNegativeSlot  # like params, at least float32; the sum s


@transform
class step_by_proximal_adagrad(_Rule):
    """Emit the whole step of proximal Adagrad: Adagrad's step, then towards 0.

    Update rule, from s = initial_accumulator_value and with n = 0, 1, ... the number of earlier
    updates:

        s <- s + g^2
        e = learning_rate(n) / sqrt(s)
        w = p - e g
        u = sign(w) max(|w| - e l1, 0) / (1 + e l2) - p

    Args:
      learning_rate: at least 0, or a schedule.
      initial_accumulator_value: the sum's first value, greater than 0.
      l1: the weight of the absolute values, at least 0; makes exact zeros.
      l2: the weight of half the squares, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, 2011, equations (4) and (24), composite mirror descent.
    """

    learning_rate: NonNegativeOrSchedule
    initial_accumulator_value: Positive = 0.1
    l1: NonNegative = 0.0
    l2: NonNegative = 0.0

    State = ProximalAdagradState

    def init(self, params):
        """Return a sum of `initial_accumulator_value`."""
        s = full_like(params, self.initial_accumulator_value)
        return ProximalAdagradState(count=zero_count(), sum_of_squares=s)

    def rule(self, g, s, p, rate):
        """Return the step and the sum."""
        s = s + jnp.square(g)
        e = rate / root(s)
        w = p - e * g
        return _minimizer(w, e, self.l1, self.l2) - p, s


class AdagradDAState(NamedTuple):
    """State of `step_by_dual_averaging`."""

    count: Array  # int32 scalar; the number of updates so far
    gradient_sum: Slot  # like params, at least float32; the sum G of gradients
    sum_of_squares: NonNegativeSlot  # like params, at least float32; the sum Q of their squares


@transform
class step_by_dual_averaging(_Rule):
    """Emit the whole step of dual averaging: to the minimizer of all gradients so far.

    Update rule, from G = 0, Q = initial_accumulator_value and t = 1, 2, ...:

        G <- G + g
        Q <- Q + g^2
        u = -lr sign(G) max(|G| - l1 t, 0) / (l2 t lr + sqrt(Q)) - p

    with lr = learning_rate(t - 1). The first update forgets the initial parameters: start at 0, or
    expect a jump.

    Args:
      learning_rate: at least 0, or a schedule.
      initial_accumulator_value: the first sum of squares, greater than 0.
      l1: the weight of the absolute values, at least 0; makes exact zeros.
      l2: the weight of half the squares, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, 2011, equations (3) and (19), primal-dual subgradient method; Xiao, Dual Averaging
    Methods for Regularized Stochastic Learning and Online Optimization, 2010.
    """

    learning_rate: NonNegativeOrSchedule
    initial_accumulator_value: Positive = 0.1
    l1: NonNegative = 0.0
    l2: NonNegative = 0.0

    State = AdagradDAState
    undoes_moves = True

    def init(self, params):
        """Return sums of 0 and of `initial_accumulator_value`."""
        return AdagradDAState(
            count=zero_count(),
            gradient_sum=zeros_like(params),
            sum_of_squares=full_like(params, self.initial_accumulator_value),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count, the learning rate, l1 t, and l2 t lr."""
        state, rate = super().prepare(updates, state, params)
        t = scalar(state.count)
        return state, rate, self.l1 * t, (self.l2 * t) * rate

    def rule(self, g, G, Q, p, rate, l1_t, l2_t_rate):
        """Return the step and the sums."""
        G, Q = G + g, Q + jnp.square(g)
        shrunk = G if is_zero(self.l1) else _shrink(G, l1_t)
        return -rate * shrunk / (l2_t_rate + root(Q)) - p, G, Q


class FtrlState(NamedTuple):
    """State of `step_by_ftrl`."""

    count: Array  # int32 scalar; the number of updates so far
    accumulator: NonNegativeSlot  # like params, at least float32; the sum n of squared gradients
    linear: Slot  # like params, at least float32; the linear term z


@transform
class step_by_ftrl(_Rule):
    """Emit the whole step of FTRL: follow the regularized leader, with a step size per entry.

    Update rule, from n = initial_accumulator_value, z = 0, with k = 0, 1, ... the number of earlier
    updates, lr = learning_rate(k) and q = -learning_rate_power:

        n' = n + g^2
        z <- z + g + 2 l2_shrinkage p - (n'^q - n^q) p / lr
        n <- n'
        u = (l1 sign(z) - z) / ((n^q + beta) / lr + 2 l2) - p      (u = -p where |z| <= l1)

    z starts at 0 whatever the parameter is: an entry whose first gradient is 0 becomes 0.

    Args:
      learning_rate: greater than 0, or a schedule of positive numbers.
      learning_rate_power: at most 0; -0.5 gives Adagrad's rate, 0 a fixed one.
      initial_accumulator_value: the first sum of squares, at least 0.
      l1: the weight of the absolute values, at least 0; makes exact zeros.
      l2: the weight of the squares, at least 0.
      l2_shrinkage: the weight of the squares that only the gradient sees, at least 0.
      beta: added to the root of the sum, at least 0. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: McMahan et al., Ad Click Prediction: a View from the Trenches, 2013, Algorithm 1
    (without the paper's factor of 1/2 on l2); l2_shrinkage and learning_rate_power: TensorFlow.
    """

    learning_rate: ScalarOrSchedule
    learning_rate_power: Finite = -0.5
    initial_accumulator_value: NonNegative = 0.1
    l1: NonNegative = 0.0
    l2: NonNegative = 0.0
    l2_shrinkage: NonNegative = 0.0
    beta: NonNegative = field(default=0.0, kw_only=True)

    State = FtrlState
    undoes_moves = True

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate")
        if isinstance(self.learning_rate_power, float) and self.learning_rate_power > 0:
            raise ValueError(
                f"{name_of(self)}: learning_rate_power must be at most 0, got "
                f"{self.learning_rate_power!r}."
            )
        require_finite(self, "learning_rate")

    def init(self, params):
        """Return a sum of `initial_accumulator_value` and a linear term of 0."""
        return FtrlState(
            count=zero_count(),
            accumulator=full_like(params, self.initial_accumulator_value),
            linear=zeros_like(params),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count and 1 / lr."""
        state, rate = super().prepare(updates, state, params)
        return state, 1 / rate

    def _power(self, n: Array) -> Array:
        """Return n^q."""
        power = self.learning_rate_power
        if isinstance(power, float) and power == -0.5:
            return root(n)
        # The derivative of a root is infinite at 0.
        is_empty, at_zero = n == 0, jnp.where(power == 0, 1, 0)
        return jnp.where(is_empty, cast(at_zero, n.dtype), jnp.where(is_empty, 1, n) ** -power)

    def rule(self, g, n, z, p, inverse_rate):
        """Return the step, the sum and the linear term."""
        g = bounded_square(g)
        new_n = saturated(n + jnp.square(g))
        power = self._power(new_n)
        if not is_zero(self.l2_shrinkage):
            g = g + 2 * self.l2_shrinkage * p
        z = z + g - ((power - self._power(n)) * inverse_rate) * p
        divisor = (power + self.beta) * inverse_rate + 2 * self.l2
        # The divisor is 0 for an entry without any gradient so far: it becomes 0 as well.
        moves = (jnp.abs(z) > self.l1) & (divisor > 0)
        new_p = jnp.where(moves, (self.l1 * jnp.sign(z) - z) / jnp.where(moves, divisor, 1), 0)
        return new_p - p, new_n, z

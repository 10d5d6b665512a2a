"""Amos: steps and a weight decay whose sizes follow from the scale that weights should have."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, first_state_of, transform
from gradxform.errors import name_of
from gradxform.leaves import dtype_of
from gradxform.numerics import at_least_float32, count_and_debias, over, value_at
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Positive,
    Scalar,
    Size,
)


class StepByAmosState(NamedTuple):
    """State of `step_by_amos`."""

    count: Array  # int32 scalar; the number of updates so far
    nu: NonNegativeSlot  # a number per parameter, or along some axes; the average v of squares
    decay: NonNegativeSlot  # like `nu`; how far the decay has come, b


@transform
class step_by_amos(ArrayRule):
    """Emit the whole step of Amos, with its weight decay towards a scale of the parameters.

    Update rule, with G the mean of g^2 over an array, or over its axes `axis`, r = learning_rate
    after the earlier updates, and eta the scale of the parameters, from v = b = 0 and t = 1, 2,
    ...:

        v <- beta v + (1 - beta) G
        k = (1 - beta^t) / (v + eps)
        q = r^2 k G / sqrt(1 + c_coef sqrt(r) b)
        u = -(r eta sqrt(k) g + q / 2 p) / (1 + d_coef sqrt(r eta) b)
        b <- b (1 + q) + q

    The step and the decay fall with b, so that a schedule is not needed beside a warm-up. The
    learning rate is the relative change of a parameter in a step: about 1 / sqrt(the number of
    steps of an epoch).

    Args:
      learning_rate: at least 0, or a schedule.
      beta: the decay of the average of squares, in [0, 1).
      eta: the root mean square that parameters should come to have, greater than 0. By default
        0.5 for scalars and vectors, sqrt(2 / inputs) for matrices and sqrt(1 / inputs) for others,
        with the inputs on the last axis but one; `partition` gives each group its own.
      c_coef: how fast the decay falls, at least 0.
      d_coef: how fast the step falls, at least 0.
      eps: added to v, at least 0; with 0, an array that never had a gradient stays.
      axis: the axes over which squares are averaged; 0 gives each output of a dense layer of Flax
        its own numbers. Defaults to all axes.

    Raises:
      ValueError: at init, if an array does not have the axes; at update, if no parameters are
        given.

    Reference: Tian and Parikh, Amos: An Adam-style Optimizer with Adaptive Weight Decay towards
    Model-Oriented Scale, 2022, Algorithm 1.
    """

    learning_rate: NonNegativeOrSchedule
    beta: Decay = 0.999
    eta: Positive | None = None
    c_coef: NonNegative = 0.25
    d_coef: NonNegative = 0.25
    eps: NonNegative = 1e-18
    axis: Size | tuple[int, ...] | None = None

    State = StepByAmosState
    locality = "array"
    sees_pieces = True
    needs_params = True

    def init(self, params):
        """Return averages and decays of 0."""

        def zeros(p: Array) -> Array:
            axes = self._axes(len(p.shape))
            shape = () if axes is None else [1 if i in axes else n for i, n in enumerate(p.shape)]
            return jnp.zeros(shape, at_least_float32(dtype_of(p)))

        nu, decay = (jax.tree.map(zeros, params) for _ in range(2))
        return first_state_of(self, params, nu=nu, decay=decay)

    def _axes(self, ndim: int) -> tuple[int, ...] | None:
        if self.axis is None:
            return None
        axes = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        if not all(-ndim <= i < ndim for i in axes):
            raise ValueError(
                f"{name_of(self)}: an array of {ndim} dimensions does not have the axes {axes}; "
                "leave it out with masked(...), or set other axes."
            )
        return tuple(i % ndim for i in axes)

    def prepare(self, updates, state, params):
        """Return the advanced count, the learning rate, and the factor that debiases v."""
        rate = value_at(self.learning_rate, state.count)
        state, of_v = count_and_debias(state, self.beta)
        return state, rate, of_v

    def rule(self, g, v, b, p, r, of_v):
        """Return the step, the average and the decay."""
        g = bounded_square(g)
        axes, shape = self._axes(g.ndim), engine.whole_shape(g)
        n = 1
        for i in range(g.ndim) if axes is None else axes:
            n *= shape[i]
        mean = engine.array_sums((g * g / max(n, 1), axes), keepdims=axes is not None)
        v = self.beta * v + (1 - self.beta) * mean
        below = of_v * (v + self.eps)
        size = r * self._scale_of(shape)
        q = r * r * over(mean, below, self.eps) / jnp.sqrt(1 + self.c_coef * jnp.sqrt(r) * b)
        step = size * over_root(g, below, 0.0) + (q / 2) * p
        return -step / (1 + self.d_coef * jnp.sqrt(size) * b), v, b * (1 + q) + q

    def _scale_of(self, shape: tuple[int, ...]) -> Scalar:
        if self.eta is not None:
            return self.eta
        if len(shape) < 2:
            return 0.5
        return ((2 if len(shape) == 2 else 1) / max(shape[-2], 1)) ** 0.5

"""Momentum: decaying sums and moving averages of the gradient."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform.base import ArrayRule, transform
from gradxform.numerics import bias_correction, safe_increment, scalar_dtype, times
from gradxform.slots import zero_count, zeros_like
from gradxform.types import Array, Decay, DType, Slot, UnitInterval


class TraceState(NamedTuple):
    """State of `trace`."""

    trace: Slot  # like params, at least float32; the accumulated gradient m


@transform
class trace(ArrayRule):
    """Accumulate a decaying sum of the gradients: heavy-ball momentum.

    Update rule, from m = 0:

        m <- g + decay m
        u = m                      (nesterov: u = g + decay m)

    Args:
      decay: the share of the sum that is kept, in [0, 1].
      nesterov: whether to look one step ahead.
      accumulator_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: Polyak, Some methods of speeding up the convergence of iteration methods, 1964;
    Sutskever et al., On the importance of initialization and momentum in deep learning, 2013,
    equations (3-4).
    """

    decay: UnitInterval
    nesterov: bool = False
    accumulator_dtype: DType = None

    State = TraceState
    locality = "entry"
    handles_complex = True

    def init(self, params):
        """Return a sum of zeros."""
        return TraceState(trace=zeros_like(params, self.accumulator_dtype))

    def rule(self, g, m, p):
        """Return the momentum and the sum."""
        m = lax.add(g, times(self.decay, m))
        u = m
        if self.nesterov:
            u = lax.add(g, times(self.decay, m))
        return u, m


class EmaState(NamedTuple):
    """State of `ema`."""

    count: Array  # int32 scalar; the number of gradients in the average
    ema: Slot  # like params, at least float32; the moving average m


@transform
class ema(ArrayRule):
    """Replace the updates by their exponential moving average.

    Update rule, from m = 0 and t = 1, 2, ...:

        m <- decay m + (1 - decay) g
        u = m / (1 - decay^t)      (without debias: u = m)

    It averages updates. For an average of the parameters, to evaluate and save in their place, wrap
    the optimizer in `moving_average`.

    Args:
      decay: the weight of the old average, in [0, 1).
      debias: whether to correct for the average having started at 0.
      accumulator_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
    """

    decay: Decay
    debias: bool = True
    accumulator_dtype: DType = None

    State = EmaState
    locality = "entry"
    averages_of = (("ema", "g"),)
    handles_complex = True

    def init(self, params):
        """Return an average of zeros."""
        average = zeros_like(params, self.accumulator_dtype)
        return EmaState(count=zero_count(), ema=average)

    def prepare(self, updates, state, params):
        """Return the advanced count and the factor of m that debiases it, or 1."""
        count = safe_increment(state.count)
        of_m = jnp.ones((), scalar_dtype())
        if self.debias:
            of_m = bias_correction(self.decay, count)
        return state._replace(count=count), of_m

    def rule(self, g, m, p, of_m):
        """Return the debiased average and the average."""
        m = self.decay * m + (1 - self.decay) * g
        return of_m * m, m

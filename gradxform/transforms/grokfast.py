"""Grokfast: gradients whose slow part is amplified, by a moving average or the mean of a window."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.base import ArrayRule, transform
from gradxform.errors import require_at_least
from gradxform.numerics import cast, safe_increment, scalar, scalar_dtype
from gradxform.slots import zero_count, zeros_like
from gradxform.types import Array, Decay, NonNegative, NonNegativeInt, Size, Slot


class GrokfastEmaState(NamedTuple):
    """State of `grokfast_ema`."""

    count: Array  # int32 scalar; the number of updates so far
    slow: Slot  # like params, at least float32; the moving average s of the gradient


@transform
class grokfast_ema(ArrayRule):
    """Amplify the slow part of the gradient: add a multiple of its moving average.

    Update rule, from s = the first g:

        s <- alpha s + (1 - alpha) g
        u = g + lamb s

    Put it before any optimizer. It makes a network that has memorized its data generalize many
    times sooner; the authors use a strong weight decay with it. The update of a steady gradient
    is 1 + lamb times as large.

    Args:
      alpha: the decay of the average, in [0, 1).
      lamb: the weight of the average, at least 0.
      start: the number of updates that are left as they are; s begins after them.

    Reference: Lee et al., Grokfast: Accelerated Grokking by Amplifying Slow Gradients, 2024,
    with a moving average (EMA).
    """

    alpha: Decay = 0.98
    lamb: NonNegative = 2.0
    start: NonNegativeInt = 0

    State = GrokfastEmaState
    locality = "entry"
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count, whether s begins anew, and the weight of s."""
        begun = state.count >= self.start
        weight = jnp.where(begun, scalar(self.lamb), 0)
        advanced = state._replace(count=safe_increment(state.count))
        return advanced, state.count <= self.start, weight

    def rule(self, g, s, p, is_first, weight):
        """Return the amplified gradient and the average."""
        s = jnp.where(is_first, g, self.alpha * s + (1 - self.alpha) * g)
        return g + weight * s, s


class GrokfastMaState(NamedTuple):
    """State of `grokfast_ma`."""

    count: Array  # int32 scalar; the number of updates so far
    window: Slot  # window_size arrays per parameter, at least float32; the last gradients


@transform
class grokfast_ma(ArrayRule):
    """Amplify the slow part of the gradient: add a multiple of the mean of the last gradients.

    Update rule, with w = window_size and t = 1, 2, ...:

        u = g + lamb (mean of the last w gradients, this one among them)      where t >= w
        u = g                                                                 before

    Put it before any optimizer. `grokfast_ema` does about the same with one array per parameter;
    this remembers w of them.

    Args:
      window_size: the number of gradients, at least 1.
      lamb: the weight of the mean, at least 0.
      warmup: whether to wait until the window is full. If not, the mean is of the gradients so far.

    Reference: Lee et al., Grokfast: Accelerated Grokking by Amplifying Slow Gradients, 2024,
    with a moving average of a window (MA).
    """

    window_size: Size = 100
    lamb: NonNegative = 5.0
    warmup: bool = True

    State = GrokfastMaState
    # By entry; but an array has other axes than its window, which the engine could not flatten.
    locality = "array"
    handles_complex = True

    def __post_init__(self) -> None:
        require_at_least(self, 1, "window_size")

    def init(self, params):
        """Return windows of zeros."""

        def windows(x: Array) -> Array:
            return jnp.broadcast_to(x, (self.window_size, *x.shape))

        return GrokfastMaState(zero_count(), jax.tree.map(windows, zeros_like(params)))

    def prepare(self, updates, state, params):
        """Return the advanced count, the place of this gradient, and the weight of each one."""
        count = safe_increment(state.count)
        weight = scalar(self.lamb) / cast(jnp.minimum(count, self.window_size), scalar_dtype())
        if self.warmup:
            weight = jnp.where(count >= self.window_size, weight, 0)
        return state._replace(count=count), state.count % self.window_size, weight

    def rule(self, g, window, p, place, weight):
        """Return the amplified gradient and the window."""
        window = lax.dynamic_update_index_in_dim(window, g, place, 0)
        return g + jnp.sum(weight * window, axis=0), window

"""The learning rates of RETURNN's `dynamic_learning_rate`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradxform.numerics import scalar
from gradxform.schedules.schedule import Schedule, as_count, number_of_field
from gradxform.types import Array, Finite, Positive, PositiveInt
from gradxform.values.fields import value


@value
class cyclic_exponential_decay(Schedule):
    """Decay in cycles; each begins anew.

    Value: y(n) = init_value decay^(n mod interval).

    Args:
      init_value: the value at the start of every cycle.
      interval: the length of a cycle, at least 1.
      decay: the factor of a step, greater than 0.

    Reference: `dynamic_learning_rate` of RETURNN.
    """

    init_value: Finite
    interval: PositiveInt
    decay: Positive

    def __call__(self, count: Any) -> Array:
        """Return the value in its cycle."""
        in_cycle = scalar(as_count(count) % jnp.asarray(self.interval, as_count(count).dtype))
        return number_of_field(self.init_value) * scalar(self.decay) ** in_cycle


@value
class returnn_rate(Schedule):
    """Call a function as RETURNN calls `dynamic_learning_rate`.

    Value: y(n) = function(network=None, global_train_step=n, learning_rate=learning_rate).

    Args:
      function: takes these arguments, and any others, by name.
      learning_rate: the learning rate of the config.
    """

    function: Callable[..., Any]
    learning_rate: Finite

    def __call__(self, count: Any) -> Array:
        """Return the function's result."""
        return scalar(
            self.function(network=None, global_train_step=count, learning_rate=self.learning_rate)
        )

"""Learning rates as Keras 3 reads them."""

from typing import Any

import jax.numpy as jnp

from gradxform.numerics import scalar
from gradxform.schedules.basic import schedule_of
from gradxform.schedules.schedule import Schedule, as_count
from gradxform.types import Array, PositiveInt
from gradxform.values.fields import value


@value
class last_of_every(Schedule):
    """Read a schedule at the last of the k calls that make one step.

    Value: y(n) = schedule(k n + k - 1).

    Args:
      schedule: a schedule, or a plain function of the count.
      k: the number of calls, at least 1.
    """

    schedule: Any
    k: PositiveInt

    def __post_init__(self):
        object.__setattr__(self, "schedule", schedule_of(self, "schedule", self.schedule))

    def __call__(self, count: Any) -> Array:
        """Return the value at the last call of a step."""
        return scalar(self.schedule(as_count(count) * self.k + (self.k - 1)))


@value
class at_most_inverse_sqrt(Schedule):
    """Bound a schedule by the inverse root of the number of steps.

    Value: y(n) = min(schedule(n), 1 / sqrt(n + 1)).

    Args:
      schedule: a schedule, a plain function of the count, or a number.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, section 8.
    """

    schedule: Any

    def __post_init__(self):
        object.__setattr__(self, "schedule", schedule_of(self, "schedule", self.schedule))

    def __call__(self, count: Any) -> Array:
        """Return the smaller of both."""
        return jnp.minimum(scalar(self.schedule(count)), 1 / jnp.sqrt(scalar(count) + 1))

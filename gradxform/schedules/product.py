"""The product of several schedules."""

import functools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from gradxform.numerics import scalar
from gradxform.schedules.basic import schedule_of
from gradxform.schedules.schedule import Schedule
from gradxform.types import Array
from gradxform.values.fields import value


@value
class product_schedule(Schedule):
    """Multiply the values of several schedules.

    Value: y(n) = f_1(n) f_2(n) ...

    Args:
      *factors: at least one schedule, plain function of the count, or number.
    """

    factors: tuple[Any, ...] = ()

    variadic = "factors"

    if TYPE_CHECKING:

        def __init__(self, *factors: Any): ...

    def __post_init__(self):
        if not self.factors:
            raise ValueError("product_schedule: needs at least one factor.")
        factors = tuple(schedule_of(self, f"factor {i}", x) for i, x in enumerate(self.factors))
        object.__setattr__(self, "factors", factors)

    def __call__(self, count: Any) -> Array:
        """Return the product."""
        return functools.reduce(jnp.multiply, (scalar(f(count)) for f in self.factors))

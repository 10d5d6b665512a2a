"""Accumulating updates, to apply several at once."""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.types import Array, PositiveInt, Slot

__all__ = [
    "apply_every",
    "ApplyEvery",
]


class ApplyEvery(NamedTuple):
    """State of `apply_every`."""

    count: Array  # int32 scalar; how many updates are in the sum, 0 after an emission
    grad_acc: Slot  # like params, at least float32; the sum a, ignored where count is 0


@transform
class apply_every(ArrayRule):
    """Add up the updates, and emit the sum at every k-th update.

    Update rule, with n = 1, 2, ... the number of the update:

        a <- a + g      (a <- g after an emission)
        u = a           if k divides n, else 0

    An Adam before it in the chain sees every gradient and updates its moments at every step; only
    the application of its steps is postponed. To show an optimizer nothing but the mean of several
    gradients, use `MultiSteps`.

    Args:
      k: the number of updates to add up, at least 1.
    """

    k: PositiveInt = 1

    State = ApplyEvery
    step_fields = ()  # its count is of the updates in the sum
    zeros_unless = "count"
    locality = "entry"
    handles_complex = True

    @property
    def keeps_updates(self) -> bool:
        """Whether each update is a sum of its own."""
        return self.k == 1

    def prepare(self, updates, state, params):
        """Return the advanced count, and whether this update is the first and the last of a sum."""
        index = state.count % self.k
        is_last = index == self.k - 1
        return state._replace(count=jnp.where(is_last, 0, index + 1)), index == 0, is_last

    def rule(self, g, a, p, is_first, is_last):
        """Return the sum or zeros, and the sum."""
        # Selected, not multiplied by 0, which would keep a NaN.
        a = g + jnp.where(is_first, jnp.zeros_like(a), a)
        return jnp.where(is_last, a, jnp.zeros_like(a)), a

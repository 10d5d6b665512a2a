"""Rules that keep updates or parameters in a set: no NaNs, no negative parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.types import Slot

__all__ = [
    "keep_params_nonnegative",
    "zero_nans",
    "NonNegativeParamsState",
    "ZeroNansState",
]

NonNegativeParamsState = EmptyState  # Optax's name for an empty state


class ZeroNansState(NamedTuple):
    """State of `zero_nans`."""

    found_nan: Slot  # a boolean scalar per parameter; whether its last gradient held a NaN


@transform
class zero_nans(ArrayRule):
    """Replace every NaN by zero, and remember where there was one.

    Update rule: u = 0 where g is NaN, else g. Infinities stay.
    """

    # Entries are replaced one by one, but `found_nan` is a property of the whole array.
    State = ZeroNansState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return a flag of False per parameter."""
        return ZeroNansState(jax.tree.map(lambda p: jnp.zeros((), jnp.bool_), params))

    def rule(self, g, found_nan, p):
        """Return the update without NaNs, and whether there was one."""
        nan = jnp.isnan(g)
        return jnp.where(nan, jnp.zeros_like(g), g), engine.array_max(nan.astype(jnp.float32)) > 0


@transform
class keep_params_nonnegative(ArrayRule):
    """Stop at zero every parameter that its update would make negative.

    Update rule: u = -p where p + g < 0, else g. Must be the last part of a chain that changes
    updates, because it must see the update that is applied; a later one is refused.

    Raises:
      ValueError: at update, if no parameters are given.
    """

    locality = "entry"
    needs_params = True
    sets_params = True

    def rule(self, g, p):
        """Return the update, cut short at zero."""
        return jnp.where(p + g < 0, -p, g)

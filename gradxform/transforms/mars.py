"""MARS: gradients corrected by how they have changed, to reduce their variance."""

import math
from typing import NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.numerics import shrinking
from gradxform.slots import zeros_like
from gradxform.transforms.matrices.array_norms import array_norm
from gradxform.types import Array, Bound, Decay, NonNegative, Slot


class ScaleByMarsState(NamedTuple):
    """State of `scale_by_mars`."""

    is_initial_step: Array  # boolean scalar; whether the next update is the first
    previous_gradient: Slot  # like params, at least float32; the last gradient


@transform
class scale_by_mars(ArrayRule):
    """Correct gradients by their change since the last step, and clip each array.

    Update rule, with g' the last g, and g itself at the first step:

        c = g + gamma b1 / (1 - b1) (g - g')
        u = c min(1, max_norm / |c|)        (|c| the norm of one array)

    Put it before a rule that averages with the same b1, as `mars_adamw` does: the average of c is
    then a variance-reduced estimate of the gradient. This is the paper's approximate form, in which
    g' is of the last batch; the exact one evaluates the last parameters on this batch. The authors'
    code corrects only matrices: wrap it in `masked` with `ndim_at_least(2)`.

    Args:
      b1: the decay of the average that follows, in [0, 1).
      gamma: the strength of the correction, at least 0.
      max_norm: the largest norm of one array; infinity for no bound.

    Reference: Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large
    Models, 2024, Algorithm 1, in the approximate form.
    """

    b1: Decay = 0.95
    gamma: NonNegative = 0.025
    max_norm: Bound = 1.0

    State = ScaleByMarsState
    sees_pieces = True
    handles_complex = True

    @property
    def locality(self) -> str:
        """The array, whose norm it takes; without a bound, the entry."""
        unbounded = isinstance(self.max_norm, float) and math.isinf(self.max_norm)
        return "entry" if unbounded else "array"

    def init(self, params):
        """Return last gradients of zeros, which the first step does not use."""
        return ScaleByMarsState(jnp.ones((), jnp.bool_), zeros_like(params))

    def prepare(self, updates, state, params):
        """Return the state after the first step, and whether this is it."""
        after = state._replace(is_initial_step=jnp.zeros((), jnp.bool_))
        return after, state.is_initial_step

    def rule(self, g, last, p, is_first):
        """Return the corrected and clipped gradient, and the gradient for the next step."""
        c = self._corrected(g, last, is_first)
        if self.locality == "array":
            now, before = engine.read_again(g, last)
            norm = array_norm(self._corrected(now, before, is_first))
            c = shrinking(norm, 0.25 * self.max_norm) * c
        return 4 * c, g

    def _corrected(self, g: Array, last: Array, is_first: Array) -> Array:
        """Return a quarter of the corrected gradient."""
        # Of a quarter of each, because the change of huge gradients is beyond the range.
        quarter, of_last = 0.25 * g, 0.25 * last
        change = jnp.where(is_first, jnp.zeros_like(g), quarter - of_last)
        return quarter + (self.gamma * self.b1 / (1 - self.b1)) * change

"""Limits on how fast the norm of an array's update grows."""

from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.numerics import plus, shrinking, within
from gradxform.slots import zero_scalars_like
from gradxform.transforms.matrices.array_norms import array_norm
from gradxform.types import Array, AtLeastOne, NonNegative, NonNegativeSlot, Scalar


class LimitNormGrowthState(NamedTuple):
    """State of `limit_norm_growth`."""

    last_norm: NonNegativeSlot  # a real scalar per parameter, at least float32; |u|; 0 before it


def growth_limit(
    size: Array, last: Array, growth: Scalar, eps: Scalar = 0.0
) -> tuple[Array, Array]:
    """Return the factor for an array of norm `size`, and its norm for the next step.

    Args:
      size: norms.
      last: those of the last updates that were not zero, after the limit; 0 if there are none.
      growth: the largest ratio of the two.
      eps: added to the last norms.
    """
    most = jnp.where(last > 0, within(growth, size.dtype) * plus(last, eps), jnp.inf)
    new = jnp.minimum(size, most)
    return shrinking(size, most), jnp.where(new > 0, new, last)


@transform
class limit_norm_growth(ArrayRule):
    """Scale every array down whose norm grows by too much from one step to the next.

    Update rule, with |u_last| the norm of the array's last update that was not zero:

        u = g min(1, growth (|u_last| + eps) / |g|)

    The first update is u = g.

    Args:
      growth: the largest ratio of norms, at least 1; infinite for any.
      eps: added to the last norm, at least 0.

    Reference: Chen et al., Fira: Can We Achieve Full-rank Training of LLMs Under Low-rank
    Constraint?, 2024, the norm-growth limiter.
    """

    growth: AtLeastOne = 1.01
    eps: NonNegative = 1e-8

    State = LimitNormGrowthState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return norms that are not known yet."""
        return LimitNormGrowthState(zero_scalars_like(params))

    def rule(self, g, last, p):
        """Return the update and its norm."""
        factor, last = growth_limit(array_norm(g), last, self.growth, self.eps)
        return factor * g, last

"""MARS around any optimizer."""

from typing import Any

from gradxform.transforms.mars import scale_by_mars
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.compose import chain

__all__ = [
    "mars",
]


@with_checked_arguments
def mars(inner: Any, b1: float = 0.95, gamma: float = 0.025, max_norm: float = 1.0) -> chain:
    """Run an optimizer on gradients that MARS has corrected by their change.

    Returns `chain(scale_by_mars(b1, gamma, max_norm), inner)`. `mars_adamw` has the numbers of the
    paper.

    Args:
      inner: the optimizer, which averages gradients with the decay `b1`.
      b1: the decay of that average, in [0, 1).
      gamma: see `scale_by_mars`.
      max_norm: see `scale_by_mars`.

    Reference: Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large
    Models, 2024, Algorithm 1.
    """
    return chain(scale_by_mars(b1, gamma, max_norm), inner)

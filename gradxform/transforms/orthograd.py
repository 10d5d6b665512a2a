"""OrthoGrad: gradients without their part along the parameters."""

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.numerics import over, taming
from gradxform.transforms.matrices.array_norms import array_norm, array_norms


@transform
class orthograd(ArrayRule):
    """Remove from the gradient of every array its part along the array, and keep its norm.

    Update rule, for each array:

        h = g - p <p, g> / |p|^2
        u = h |g| / |h|           (0 where nothing but rounding is left of h)

    Put it before any optimizer. A network that has fitted its data can lower the cross-entropy by
    growing its weights alone, until the softmax rounds to 0 or 1 and learning stops; without that
    part of the gradient it goes on, and groks without weight decay. An array of one entry does not
    have another direction, and stays.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Prieto et al., Grokking at the Edge of Numerical Stability, 2025, the
    projection of OrthoGrad.
    """

    locality = "array"
    sees_pieces = True
    needs_params = True

    def rule(self, g, p):
        """Return the gradient at right angles to the parameter."""
        # In a range where the sums of squares are finite.
        tame = taming(engine.array_max(jnp.abs(g)))
        g = tame * g
        n = over(p, array_norm(p), 0)
        h = g - n * engine.array_sums(n * g)
        size, size_h = array_norms(g, h)
        is_rounding = size_h <= 4 * float(jnp.finfo(g.dtype).eps) * size
        return jnp.where(is_rounding, 0, over(size, size_h, 0) * h / tame)

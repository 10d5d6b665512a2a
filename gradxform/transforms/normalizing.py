"""Rules that set the scale of an update by its size, or by that of its parameters."""

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.errors import finite, non_negative
from gradxform.lift import global_norm
from gradxform.numerics import abs_sq


@transform
class centralize(ArrayRule):
    """Subtract from every row of an array its mean.

    Update rule: u = g - mean(g), the mean over all axes but the first; scalars and vectors stay.

    Reference: Yong et al., Gradient Centralization: A New Optimization Technique for Deep Neural
    Networks, 2020, equation (1).
    """

    locality = "row"
    handles_complex = True

    def rule(self, g, p):
        """Return the centralized update."""
        if g.ndim < 2 or not g.size:
            return g
        return g - jnp.mean(g, axis=tuple(range(1, g.ndim)), keepdims=True)


@transform
class normalize_by_update_norm(ArrayRule):
    """Divide all updates by their norm.

    Update rule, with |g| the Euclidean norm over every entry of the tree, in float32 or wider:

        u = scale_factor g / (|g| + eps)

    Args:
      scale_factor: the norm of the result (for |g| well above eps); negative to descend.
      eps: at least 0; keeps updates of norm 0 finite if greater than 0.
    """

    scale_factor: float = 1.0
    eps: float = 1e-6

    locality = "tree"
    handles_complex = True

    def __post_init__(self):
        finite(self, "scale_factor")
        non_negative(self, "eps")
        finite(self, "eps")

    def prepare(self, updates, state, params):
        """Return the factor for all leaves."""
        return state, self.scale_factor / (global_norm(updates) + self.eps)

    def rule(self, g, p, factor):
        """Return the scaled update."""
        return factor * g


@transform
class scale_by_trust_ratio(ArrayRule):
    """Give the update of every array a size in proportion to the array's.

    Update rule, with |x| the norm of one array, counted as min_norm where it is less:

        u = g trust_coefficient |p| / (|g| + eps)      (u = g where |p| = 0 or |g| = 0)

    Args:
      min_norm: what norms count at least, at least 0.
      trust_coefficient: the ratio of the sizes, finite.
      eps: added to |g|, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, Algorithm 2; You et al., Large Batch Training of Convolutional Networks, 2017, (6).
    """

    min_norm: float = 0.0
    trust_coefficient: float = 1.0
    eps: float = 0.0

    locality = "array"
    handles_complex = True
    needs_params = True

    def __post_init__(self):
        non_negative(self, "min_norm", "eps")
        finite(self, "min_norm", "trust_coefficient", "eps")

    def rule(self, g, p):
        """Return the scaled update."""
        size_p = jnp.maximum(jnp.sqrt(jnp.sum(abs_sq(p))), self.min_norm)
        size_g = jnp.maximum(jnp.sqrt(jnp.sum(abs_sq(g))), self.min_norm)
        undefined = (size_p == 0) | (size_g == 0)
        below = jnp.where(undefined, 1, size_g + self.eps)
        return g * jnp.where(undefined, 1, self.trust_coefficient * size_p / below)

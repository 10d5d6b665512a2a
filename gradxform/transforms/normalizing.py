"""Rules that set the scale of an update by its size, or by that of its parameters."""

from dataclasses import field

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.errors import finite, non_negative, positive
from gradxform.lift import global_norm
from gradxform.numerics import abs_sq, is_zero, not_zero, over, plus, scalar


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
      eps: at least 0; with 0 updates of norm 0 stay 0.
    """

    scale_factor: float = 1.0
    eps: float = 1e-6

    locality = "tree"
    rule_locality = "entry"
    asks_for_sums = True
    handles_complex = True

    def __post_init__(self):
        finite(self, "scale_factor")
        non_negative(self, "eps")
        finite(self, "eps")

    def prepare(self, updates, state, params):
        """Return the factor for all leaves."""
        norm = scalar(global_norm(updates))
        eps = not_zero(self.eps, norm.dtype, 0.5)
        return state, over(scalar(self.scale_factor), plus(norm, eps), eps)

    def rule(self, g, p, factor):
        """Return the scaled update."""
        return factor * g


@transform
class normalize_by_block_norm(ArrayRule):
    """Divide the update of every array by its norm.

    Update rule, with |g| the Euclidean norm of one array:

        u = scale_factor g / max(|g|, min_norm)

    Args:
      scale_factor: the norm of the result (where |g| is at least min_norm); negative to descend.
      min_norm: what the norm counts at least, greater than 0, so that a zero stays one.

    Reference: Hazan et al., Beyond Convexity: Stochastic Quasi-Convex Optimization, 2015,
    Algorithm 1, array by array.
    """

    scale_factor: float = 1.0
    min_norm: float = 1e-6

    locality = "array"
    handles_complex = True

    def __post_init__(self):
        finite(self, "scale_factor", "min_norm")
        positive(self, "min_norm")

    def rule(self, g, p):
        """Return the scaled update."""
        return (self.scale_factor / jnp.maximum(_norm(g), self.min_norm)) * g


@transform
class scale_by_trust_ratio(ArrayRule):
    """Give the update of every array a size in proportion to the array's.

    Update rule, with |x| the norm of one array, counted as min_norm where it is less:

        u = g trust_coefficient |p| / (|g| + eps)      (u = g where |p| = 0 or |g| = 0)

    With a weight decay, it is added here, and its norm to that of the gradient (and not, as by
    `add_decayed_weights` before, the norm of the sum taken):

        u = (g + weight_decay p) trust_coefficient |p| / (|g| + weight_decay |p| + eps)

    with g + weight_decay p where |p| = 0 or |g| = 0.

    Args:
      min_norm: what norms count at least, at least 0.
      trust_coefficient: the ratio of the sizes, finite.
      eps: added to |g|, at least 0.
      weight_decay: at least 0. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, Algorithm 2; You et al., Large Batch Training of Convolutional Networks, 2017, (6).
    """

    min_norm: float = 0.0
    trust_coefficient: float = 1.0
    eps: float = 0.0
    weight_decay: float = field(default=0.0, kw_only=True)

    locality = "array"
    handles_complex = True
    needs_params = True

    def __post_init__(self):
        non_negative(self, "min_norm", "eps", "weight_decay")
        finite(self, "min_norm", "trust_coefficient", "eps", "weight_decay")

    def rule(self, g, p):
        """Return the scaled update."""
        size_p = jnp.maximum(_norm(p), self.min_norm)
        size_g = jnp.maximum(_norm(g), self.min_norm)
        undefined = (size_p == 0) | (size_g == 0)
        below = plus(size_g, self.eps)
        if not is_zero(self.weight_decay):
            g = g + self.weight_decay * p
            below = below + self.weight_decay * size_p
        below = jnp.where(undefined, 1, below)
        return g * jnp.where(undefined, 1, self.trust_coefficient * size_p / below)


def _norm(x):
    return jnp.sqrt(jnp.sum(abs_sq(x)))

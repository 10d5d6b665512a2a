"""Rules that center updates, or divide them by their norm."""

import math
from dataclasses import field

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.engine import global_norm, tree_sums
from gradxform.errors import name_of
from gradxform.numerics import not_zero, over, plus, scalar, taming
from gradxform.numerics.roots import root
from gradxform.transforms.matrices.array_norms import array_norm, array_size
from gradxform.transforms.together import ScaledTogether
from gradxform.transforms.tree_rules import columns_of
from gradxform.types import Array, Finite, NonNegative, Positive, Scalar, Size


@transform
class centralize(ArrayRule):
    """Subtract from the weights of every output of an array their mean.

    Update rule: u = g - mean(g), the mean over all axes but one; scalars and vectors stay.

    The paper subtracts from the weights of each output their mean. By default the outputs are the
    first axis, as in Optax: right for weights in PyTorch's order, (outputs, inputs) and OIHW. For
    those of Flax and Keras, (inputs, outputs) and HWIO, give `axis=-1`.

    Args:
      axis: the axis of the outputs; a negative one counts from the end. Defaults to the first;
        with another one the rule looks at whole arrays. Keyword-only.

    Raises:
      ValueError: at update, for an array of two dimensions or more that does not have the axis.

    Reference: Yong et al., Gradient Centralization: A New Optimization Technique for Deep Neural
    Networks, 2020, equation (1).
    """

    axis: Size | None = field(default=None, kw_only=True)

    sees_pieces = True
    handles_complex = True

    @property
    def locality(self) -> str:
        """How far the rule looks: at a row if the outputs are rows."""
        return "array" if self.axis else "row"

    def rule(self, g, p):
        """Return the centralized update."""
        if g.ndim < 2 or not g.size:
            return g
        axis = self.axis or 0
        if not -g.ndim <= axis < g.ndim:
            raise ValueError(
                f"{name_of(self)}: axis must be an axis of every array of two dimensions or more, "
                f"got {axis} for one of shape {g.shape}. Leave that one out with masked."
            )
        kept = axis % g.ndim
        axes = tuple(i for i in range(g.ndim) if i != kept)
        shape = engine.whole_shape(g)
        count = math.prod(shape[i] for i in axes)
        # So that a sum of large numbers is in the range; a power of two rounds nothing.
        share = 2.0 ** -math.ceil(math.log2(count))
        total = engine.array_sums((share * g, axes), keepdims=True)
        return g - total / (share * count)


@transform
class normalize(ScaledTogether):
    """Divide all updates by their norm, so that it becomes 1.

    Update rule, with |g| the Euclidean norm over every entry of the tree, in float32 or wider:

        u = g / |g|        (0 where |g| is 0)

    It makes the adversarial step of `sam`: `chain(normalize(), sgd(rho))`.
    `normalize_by_update_norm` has a factor and an epsilon.

    Reference: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization,
    2021, equation (2) with p = 2.
    """

    def prepare(self, updates, state, params):
        """Return the factor for all leaves."""
        return state, over(scalar(1.0), scalar(global_norm(updates)), 0)


@transform
class normalize_adaptively(ArrayRule):
    """Stretch updates by the size of the parameters, within a ball that is stretched alike.

    Update rule, with t = |p| + eta per entry, and |t g| the norm over every entry of the tree:

        u = t^2 g / |t g|        (0 where |t g| is 0)

    It makes the adversarial step of `asam`, which does not change when a layer is scaled up and the
    next one down. Every parameter is stretched; the paper's code stretches only weights.

    Args:
      eta: added to the size of the parameters, at least 0; with 0, a parameter of 0 stays put.

    Reference: Kwon et al., ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning
    of Deep Neural Networks, 2021, equation (9).
    """

    eta: NonNegative = 0.01

    locality = "tree"
    sees_pieces = True
    needs_params = True

    def prepare(self, updates, state, params):
        """Return 1 / |t g|."""
        (square,) = tree_sums(_square, updates, columns_of(self, updates, state, params), self.eta)
        return state, over(scalar(1.0), root(square), 0)

    def rule(self, g, p, factor):
        """Return the stretched update."""
        t = jnp.abs(p) + self.eta
        return t * (factor * (t * g))


def _square(g: Array, p: Array, eta: Scalar) -> tuple[Array]:
    return (jnp.square((jnp.abs(p) + eta) * g),)


@transform
class normalize_by_update_norm(ScaledTogether):
    """Divide all updates by their norm.

    Update rule, with |g| the Euclidean norm over every entry of the tree, in float32 or wider:

        u = scale_factor g / (|g| + eps)

    Args:
      scale_factor: the norm of the result (for |g| well above eps); negative to descend.
      eps: added to the norm, at least 0; with 0, updates of norm 0 stay 0.
    """

    scale_factor: Finite = 1.0
    eps: NonNegative = 1e-6

    def prepare(self, updates, state, params):
        """Return the factor for all leaves."""
        norm = scalar(global_norm(updates))
        eps = not_zero(self.eps, norm.dtype, 0.5)
        return state, over(scalar(self.scale_factor), plus(norm, eps), eps)


@transform
class normalize_by_block_norm(ArrayRule):
    """Divide the update of every array by its norm.

    Update rule, with |g| the Euclidean norm of one array:

        u = scale_factor g / max(|g|, min_norm)

    Args:
      scale_factor: the norm of the result (where |g| is at least min_norm); negative to descend.
      min_norm: a lower bound on the norm, greater than 0, so that an update of zeros stays zero.

    Reference: Hazan et al., Beyond Convexity: Stochastic Quasi-Convex Optimization, 2015,
    Algorithm 1, array by array.
    """

    scale_factor: Finite = 1.0
    min_norm: Positive = 1e-6

    locality = "array"
    sees_pieces = True
    handles_complex = True

    def rule(self, g, p):
        """Return the scaled update."""
        return (self.scale_factor / jnp.maximum(array_norm(g), self.min_norm)) * g


@transform
class normalize_by_block_std(ArrayRule):
    """Divide the update of every array by the standard deviation of its entries.

    Update rule, with std(g) over one array of n entries, the root of the sum of squared distances
    from their mean over n - 1:

        u = g / (std(g) + eps)      (u = g for arrays of one or two entries)

    std(g) counts as at least 1e-4 of the largest entry: where entries are equal, little but their
    rounding would divide them.

    With `centralize` before it, this is the gradient normalization in the code of Ranger21.

    Args:
      eps: added to the standard deviation, at least 0; with 0, zeros stay.

    Reference: Wright and Demeure, Ranger21: A Synergistic Deep Learning Optimizer, 2021, of
    which it is a later part.
    """

    eps: NonNegative = 1e-8

    locality = "array"
    sees_pieces = True

    def rule(self, g, p):
        """Return the divided update."""
        return over_std(g, self.eps)


def over_std(g: Array, eps: Scalar) -> Array:
    """Return an array over its standard deviation, which `eps` is added to."""
    n = array_size(g)
    if n <= 2:
        return g
    largest = engine.array_max(jnp.abs(g))
    tame = taming(largest)  # so that the sum of squares is finite
    x = tame * g
    distance = x - engine.array_sums(x) / n
    std = root(engine.array_sums(jnp.square(distance)) / (n - 1))
    std = jnp.maximum(std, 1e-4 * (tame * largest))
    return over(x, std + tame * eps, eps)

"""Rules that use the norm of whole arrays: second moments, first gradients, trust ratios."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.numerics import (
    abs_sq,
    is_zero,
    over,
    plus,
    safe_increment,
    scalar,
    value_at,
)
from gradxform.numerics.numbers import within
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import over_root, root
from gradxform.slots import zero_count, zero_scalars_like, zeros_like
from gradxform.transforms.clipping import unit_axes
from gradxform.transforms.matrices.array_norms import array_norm, array_norms, array_rms, array_size
from gradxform.transforms.scaling import WeightDecaySchedule, counted_field
from gradxform.types import (
    Array,
    Bound,
    Decay,
    DType,
    Finite,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Size,
    Slot,
    ZeroIsNone,
)


@transform
class scale_by_param_block_norm(ArrayRule):
    """Scale the update of every array by the norm of the array.

    Update rule, with |p| the Euclidean norm of one array: u = g max(|p|, min_scale).

    Args:
      min_scale: the least factor, at least 0, so that parameters that start at 0 can move.

    Raises:
      ValueError: at update, if no parameters are given.
    """

    min_scale: NonNegative = 1e-3

    locality = "array"
    sees_pieces = True
    by_entry_after_sums = True
    handles_complex = True
    needs_params = True

    def rule(self, g, p):
        """Return the scaled update."""
        return g * jnp.maximum(array_norm(p), self.min_scale)


@transform
class scale_by_param_block_rms(ArrayRule):
    """Scale the update of every array by the root mean square of the array.

    Update rule, with rms(p) = sqrt(mean |p|^2) over one array: u = g max(rms(p), min_scale).

    Args:
      min_scale: the least factor, at least 0, so that parameters that start at 0 can move.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, section 8.
    """

    min_scale: NonNegative = 1e-3

    locality = "array"
    sees_pieces = True
    by_entry_after_sums = True
    handles_complex = True
    needs_params = True

    def rule(self, g, p):
        """Return the scaled update."""
        return g * jnp.maximum(array_rms(p), self.min_scale)


@transform
class add_norm_loss(ArrayRule):
    """Add the gradient of a loss that draws the norms of all units to 1.

    Update rule, with |p| the norm over a unit, the entries that feed one output (see `axis`):

        u = g + 2 factor (1 - 1 / |p|) p

    This is the gradient of factor (|p| - 1)^2. Before the preconditioner it is part of the loss;
    after it, it stands in the place of a weight decay, as in Ranger21. A unit of zeros stays.

    Args:
      factor: the weight of the loss, at least 0.
      axis: the axes that belong to one unit. Defaults to those of `adaptive_grad_clip`.

    Raises:
      ValueError: at update, for an array of more than 5 dimensions without `axis`, or without
        parameters.

    Reference: Georgiou et al., Norm Loss: An Efficient yet Effective Regularization Method for Deep
    Neural Networks, 2021.
    """

    factor: NonNegative = 1e-4
    axis: Size | tuple[int, ...] | None = None

    locality = "array"
    sees_pieces = True
    handles_complex = True
    needs_params = True

    def rule(self, g, p):
        """Return the update plus the gradient of the loss."""
        axes = unit_axes(self, engine.whole_shape(p)) if self.axis is None else self.axis
        (size,) = array_norms(p, axes=axes)
        return g + (2 * self.factor * (1 - over(jnp.ones_like(size), size, 0))) * p


class ScaleByNovogradState(NamedTuple):
    """State of `scale_by_novograd`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the momentum m
    nu: NonNegativeSlot  # a real scalar per parameter, at least float32; the average v of |g|^2


@transform
class scale_by_novograd(ArrayRule):
    """Divide the gradient of every array by a running norm of it, then accumulate.

    Update rule, from m = 0, with |g| the Euclidean norm of one array and n = 0, 1, ... the number
    of earlier updates:

        v <- b2 v + (1 - b2) |g|^2      (at the first step v <- |g|^2)
        m <- b1 m + g / (sqrt(v + eps_root) + eps) + weight_decay(n) p
        u = m

    One number per array instead of one per entry: half of Adam's memory.

    Args:
      b1: the decay of the momentum, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0 an array that never had a gradient stays.
      eps_root: added under the root, at least 0.
      weight_decay: the multiple of p added to the momentum, at least 0, or a schedule.
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments for
    Training of Deep Networks, 2019, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.25
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    weight_decay: NonNegativeOrSchedule = 0.0
    mu_dtype: DType = None

    State = ScaleByNovogradState
    locality = "array"
    sees_pieces = True
    handles_complex = True
    needs_params = True

    def init(self, params):
        """Return a momentum of zeros, and a second moment that the first step does not read."""
        return ScaleByNovogradState(
            count=zero_count(),
            mu=zeros_like(params, self.mu_dtype),
            nu=zero_scalars_like(params),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count, this step's b2 and, if scheduled, this step's decay."""
        b2 = jnp.where(state.count == 0, 0, scalar(self.b2))
        advanced = state._replace(count=safe_increment(state.count))
        if callable(self.weight_decay):
            return advanced, b2, value_at(self.weight_decay, state.count)
        return advanced, b2

    def rule(self, g, m, v, p, b2, scheduled=None):
        """Return the update, which is the momentum, and the momentum and the second moment."""
        weight_decay: Any = self.weight_decay if scheduled is None else scheduled
        v = b2 * v + (1 - b2) * engine.array_sums(abs_sq(g))
        m = self.b1 * m + g * over_root(jnp.ones_like(v), v, self.eps, self.eps_root)
        # Without decay the parameter need not be read at all.
        if not is_zero(weight_decay):
            m = m + weight_decay * p
        return m, m, v


@transform
class undo_norm_growth(ArrayRule):
    """Shrink the parameters by as much as a step at right angles to them would make them grow.

    Update rule, with g the step and n = 0, 1, ... the number of earlier updates:

        u = (p + g) / sqrt(1 + lr(n)^2) - p

    A step of length lr |p| at right angles to p, such as one for weights that are followed by a
    normalization, then leaves the norm of p as it was. Must be the last part of a chain.

    Args:
      learning_rate: the length of the step relative to |p|: a number, at least 0, or a schedule.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Bernstein et al., On the distance between two neural networks and the stability of
    learning, 2020, Algorithm 1, the last factor.
    """

    learning_rate: NonNegativeOrSchedule

    locality = "entry"
    handles_complex = True
    needs_params = True

    @property
    def State(self) -> Any:
        """The class of the state: a schedule needs a count."""
        return WeightDecaySchedule if callable(self.learning_rate) else EmptyState

    def prepare(self, updates, state, params):
        """Return the state, the factor, and factor - 1."""
        state, *scheduled = counted_field(self, self.learning_rate, state, WeightDecaySchedule)
        lr = scheduled[0] if scheduled else value_at(self.learning_rate, zero_count())
        square = jnp.square(lr)
        root = jnp.sqrt(1 + square)
        factor_minus_1 = -square / (root * (1 + root))  # 1 / root - 1, without its cancellation
        return state, 1 / root, factor_minus_1

    def rule(self, g, p, factor, factor_minus_1):
        """Return the step, shrunk with the parameter."""
        return factor * g + factor_minus_1 * p


class ScaleByFirstSnrState(NamedTuple):
    """State of `scale_by_first_snr`."""

    snr: NonNegativeSlot  # a real scalar per parameter, at least float32; G; 0 before it is known


@transform
class scale_by_first_snr(ArrayRule):
    """Scale every array by the signal-to-noise ratio of its first gradient.

    Update rule, with g_1 the first gradient of an array that is not zero, |g_1| its norm and sd its
    standard deviation, unbiased:

        G = |g_1| / (sd(g_1) + eps)      (arrays of less than two dimensions: G = |g_1|)
        u = G g

    An array whose first gradient has equal entries counts as one of less than two dimensions. The
    paper normalizes G over all arrays as well.

    Args:
      eps: added to the deviation, at least 0.

    Reference: Xu et al., No More Adam: Learning Rate Scaling at Initialization is All You Need,
    2024.
    """

    eps: NonNegative = 1e-8

    State = ScaleByFirstSnrState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return ratios that are not known yet."""
        return ScaleByFirstSnrState(zero_scalars_like(params))

    def rule(self, g, G, p):
        """Return the scaled update and the ratio."""
        # Relative to the largest entry, so that squares neither overflow nor vanish.
        x, n = bounded_square(g), array_size(g)
        largest = engine.array_max(jnp.abs(x))
        x = over(x, largest, 0)
        total, square = engine.array_sums(x, abs_sq(x))
        snr = largest * root(square)
        if g.ndim > 1 and n > 1:
            deviation = root(engine.array_sums(abs_sq(x - total / n)) / (n - 1))
            # Below this it is the rounding of equal entries.
            equal = deviation < 4 * float(jnp.finfo(largest.dtype).eps)
            divisor = plus(largest * jnp.where(equal, 1, deviation), self.eps)
            snr = jnp.where(equal, snr, over(snr, divisor, self.eps))
        G = jnp.where(G > 0, G, saturated(snr))
        # No finite gradient makes an update that is not. Nothing is divided where nothing is huge:
        # the derivative of a quotient by the square of a small gradient is infinite.
        largest, most = engine.array_max(jnp.abs(g)), float(jnp.finfo(G.dtype).max) / 4
        is_huge = most / largest < G
        return jnp.where(is_huge, most / jnp.where(is_huge, largest, 1), G) * g, G


@transform
class scale_by_trust_ratio(ArrayRule):
    """Scale the update of every array to a norm proportional to that of the array.

    Update rule, with |x| the norm of one array, but at least min_norm:

        u = g trust_coefficient |p| / (|g| + eps)      (u = g where |p| = 0 or |g| = 0)

    A weight decay is added here, and its norm is added to that of the gradient
    (`add_decayed_weights` before this rule would have it take the norm of the sum):

        u = (g + weight_decay p) trust_coefficient |p| / (|g| + weight_decay |p| + eps)

    and u = g + weight_decay p where |p| = 0 or |g| = 0, as in TensorFlow. With scaled_decay only
    |p| = 0 is such a case: a gradient of zeros gives trust_coefficient p, as in equation (6) of the
    paper, which is shorter if trust_coefficient is less than weight_decay.

    Args:
      min_norm: a lower bound on the norms, at least 0.
      trust_coefficient: the norm of the update over that of the array, finite.
      eps: added to |g|, at least 0.
      weight_decay: the multiple of p added to g, at least 0. Keyword-only.
      scaled_decay: whether the decay of an array whose gradient is zero is scaled. Keyword-only.
      max_ratio: the largest factor of g, greater than 0: 1 for LAMBC; the learning rate for LARC,
        whose own rate is then 1. Defaults to any. Keyword-only.
      max_norm: an upper bound on |p|, greater than 0; the first code of LAMB has 10. Defaults to
        none. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, Algorithm 2; You et al., Large Batch Training of Convolutional Networks, 2017, (6).
    """

    min_norm: NonNegative = 0.0
    trust_coefficient: Finite = 1.0
    eps: NonNegative = 0.0
    weight_decay: NonNegative | ZeroIsNone = field(default=0.0, kw_only=True)
    scaled_decay: bool = field(default=False, kw_only=True)
    max_ratio: Bound | None = field(default=None, kw_only=True)
    max_norm: Bound | None = field(default=None, kw_only=True)

    locality = "array"
    sees_pieces = True
    handles_complex = True
    needs_params = True

    def rule(self, g, p):
        """Return the scaled update."""
        norm_p, norm_g = (jnp.maximum(x, self.min_norm) for x in array_norms(p, g))
        if self.max_norm is not None:
            norm_p = jnp.minimum(norm_p, within(self.max_norm, norm_p.dtype))
        undefined = (norm_p == 0) | (norm_g == 0)
        divisor = plus(norm_g, self.eps)
        if not is_zero(self.weight_decay):
            g = g + self.weight_decay * p
            divisor = divisor + self.weight_decay * norm_p
            if self.scaled_decay:
                undefined = (norm_p == 0) | (divisor == 0)
        divisor = jnp.where(undefined, 1, divisor)
        ratio = jnp.where(undefined, 1, self.trust_coefficient * norm_p / divisor)
        if self.max_ratio is not None:
            ratio = jnp.minimum(ratio, within(self.max_ratio, ratio.dtype))
        return g * ratio

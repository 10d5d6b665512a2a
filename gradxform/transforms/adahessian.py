"""AdaHessian: Adam with the diagonal of the Hessian in the place of the gradient's square."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.engine import PerLeaf
from gradxform.errors import require_at_least
from gradxform.leaves import dtype_of
from gradxform.numerics import (
    at_least_float32,
    bias_correction,
    cast,
    over,
    plus,
    promote,
    safe_increment,
)
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import power, root
from gradxform.transforms.sophia import (
    WithDiagonal,
    curvature_now,
    hutchinson_estimator_diag_hessian,
)
from gradxform.transforms.tree_rules import columns_of
from gradxform.types import (
    Array,
    Decay,
    DType,
    NonNegative,
    NonNegativeSlot,
    PositiveInt,
    PositiveShare,
    Scalar,
    Size,
    Slot,
)


@transform
class average_spatial_axes(ArrayRule):
    """Replace every entry of a convolution's kernel by the mean over the kernel's window.

    Update rule: u = mean(g), the mean over all axes but the last two, which are inputs and outputs;
    arrays of fewer axes than `min_ndim` stay.

    Args:
      min_ndim: the least number of axes of a kernel, an integer, at least 3. By default 4, because
        arrays of three axes are more often projections of attention than kernels of one dimension.

    Reference: Yao et al., ADAHESSIAN: An Adaptive Second Order Optimizer for Machine Learning,
    2021, the spatial averaging.
    """

    min_ndim: Size = 4

    locality = "array"
    sees_pieces = True
    handles_complex = True

    def __post_init__(self) -> None:
        require_at_least(self, 3, "min_ndim")

    def rule(self, g, p):
        """Return the means."""
        if g.ndim < self.min_ndim or not g.size:
            return g
        window = tuple(range(g.ndim - 2))
        count = math.prod(engine.whole_shape(g)[:-2])
        # So that a sum of large numbers is in the range; a power of two rounds nothing.
        share = 2.0 ** -math.ceil(math.log2(count))
        total = engine.array_sums((share * g, window), keepdims=True)
        return jnp.broadcast_to(total / (share * count), g.shape)


class AdaHessianState(NamedTuple):
    """State of `scale_by_adahessian`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the gradient
    nu: NonNegativeSlot  # like params, at least float32; the average v of squares of the diagonal
    hessian_fn_state: Any  # the state of the estimator


def _average_of_hessian_square(
    v: Array, estimate: Array, b2: Scalar, one_minus_b2: Scalar
) -> Array:
    """Return b2 v + (1 - b2) D^2 in the dtype of v."""
    dtype = at_least_float32(promote(dtype_of(v), dtype_of(estimate)))
    d = bounded_square(cast(estimate, dtype))
    new = jnp.asarray(one_minus_b2, dtype) * (d * d)
    return cast(jnp.asarray(b2, dtype) * cast(v, dtype) + new, dtype_of(v))


@transform
class scale_by_adahessian(WithDiagonal):
    """Rescale updates as AdaHessian does: the first moment over the size of the curvature.

    Update rule, from m = v = 0 and t = 1, 2, ..., with D the estimate of the Hessian's diagonal and
    s the number of estimates so far:

        v <- b2 v + (1 - b2) D^2      (at t = 1, 1 + update_interval, ...; else v stays)
        m <- b1 m + (1 - b1) g
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^s))^hessian_power + eps)

    An estimate is used at its own step. The extra arguments of `update` (`obj_fn`) go to the
    estimator.

    Differs from codes that divide by 1 - b2^t where estimates are rarer than steps: the average has
    a term for each estimate, not for each step.

    Args:
      b1: the decay of the gradient's average, in [0, 1).
      b2: the decay of the curvature's average per estimate, in [0, 1).
      eps: added to the divisor, at least 0; with 0, an entry without curvature stays put.
      hessian_power: the power of the curvature, in (0, 1]: the smaller, the less it counts.
      update_interval: the number of steps from one estimate to the next, at least 1.
      hessian_diagonal_fn: the estimator, a transform whose updates are the diagonal, such as
        `chain(hutchinson_estimator_diag_hessian(), average_spatial_axes())`.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Yao et al., ADAHESSIAN: An Adaptive Second Order Optimizer for Machine Learning,
    2021, Algorithm 1; eps is that of its code.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-4
    hessian_power: PositiveShare = 1.0
    update_interval: PositiveInt = 1
    hessian_diagonal_fn: Any = hutchinson_estimator_diag_hessian()
    mu_dtype: DType = None

    State = AdaHessianState

    def prepare(self, updates, state, params, **extra):
        """Return the advanced state, the factors of m and v, and the new v of each leaf."""
        count = safe_increment(state.count)
        of_m = bias_correction(self.b1, count)
        of_v = bias_correction(self.b2, safe_increment(state.count // self.update_interval))
        _, _, vs, _ = columns_of(self, updates, state, params)
        estimator_state, vs = curvature_now(
            self, updates, state, params, extra, vs, _average_of_hessian_square
        )
        state = state._replace(count=count, hessian_fn_state=estimator_state)
        return state, of_m, of_v, PerLeaf(vs)

    def rule(self, g, m, _, p, of_m, of_v, v):
        """Return the update and the averages."""
        m = self.b1 * m + (1 - self.b1) * g
        size = power(root(of_v * v), self.hessian_power)
        return over(of_m * m, plus(size, self.eps), self.eps), m, v

"""Rules that find the size of the step themselves: L-DoG and Polyak's step size."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.engine import sum_of_squares
from gradxform.errors import require_one_of
from gradxform.leaves import Path, dtype_of, is_hole, map_with_paths, with_paths
from gradxform.numerics import (
    abs_sq,
    at_least_float32,
    cast,
    plus,
    promote,
    real_dtype,
    scalar,
    within,
)
from gradxform.numerics.roots import one_over_root, root
from gradxform.transforms.together import ScaledTogether
from gradxform.transforms.tree_rules import as_loss
from gradxform.types import (
    Array,
    Choice,
    DType,
    Finite,
    Limit,
    NonNegative,
    NonNegativeSlot,
    Positive,
    Slot,
)


class ScaleByDistanceOverGradientsState(NamedTuple):
    """State of `scale_by_distance_over_gradients`."""

    max_dist: NonNegativeSlot  # a scalar per parameter, at least float32; the largest distance d
    grad_sum_of_squares: NonNegativeSlot  # a scalar per parameter, at least float32; the sum s
    init_params: Slot  # like params, in param_dtype; the first parameter p_0


@transform
class scale_by_distance_over_gradients(ArrayRule):
    """Rescale updates as L-DoG does: each array by its distance over the root of summed squares.

    Update rule for each array, with p_0 = the parameter at `init`, from d = reps_rel (1 + |p_0|)
    and s = 0:

        d <- max(d, |p - p_0|)
        s <- s + |g|^2
        u = global_scale d / sqrt(s + eps) g

    A learning rate need not be chosen: set global_scale to -1 and apply u. Evaluate an average of
    the parameters, as the authors do.

    Parameters in bfloat16 or float16 round the first steps away, and never move: wrap the optimizer
    in `master_weights(...)`.

    Args:
      reps_rel: the size of the first step relative to 1 + |p_0|, greater than 0: 1e-6, or 1e-4 with
        batch normalization.
      eps: added under the root, at least 0.
      param_dtype: the dtype of p_0. Defaults to the parameter's, or float32 for 16-bit ones.
      global_scale: a factor, finite; -1 to descend.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Ivgi et al., DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule,
    2023, L-DoG.
    """

    reps_rel: Positive = 1e-6
    eps: NonNegative = 1e-8
    param_dtype: DType = None
    global_scale: Finite = 1.0

    begins_small = True
    State = ScaleByDistanceOverGradientsState
    copies = ("init_params",)
    locality = "array"
    sees_pieces = True
    handles_complex = True
    needs_params = True

    def init(self, params):
        """Return the first distance, a sum of 0, and a copy of the parameters."""
        squares = {path: _squares(p) for path, p in with_paths(params) if not is_hole(p)}
        squares = engine.over_all_shards(squares)

        def first_distance(path: Path, p: Array) -> Array:
            distance = jnp.asarray(self.reps_rel * (1 + root(squares[path])))
            return cast(distance, real_dtype(at_least_float32(dtype_of(p))))

        def first_sum(p: Array) -> Array:
            return jnp.zeros((), real_dtype(at_least_float32(dtype_of(p))))

        def copy(p: Array) -> Array:
            dtype = self.param_dtype or at_least_float32(dtype_of(p))
            if jnp.iscomplexobj(p):
                dtype = promote(dtype, jnp.complex64)
            # A copy, never the parameter's own buffer: both may be donated.
            return jnp.array(p, dtype, copy=True)

        return ScaleByDistanceOverGradientsState(
            max_dist=map_with_paths(first_distance, params),
            grad_sum_of_squares=jax.tree.map(first_sum, params),
            init_params=jax.tree.map(copy, params),
        )

    def rule(self, g, d, s, p_0, p):
        """Return the update, the distance, the sum and p_0."""
        distance, square = engine.array_sums(abs_sq(p - p_0), abs_sq(g))
        d = jnp.maximum(d, root(distance))
        s = s + square
        rate = d * jnp.where(s > 0, one_over_root(plus(s, self.eps)), 0)
        return (self.global_scale * rate) * g, d, s, p_0


def _squares(p: Any) -> Array:
    return jnp.sum(abs_sq(cast(jnp.asarray(p), at_least_float32(dtype_of(p)))))


@transform
class scale_by_polyak(ScaledTogether):
    """Rescale updates by Polyak's step size: the loss above its least value over |g|^2.

    Update rule, with |g| the Euclidean norm over every entry of the tree, in float32 or wider, and
    the extra argument `value` of `update`, the loss:

        u = g min((value - f_min) / (|g|^2 + eps), max_learning_rate)

    and 0 if |g|^2 + eps is at most 2.2e-16. The incoming updates must be the gradients of this loss
    (on the same batch), or minus the gradients.

    Args:
      f_min: the least value of the loss, finite: 0 for a model that can fit its data.
      max_learning_rate: the largest step size, at least 0; infinite for no bound.
      eps: added to the squared norm, at least 0.
      variant: "sps"; or "sps+", where a loss below f_min counts as f_min, not as a step uphill.

    Raises:
      TypeError: at update, if `value` is missing or is not a real scalar.

    Reference: Loizou et al., Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for
    Fast Convergence, 2021, SPS_max; Garrigos et al., Function Value Learning: Adaptive Learning
    Rates Based on the Polyak Stepsize and Function Splitting in ERM, 2023, SPS+.
    """

    f_min: Finite = 0.0
    max_learning_rate: Limit = 1.0
    eps: NonNegative = 0.0
    variant: Choice = "sps"

    def __post_init__(self) -> None:
        require_one_of(self, "variant", ("sps", "sps+"))

    def prepare(self, updates, state, params, *, value):
        """Return the step size for all leaves."""
        loss = as_loss(self, value)
        square = plus(scalar(sum_of_squares(updates)), self.eps)
        gap = loss - self.f_min
        if self.variant == "sps+":
            gap = jnp.maximum(gap, 0)
        is_flat = square <= float(np.finfo(np.float64).eps)
        step = gap / jnp.where(is_flat, 1, square)
        largest = within(self.max_learning_rate, step.dtype)
        return state, jnp.where(is_flat, 0, jnp.minimum(step, largest))

"""Clipping what stands out from the gradients so far."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.engine import global_norm
from gradxform.numerics import (
    over,
    safe_increment,
    scalar,
    scalar_dtype,
    shrinking,
    within,
)
from gradxform.numerics.roots import root
from gradxform.slots import zero_count, zero_scalars_like
from gradxform.transforms.matrices.array_norms import array_norm
from gradxform.transforms.together import KeptTogether, ScaledTogether
from gradxform.types import (
    Array,
    Bound,
    Decay,
    NonNegative,
    NonNegativeInt,
    Range,
    Scalar,
    Slot,
)

# How many numbers a variance begins with.
Sample = Annotated[int, Range("at least 2", lambda x: x >= 2)]


def next_spread(
    count: Array, mean: Array, var: Array, x: Array, decay: Scalar, sample: int
) -> tuple[Array, Array]:
    """Return the mean and variance of numbers with one more, `x`.

    They are exact over the first `sample` numbers, and moving averages from there on.

    Args:
      count: how many numbers there are already.
      mean: their mean.
      var: their variance, about their mean.
      x: the next number.
      decay: of the moving averages.
      sample: how many numbers they begin with.
    """
    share = jnp.where(count < sample, 1 / scalar(count + 1), scalar(1 - decay))
    new = mean + share * (x - mean)
    square = jnp.where(count < sample, (x - mean) * (x - new), jnp.square(x - new))
    return new, var + share * (square - var)


def _share(part: Any, count: Array) -> Array:
    """Return which part of the updates were clipped; 0 before the first."""
    return jnp.asarray(part) / jnp.maximum(count, 1)


class ZClipState(NamedTuple):
    """State of `zclip`."""

    count: Array  # int32 scalar; the number of norms in the statistics
    mean: Array  # scalar, at least float32; the mean of the norms after clipping
    var: Array  # scalar, at least float32; their variance
    total_clipped: Array  # int32 scalar; updates that were clipped since init

    def metrics(self) -> dict[str, Array]:
        """Return the numbers that `gradxform.metrics` shows."""
        return self._asdict() | {"clip_fraction": _share(self.total_clipped, self.count)}


@transform
class zclip(ScaledTogether):
    """Scale all updates down together if their norm is many deviations above its mean.

    Update rule, with N = |g| the Euclidean norm over every entry of the tree, and a = decay; over
    the first `warmup_steps` norms mu and v are their mean and variance, and u = g; from there on

        z = (N - mu) / (sqrt(v) + eps)
        N' = mu + z_threshold^2 / z sqrt(v)      if z > z_threshold, else N
        u = (N' / N) g
        mu <- a mu + (1 - a) N'
        v <- a v + (1 - a) (N' - mu)^2

    The higher the spike, the closer to the mean it is clipped. A norm that is infinite is a spike
    after the warm-up, and does not enter the statistics in it; a NaN enters neither, and stays NaN.
    Put `clip_by_global_norm` behind it for a bound during the warm-up. The eps is that of the
    authors' code; the paper does not have one.

    Args:
      decay: the decay a of mean and variance, in [0, 1).
      z_threshold: how many deviations above the mean are too many, greater than 0; infinite for no
        clipping.
      warmup_steps: the number of norms that the statistics begin with, at least 2.
      eps: added to the deviation, at least 0.

    Reference: Kumar et al., ZClip: Adaptive Spike Mitigation for LLM Pre-Training, 2025,
    Algorithm 1.
    """

    decay: Decay = 0.97
    z_threshold: Bound = 2.5
    warmup_steps: Sample = 25
    eps: NonNegative = 1e-6

    State = ZClipState
    step_fields = ()  # its count is of the norms in the statistics

    def init(self, params):
        """Return empty statistics."""
        zero = jnp.zeros((), scalar_dtype())
        return ZClipState(zero_count(), zero, jnp.zeros_like(zero), zero_count())

    def prepare(self, updates, state, params):
        """Return the state with this norm in its statistics, and the factor for all leaves."""
        mean, size = state.mean, scalar(global_norm(updates))
        deviation, threshold = root(state.var), scalar(self.z_threshold)
        z = over(size - mean, deviation + self.eps, self.eps)
        is_spike = (state.count >= self.warmup_steps) & (z > threshold)
        target = mean + threshold * (threshold / jnp.where(is_spike, z, 1)) * deviation
        clipped = jnp.where(is_spike, target, size)
        factor = jnp.where(is_spike, target / jnp.where(is_spike, size, 1), 1)
        old = state.count, mean, state.var
        spread = next_spread(*old, clipped, self.decay, self.warmup_steps)
        new = safe_increment(state.count), *spread
        # One norm that is not finite would stay in the statistics for good.
        is_finite = jnp.isfinite(clipped)
        count, mean, var = (jnp.where(is_finite, n, o) for n, o in zip(new, old, strict=True))
        total = jnp.where(is_spike, safe_increment(state.total_clipped), state.total_clipped)
        state = state._replace(count=count, mean=mean, var=var, total_clipped=total)
        return state, factor


class AdaGCState(NamedTuple):
    """State of `adagc`."""

    count: Array  # int32 scalar; the number of updates so far
    gamma: Slot  # a real scalar per parameter, at least float32; the usual norm; 0 before the first
    total_clipped: Slot  # an int32 scalar per parameter; how often it was clipped since init

    def metrics(self) -> dict[str, Array]:
        """Return the numbers that `gradxform.metrics` shows; the fraction is of all arrays."""
        totals = jax.tree.leaves(self.total_clipped)
        fraction = _share(sum(totals), self.count) / max(len(totals), 1)
        return {"count": self.count, "clip_fraction": fraction}


@transform
class adagc(ArrayRule):
    """Scale every array down to a little more than the usual norm of its own gradient.

    Update rule, with |G| the Euclidean norm over the whole tree and |g| that over one array, for
    the first `warmup_steps` updates

        u = g min(1, lambda_abs / |G|)
        gamma <- min(gamma, |u|)                   (at the first one gamma <- |u|)

    and from there on

        u = g min(1, lambda_rel gamma / |g|)
        gamma <- beta gamma + (1 - beta) |u|

    The bound follows every array by itself as its gradients shrink. It differs from the paper in
    arrays without a gradient: a norm of 0 leaves gamma unchanged. (After one zero in the warm-up
    the paper's gamma is 0, and so are all later updates of that array.) An infinite norm does not
    change gamma in the warm-up; a NaN never does, and stays NaN in its own array after the warm-up.

    Args:
      lambda_abs: the largest norm of the tree in the warm-up, greater than 0; may be infinite.
      lambda_rel: the largest norm of an array, as a multiple of gamma, greater than 0; infinite for
        no clipping.
      beta: the decay of gamma, in [0, 1).
      warmup_steps: how many updates are clipped together, at least 0.

    Reference: Wang et al., AdaGC: Improving Training Stability for Large Language Model
    Pretraining, 2025, Algorithm 1.
    """

    lambda_abs: Bound = 1.0
    lambda_rel: Bound = 1.05
    beta: Decay = 0.98
    warmup_steps: NonNegativeInt = 100

    State = AdaGCState
    locality = "tree"
    rule_locality = "array"
    asks_for_sums = True
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return a count of 0, and for every parameter no norm yet and no clipping."""
        gamma = zero_scalars_like(params)
        clipped = jax.tree.map(lambda p: zero_count(), params)
        return AdaGCState(zero_count(), gamma, clipped)

    def prepare(self, updates, state, params):
        """Return the advanced count, whether this is the warm-up, and its factor."""
        factor = shrinking(scalar(global_norm(updates)), self.lambda_abs)
        count = safe_increment(state.count)
        return state._replace(count=count), state.count < self.warmup_steps, factor

    def rule(self, g, gamma, clips, p, warm, factor):
        """Return the scaled update, the usual norm, and how often there was one above it."""
        size, begun = array_norm(g), gamma > 0
        bound = jnp.where(begun, within(self.lambda_rel, size.dtype) * gamma, jnp.inf)
        h = jnp.where(warm, factor, shrinking(size, bound))
        length = jnp.where(warm, factor * size, jnp.minimum(size, bound))
        later = jnp.where(
            warm, jnp.minimum(gamma, length), self.beta * gamma + (1 - self.beta) * length
        )
        counts = (length > 0) & (length < jnp.inf)
        gamma = jnp.where(counts, jnp.where(begun, later, length), gamma)
        return h * g, gamma, jnp.where(h < 1, safe_increment(clips), clips)


class GradNormToClipToZeroState(NamedTuple):
    """State of `grad_norm_to_clip_to_zero`."""

    total_zeroed: Array  # int32 scalar; updates that were replaced by zeros since init


@transform
class grad_norm_to_clip_to_zero(KeptTogether):
    """Replace all updates by zeros if their norm is too large, infinite or NaN.

    Update rule, with |g| the Euclidean norm over every entry of the tree, in float32 or wider:

        u = g      if |g| is finite and at most max_norm, else 0

    What comes after it in a chain still runs, with zeros: momentum goes on, moments and weights
    decay. `apply_if_finite` skips the step instead. In RETURNN this is an option of the training,
    of the same name.

    Args:
      max_norm: the largest norm, greater than 0; infinite for any that is finite.
    """

    max_norm: Bound

    State = GradNormToClipToZeroState

    def init(self, params):
        """Return a count of 0."""
        return GradNormToClipToZeroState(total_zeroed=zero_count())

    def prepare(self, updates, state, params):
        """Return the state, and whether the updates are kept."""
        size = scalar(global_norm(updates))
        keep = (size < jnp.inf) & (size <= within(self.max_norm, size.dtype))
        total = jnp.where(keep, state.total_zeroed, safe_increment(state.total_zeroed))
        return state._replace(total_zeroed=total), keep

"""RAdam's rectification: how far an average of squares can be trusted, as a warm-up."""

import math
from typing import Any

import jax.numpy as jnp

from gradxform.errors import require_at_least, require_finite
from gradxform.numerics import scalar
from gradxform.schedules.schedule import Schedule, as_count, number_of_field
from gradxform.types import Array, Decay, Scalar
from gradxform.values.fields import value


@value
class rectified_warmup_schedule(Schedule):
    """Warm up from 0 to 1 as RAdam does, while its average of squares sees more gradients.

    Value, with t = n + 1, r_inf = 2 / (1 - b2) - 1 and r = r_inf - 2 t b2^t / (1 - b2^t), the
    number of gradients that the average has seen:

        y(n) = sqrt((r - 4) (r - 2) r_inf / ((r_inf - 4) (r_inf - 2) r))      where r >= threshold
        y(n) = 0                                                              before

    A factor for the learning rate of an optimizer that divides by the root of such an average:
    `product_schedule(learning_rate, rectified_warmup_schedule(b2))`. `scale_by_radam` has it built
    in, but steps without dividing before. With b2 at most 0.6 it is 0 for all steps.

    Args:
      b2: the decay of the average, in [0, 1).
      threshold: the least r of a step, at least 4; below 4, the root is not a real number.

    Reference: Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2020,
    Algorithm 2.
    """

    b2: Decay = 0.999
    threshold: float = 5.0

    def __post_init__(self) -> None:
        check_threshold(self)

    def __call__(self, count: Any) -> Array:
        """Return the factor."""
        b2, threshold = number_of_field(self.b2), number_of_field(self.threshold)
        is_defined, c = rectification(b2, scalar(as_count(count)) + 1, threshold)
        return jnp.where(is_defined, c, 0)


def check_threshold(part: Any) -> None:
    """Require the threshold of a part to be one from which its rectification is defined."""
    require_at_least(part, 4, "threshold")
    require_finite(part, "threshold")


def rectification(b2: Scalar, count: Array, threshold: Scalar) -> tuple[Array, Array]:
    """Return whether r has reached the threshold, and c (1 where it has not).

    While b2^t is near 1, r is a small difference of large numbers: 0.02 off at step 6 in float32.
    It also equals t - (2 / x) (k(t x / 2) - k(x / 2)) with x = -log b2 and k(y) = y coth(y) - 1,
    where nothing cancels as long as t x is small.
    """
    # 0 does not have a logarithm; for it, any large x gives r = r_inf at once, as it should be.
    if isinstance(b2, float):
        x = scalar(-math.log(max(b2, 1e-30)))
    else:
        x = -jnp.log(jnp.maximum(b2, 1e-30))
    r_inf = 2 / (1 - b2) - 1
    t = scalar(count)
    early = t - (2 / x) * (_coth(t * x / 2) - _coth(x / 2))
    r = jnp.where(t * x < 1, early, r_inf - 2 * t / jnp.expm1(t * x))
    is_defined = (r >= threshold) & (r_inf > 4)
    square = (r - 4) / (r_inf - 4) * (r - 2) / (r_inf - 2) * r_inf / r
    return is_defined, jnp.where(is_defined, jnp.sqrt(jnp.where(is_defined, square, 1)), 1)


def _coth(y: Array) -> Array:
    """Return y coth(y) - 1 for y below 0.5, by its series."""
    z = jnp.minimum(y, 0.5) ** 2
    return z * (1 / 3 - z * (1 / 45 - z * (2 / 945 - z * (1 / 4725 - z * (2 / 93555)))))

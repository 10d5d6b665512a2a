"""Powers of 2 that divide gradients and lengths of a loss, and how long to step first."""

import jax.numpy as jnp
from jax import lax

from gradxform.numerics import abs_sq, over
from gradxform.numerics.overflow import settled
from gradxform.numerics.roots import root
from gradxform.transforms.lbfgs import more_thuente
from gradxform.types import Array

__all__ = []

# The first step promises a decrease of at least so many times the roundings of the value, so that
# they cannot hide it, and at most so many times the value: in other units of the loss or of the
# parameters, min(|g|, 1) may be too short or too long by many decades.
LEAST_PROMISED, MOST_PROMISED = 8, 2.0**20

# Sizes of gradients and lengths beyond these are divided. They and the shifts are those of float32,
# in which parameters may be while scalars are wider. A gradient shrinks from where it begins.
SMALL, LARGE = 2.0**-20, 2.0**42
FAR, NEAR = 2.0**64, 2.0**63  # the square of 2.0**64, in derivatives, would be infinite


def power_of(size: Array) -> Array:
    """Return the power of 2 by which a size is divided: 1 unless squares would leave the range."""
    size = lax.stop_gradient(size)  # the power steps from one number to the next
    power = lax.reduce_precision(jnp.clip(size, 2.0**-120, 2.0**120), jnp.finfo(size.dtype).nexp, 0)
    is_far = (size > LARGE) | ((size > 0) & (size < SMALL))
    return jnp.where(is_far & jnp.isfinite(size), power, 1)


def squares_in_range(g: Array) -> tuple[Array, Array, Array]:
    """Return |g|^2, also for a gradient that is divided by `FAR`, and for one multiplied by `NEAR`.

    One of them is in the range of the dtype, whatever the scale is that the first point gives.
    """
    small = jnp.where(jnp.abs(g) <= SMALL, g, 0)  # all of a gradient that is multiplied
    far, near = settled(g / FAR), settled(small * NEAR)
    return jnp.sum(abs_sq(g)), jnp.sum(abs_sq(far)), jnp.sum(abs_sq(near))


def square_of_multiple(squares: tuple[Array, ...], factor: Array) -> Array:
    """Return |factor g|^2 from the `squares`."""
    squared, far, near = squares
    # Lengths are multiplied, not their squares: a compiler may form the squares of the factors.
    far = jnp.square(root(far) * (FAR * factor))
    near = jnp.square(root(near) * (factor / NEAR))
    return jnp.where(factor < 1, far, jnp.where(factor > 1, near, squared))


def first_step(
    value: Array, squared: Array, last: Array, scale: Array, unit: Array
) -> tuple[Array, Array, Array]:
    """Return a first curvature, how long a first step may be, and whether it had to be raised.

    The step to try is -g, before anything is divided, as in SciPy's L-BFGS-B. It is as long as the
    units of the loss and of the parameters make it. |value| / |g| is a length in the units of the
    parameters, over which the value would vanish: it bounds the step from both sides.

    Args:
      value: the value.
      squared: |g|^2, of the entries that may move.
      last: the length of the last step if it was as long as a search goes, else 0. Where the loss
        is concave, steps tell no curvature, and the next one is as long.
      scale: what g was divided by.
      unit: what lengths are divided by.
    """
    size = root(squared)
    plain = size * (scale / unit)
    natural = jnp.abs(value) / jnp.where(size > 0, size, 1)
    says = (natural > 0) & jnp.isfinite(natural) & (size > 0)
    roundings = more_thuente.ROUNDINGS * jnp.finfo(natural.dtype).eps
    least = LEAST_PROMISED * roundings * natural
    is_raised, is_cut = says & (plain < least), says & (plain > MOST_PROMISED * natural)
    theta = jnp.where(is_raised, over(size, least, 0), unit / scale)
    theta = jnp.where(is_cut, over(size, MOST_PROMISED * natural, 0), theta)
    is_longer = (last > 0) & (size < theta * last)
    theta = jnp.where(is_longer, over(size, last, 0), theta)
    theta = jnp.where((theta > 0) & jnp.isfinite(theta), theta, 1)
    reach = jnp.maximum(1 / unit, jnp.where(says, least, 0))
    return theta, jnp.maximum(reach, jnp.where(is_longer, last, 0)), is_raised | is_longer

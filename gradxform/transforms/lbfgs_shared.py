"""What `step_by_lbfgs` and `step_by_lbfgsb` share: the scale of the loss, pairs, and progress."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform.numerics import abs_sq, cast
from gradxform.types import Array

__all__ = []

# A sum of |g| beyond these is scaled. They and the shifts are those of float32, in which parameters
# may be while scalars are wider.
SMALL, LARGE = 2.0**-42, 2.0**42
SHIFT = 2.0**64


def scale_of(length: Array, value: Array) -> Array:
    """Return the power of 2 by which the loss is divided: 1 unless squares of g leave the range.

    Args:
      length: the sum of |g| at the first point.
      value: the loss there, which must not overflow when it is divided.
    """
    wanted = jnp.clip(jnp.maximum(length, jnp.abs(value) * 2.0**-100), 2.0**-120, 2.0**120)
    power = lax.reduce_precision(wanted, jnp.finfo(wanted.dtype).nexp, 0)
    is_far = (length > LARGE) | ((length > 0) & (length < SMALL))
    return jnp.where(is_far & jnp.isfinite(value), power, 1)


def shifted_squares(g: Array) -> tuple[Array, Array]:
    """Return |g|^2 for a gradient that is divided by `SHIFT`, and for one that is multiplied."""
    return jnp.sum(abs_sq(g / SHIFT)), jnp.sum(abs_sq(g * SHIFT))


def scaled_square(squared: Array, shifted: tuple[Array, Array], scale: Array) -> Array:
    """Return |g / scale|^2, from |g|^2 and the `shifted_squares`."""
    long, short = shifted
    long, short = long * jnp.square(SHIFT / scale), short * jnp.square(1 / SHIFT / scale)
    return jnp.where(scale > 1, long, jnp.where(scale < 1, short, squared))


def is_curved(s_s: Array, s_y: Array, y_y: Array, g_g: Array) -> Array:
    """Return whether a pair is worth storing: whether <s, y> is more than roundings.

    Args:
      s_s: |s|^2, for the step s.
      s_y: <s, y>, for the change y of the gradient.
      y_y: |y|^2.
      g_g: |g|^2 for the gradient g before the step.
    """
    bound = jnp.finfo(s_y.dtype).eps * jnp.sqrt(s_s) * (jnp.sqrt(y_y) + jnp.sqrt(g_g))
    return (s_y > bound) & jnp.isfinite(s_y + y_y + bound)


def put(memory: Array, new: Array, place: Array, stored: Array) -> Array:
    """Return a leaf's memory with a new array at a place, if it is stored."""
    last = lax.dynamic_index_in_dim(memory, place, 0, keepdims=False)
    new = jnp.where(stored, cast(new, memory.dtype), last)
    return lax.dynamic_update_index_in_dim(memory, new, place, 0)


def progressed(
    state: Any, accepted: Array, value: Array, squared: Array, noise: Array
) -> dict[str, Array]:
    """Return the fields of the state that say how long there has not been progress.

    Args:
      state: the state before.
      accepted: whether the point is accepted.
      value: the value at the accepted point.
      squared: the square of the gradient that is to vanish, there.
      noise: differences of values up to this one are roundings.
    """
    # Before the first accepted point both are infinite.
    lower = (state.last_value - value > noise) | (squared < 0.81 * state.last_squared)
    lower = accepted & lower
    return {
        "idle": jnp.where(lower, 0, state.idle + accepted.astype(state.idle.dtype)),
        "last_value": jnp.where(lower, value, state.last_value),
        "last_squared": jnp.where(lower, squared, state.last_squared),
    }

"""Projections of arrays onto a simplex: by how much to shrink them, with a derivative."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.numerics import cast
from gradxform.types import Array


@jax.custom_jvp
def threshold_of(values: Array, scale: Array) -> Array:
    """Return t such that the sum of max(values - t, 0) is `scale`; the largest value must be 0."""
    # t is at least -scale: entries below do not count, and their sum could be infinite. So could
    # be that of as many scales; a power of two divides it exactly.
    most = float(jnp.finfo(values.dtype).max) / (2 * values.size + 2)
    part = jnp.where(scale > most, 0.5 ** math.ceil(math.log2(2 * values.size + 2)), 1)
    part, least = cast(part, values.dtype), -scale
    falling = part * -jnp.sort(-jnp.where(values < least, least, values))
    counts = jnp.arange(1, values.size + 1, dtype=values.dtype)
    excess = (jnp.cumsum(falling) - part * scale) / counts
    supported = jnp.count_nonzero(falling > excess)
    return excess[jnp.maximum(supported, 1) - 1] / part


@threshold_of.defjvp
def _threshold_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    values, scale = primals
    values_dot, scale_dot = tangents
    threshold = threshold_of(values, scale)
    supported = values > threshold
    size = jnp.maximum(jnp.sum(supported, dtype=values.dtype), 1)
    change = jnp.sum(jnp.where(supported, values_dot, jnp.zeros_like(values_dot))) - scale_dot
    return threshold, change / size


def onto_simplex(leaves: list[Array], scale: Array) -> list[Array]:
    """Return the nearest arrays that are at least 0 and have the sum `scale`."""
    # Equal shifts of all entries do not change the result. Without one, large entries would round
    # the threshold.
    largest = jax.lax.stop_gradient(jnp.max(one_vector(leaves)))
    shifted = [x - largest for x in leaves]
    threshold = threshold_of(one_vector(shifted), scale)
    return [_shrunk_onto_simplex(x, threshold) for x in shifted]


def _shrunk_onto_simplex(x: Array, threshold: Array) -> Array:
    """Return max(x - threshold, 0); NaN stays."""
    return jnp.where(x <= threshold, jnp.zeros_like(x), x - threshold)


def one_vector(leaves: list[Array]) -> Array:
    """Return the entries of all arrays as one vector."""
    return jnp.concatenate([x.reshape(-1) for x in leaves])

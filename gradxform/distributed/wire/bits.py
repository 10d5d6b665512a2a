"""Sending floats of few bits as integers, which no compiler widens on their way."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform.types import Array


def to_bits(x: Array) -> Array:
    """Return floats of at most 16 bits as unsigned integers, and any other array as it is."""
    dtype = jnp.dtype(x.dtype)
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize > 2:
        return x
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * dtype.itemsize}"))


def from_bits(x: Array, dtype: Any) -> Array:
    """Return the array of that dtype from `x`: undo `to_bits`."""
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)

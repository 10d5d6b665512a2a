"""Norms with a gradient everywhere, also where they are 0."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform.errors import shown
from gradxform.numerics import abs_sq, at_least_float32, cast, real_dtype
from gradxform.types import Array


def safe_norm(
    x: Any,
    min_norm: Any,
    ord: int | float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Array:
    """Return `max(norm(x), min_norm)`, with a gradient of 0 where the norm is not larger.

    JAX's gradient of that expression is NaN at 0. The array is divided by its largest entry first,
    so that no square overflows or underflows, and 16-bit arrays are summed in float32.

    Args:
      x: an array.
      min_norm: the smallest norm to return.
      ord: which norm, as in `jax.numpy.linalg.norm`; not 0.
      axis: the axis of vectors, or the two axes of matrices. By default all of `x` is one vector or
        matrix.
      keepdims: whether the axes stay, with length 1.

    Raises:
      ValueError: if `ord` is 0.
    """
    if ord == 0 and not isinstance(ord, str):
        raise ValueError(
            "safe_norm: ord must not be 0, which counts entries and is not differentiable; got "
            f"{shown(ord)}."
        )
    x, dtype = _wide_and_real(x)
    largest = lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0))
    # Infinity and NaN stay in the array.
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)

    def norm(x: Array) -> Array:
        size = jnp.linalg.norm(x / scale, ord=ord, axis=axis, keepdims=True)
        return size * scale

    bound = cast(jnp.asarray(min_norm), largest.dtype)
    small = lax.stop_gradient(norm(x)) <= bound
    size = jnp.where(small, bound, norm(jnp.where(small, jnp.ones_like(x), x)))
    return cast(size if keepdims else jnp.squeeze(size, axis=axis), dtype)


def safe_root_mean_squares(x: Any, min_rms: Any) -> Array:
    """Return `max(sqrt(mean(|x|^2)), min_rms)`, with a gradient of 0 where the root is not larger.

    As `safe_norm`, this neither overflows nor underflows; the root of an empty array is `min_rms`.

    Args:
      x: an array.
      min_rms: the smallest value to return.
    """
    x, dtype = _wide_and_real(x)
    largest = lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)

    def root(x: Array) -> Array:
        return jnp.sqrt(jnp.sum(abs_sq(x / scale)) / max(x.size, 1)) * scale

    bound = cast(jnp.asarray(min_rms), largest.dtype)
    small = lax.stop_gradient(root(x)) <= bound
    return cast(jnp.where(small, bound, root(jnp.where(small, jnp.ones_like(x), x))), dtype)


def _wide_and_real(x: Any) -> tuple[Array, Any]:
    """Return an array in float32 or wider, and the real dtype of its norm."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(jnp.float32)
    return cast(x, at_least_float32(x.dtype)), real_dtype(x.dtype)

"""Slots, the arrays that a rule remembers: like the parameters, and wide enough to move.

For the `init` of your own rule. Unlike the functions of these names in `gradxform.tree`, which keep
the dtype, these make float32 arrays for 16-bit parameters.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer
from gradxform.leaves import dtype_of, is_abstract, like_params
from gradxform.numerics import at_least_float32, promote, real_dtype
from gradxform.types import PyTree


def zeros_like(params: PyTree, dtype: Any = None) -> PyTree:
    """Return one array of zeros per parameter, as an optimizer's slot.

    Args:
      params: the parameters; holes stay.
      dtype: the dtype of the zeros. By default the parameter's own, but float32 for a 16-bit
        parameter, because a moving average in bfloat16 stops moving. For a complex parameter a
        real dtype means the least complex one that holds it: no imaginary part is lost.
    """
    return full_like(params, 0, dtype)


def full_like(params: PyTree, fill: float, dtype: Any = None) -> PyTree:
    """Return one array filled with `fill` per parameter; dtypes as in `zeros_like`."""
    return jax.tree.map(lambda p: _filled(p, fill, dtype_of_slot(p, dtype)), params)


def dtype_of_slot(p: Any, dtype: Any = None) -> Any:
    """Return the dtype of the slot of a parameter, as `zeros_like` says."""
    kind = dtype_of(p)
    wide = jnp.dtype(dtype or at_least_float32(kind))
    is_complex = jnp.issubdtype(kind, jnp.complexfloating)
    return promote(wide, jnp.dtype(jnp.complex64)) if is_complex else wide


def real_zeros_like(params: PyTree, dtype: Any = None) -> PyTree:
    """Return real zeros per parameter, also for a complex one: for sums of |g|^2."""
    return real_full_like(params, 0, dtype)


def real_full_like(params: PyTree, fill: float, dtype: Any = None) -> PyTree:
    """Return one real array filled with `fill` per parameter, also for a complex one."""

    def make(p: Any) -> jax.Array:
        return _filled(p, fill, dtype or real_dtype(at_least_float32(dtype_of(p))))

    return jax.tree.map(make, params)


def zero_scalars_like(params: PyTree) -> PyTree:
    """Return one real zero per parameter, also for a complex one: for norms of whole arrays."""
    return jax.tree.map(lambda p: jnp.zeros((), real_dtype(at_least_float32(dtype_of(p)))), params)


def zero_count() -> jax.Array:
    """Return the count of steps before the first one, an int32 scalar."""
    return jnp.zeros((), jnp.int32)


def _filled(p: Any, fill: float, dtype: Any) -> Any:
    is_here = isinstance(p, jax.Array) and not is_tracer(p) and not p.committed
    if is_here and isinstance(fill, int | float):
        # One compiled call for two operations, each of which takes as long to begin.
        return _full_array(p.shape, np.asarray(fill, dtype))
    array = jnp.full_like(p, fill, dtype=dtype)
    # Under jit, XLA puts an array that depends on no input on one device, wherever the parameter
    # is. Adding a term that is always 0 but reads the parameter carries its sharding over.
    return array + (jnp.real(p) < -jnp.inf).astype(dtype) if is_tracer(p) else array


@functools.partial(jax.jit, static_argnums=0)
def _full_array(shape: tuple[int, ...], fill: Any) -> jax.Array:
    return jnp.full(shape, fill)


def zeros_along(p: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return zeros, one for each index along `axes` of `p`, spread over devices as those are."""
    if is_abstract(p):
        return jnp.zeros([n for i, n in enumerate(p.shape) if i in axes], dtype)
    others = tuple(i for i in range(jnp.ndim(p)) if i not in axes)
    return jnp.any(jnp.real(p) < -jnp.inf, axis=others).astype(dtype)


def zeros_of_sums(p: Any, axes: tuple[int, ...], of_all: Any = None) -> Any:
    """Return real zeros for sums over `axes` of a parameter, which stay with length 1.

    Args:
      p: the parameter, or the piece of it that a device has.
      axes: the axes that are summed over.
      of_all: the parameter, if `p` is a piece; its sums are the same on several devices.
    """
    p = p if of_all is None or of_all is p else like_params(p)
    kept = tuple(i for i in range(jnp.ndim(p)) if i not in axes)
    zeros = zeros_along(p, kept, real_dtype(at_least_float32(dtype_of(p))))
    return jnp.expand_dims(zeros, axes)

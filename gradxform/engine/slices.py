"""Slices of arrays that may be in the memory of the host, also under `jax.vmap`.

JAX batches a slice as a gather, which needs its indices in the same memory. A slice of all arrays
of a batch at one place is a slice of a longer array.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from gradxform.leaves.storage import is_on_host
from gradxform.types import Array


def slice_of_axis(x: Array, start: Any, count: int, axis: int) -> Array:
    """Return `count` indices of an axis, from `start` on."""
    if not is_on_host(x):
        return lax.dynamic_slice_in_dim(x, start, count, axis)

    @custom_vmap
    def one(x: Array, start: Any) -> Array:
        return lax.dynamic_slice_in_dim(x, start, count, axis)

    @one.def_vmap
    def batched(size: int, in_batched: Any, x: Array, start: Any) -> tuple[Array, bool]:
        _check_place(in_batched[-1])
        return slice_of_axis(x, start, count, axis + 1), True

    return one(x, start)


def with_slice_of_axis(x: Array, new: Array, start: Any, axis: int) -> Array:
    """Return the array with other indices of an axis, from `start` on."""
    if not is_on_host(x):
        return lax.dynamic_update_slice_in_dim(x, new, start, axis)

    @custom_vmap
    def one(x: Array, new: Array, start: Any) -> Array:
        return lax.dynamic_update_slice_in_dim(x, new, start, axis)

    @one.def_vmap
    def batched(size: int, in_batched: Any, x: Array, new: Array, start: Any) -> Any:
        _check_place(in_batched[-1])
        pairs = zip((x, new), in_batched, strict=False)
        x, new = (a if is_batched else _repeated(a, size) for a, is_batched in pairs)
        return with_slice_of_axis(x, new, start, axis + 1), True

    return one(x, new, start)


def _repeated(x: Array, size: int) -> Array:
    """Return an array as a batch of equal ones."""
    return jnp.broadcast_to(x, (size, *x.shape))


def _check_place(is_batched: bool) -> None:
    if is_batched:
        raise TypeError("a slice of an array in the memory of the host is at one place for all")

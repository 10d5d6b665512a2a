"""Sizes of gradients: the largest magnitude of their entries, infinite if one is not finite.

A flag would not do for a guard that scales the gradients first, such as `loss_scale`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.errors import shown
from gradxform.leaves import dtype_of, leaves_of
from gradxform.leaves.row_sparse import RowSparse
from gradxform.numerics import at_least_float32, cast, times
from gradxform.types import Array, PyTree


class Sizes(NamedTuple):
    """The largest magnitudes of the entries of a tree; infinite if one is NaN or infinite."""

    by_dtype: Mapping[Any, Array]  # a scalar for the leaves of each dtype, in float32 or wider

    def finite(self) -> Array:
        """Return whether every entry is finite, a boolean scalar."""
        flags = [jnp.isfinite(size) for size in self.by_dtype.values()]
        return jnp.all(jnp.stack(flags)) if flags else jnp.ones((), jnp.bool_)

    def times(self, factor: Array) -> "Sizes":
        """Return the sizes of the tree times a positive factor, in float32 or wider."""
        return Sizes({dtype: times(factor, size) for dtype, size in self.by_dtype.items()})


def sizes_of(tree: PyTree) -> Sizes:
    """Return the largest magnitudes of the entries that this device has.

    Raises:
      TypeError: if a leaf is not an array of numbers.
    """
    by_dtype: dict[Any, list[Array]] = {}
    for size in engine.map_rows(_leaf_size_or_infinite, [leaves_of(tree)]):
        by_dtype.setdefault(size.dtype, []).append(size)
    return Sizes(
        {dtype: _largest_size_or_infinite(jnp.stack(sizes)) for dtype, sizes in by_dtype.items()}
    )


def _largest_size_or_infinite(sizes: Array) -> Array:
    # A maximum over devices may lose NaN, but not an infinity.
    finite = jnp.all(jnp.isfinite(sizes))
    return jnp.where(finite, jnp.max(sizes), jnp.full((), jnp.inf, sizes.dtype))


def entries_of_leaf(x: Any) -> Any:
    """Return the entries of a leaf; for a RowSparse its values, with zeros for padding."""
    return x.with_values(x.values).values if isinstance(x, RowSparse) else x


def _leaf_size_or_infinite(x: Any) -> Array:
    x = entries_of_leaf(x)
    if not jnp.issubdtype(dtype_of(x), jnp.number):
        raise TypeError(f"all_finite: tree must be a tree of numbers, got {shown(x)}.")
    if jnp.iscomplexobj(x):  # the absolute value of a finite number may overflow
        return jnp.maximum(_leaf_size_or_infinite(jnp.real(x)), _leaf_size_or_infinite(jnp.imag(x)))
    size = jnp.abs(x)
    if jnp.issubdtype(size.dtype, jnp.inexact):  # an infinity is not lost
        size = jnp.where(size == size, size, jnp.full((), jnp.inf, size.dtype))
    # Unlike `all`, a maximum does not need an array of booleans on the CPU.
    largest = jnp.max(size, initial=0)
    return cast(largest, at_least_float32(largest.dtype))

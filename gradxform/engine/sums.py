"""Sums over whole trees."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import Tracer
from gradxform.engine import shards
from gradxform.engine.calls import compiled_calls
from gradxform.engine.chunks import chunked, leaf_signatures, places
from gradxform.engine.lift import map_rows
from gradxform.errors import shown
from gradxform.leaves import dtype_of
from gradxform.leaves.row_sparse import RowSparse
from gradxform.numerics import (
    abs_sq,
    add,
    at_least_float32,
    cast,
    promote,
    real_dtype,
    scalar,
    scalar_dtype,
)
from gradxform.numerics.roots import root
from gradxform.types import Array, PyTree, Updates

Columns = list[list[Any]]  # for each argument of a rule its leaves

# `lax` rather than `jnp` below: these run once per leaf, and an operator of `jnp` takes several
# times as long to trace.


def _sum_of_squares_of_leaves(xs: list[Any]) -> Array:
    sums = []
    for x in xs:
        if isinstance(x, RowSparse):
            sums.append(x.sum_of_squares())
            continue
        dtype = dtype_of(x)
        if not jnp.issubdtype(dtype, jnp.number):
            raise TypeError(f"global_norm: a tree of numbers is wanted, got {shown(x)}.")
        x = cast(jnp.asarray(x), at_least_float32(dtype))
        squares = abs_sq(x) if jnp.iscomplexobj(x) else lax.mul(x, x)
        sums.append(lax.reduce_sum(squares, tuple(range(x.ndim))))
    return functools.reduce(add, sums)


_SUMS = compiled_calls(_sum_of_squares_of_leaves)


def sum_of_squares(tree: PyTree) -> Array:
    """Return the sum of |x|^2 over every entry of every leaf, in float32 or wider."""
    sums = []
    for axes, leaves in shards.groups(tree):
        parts = []
        for chunk, alike in chunked(leaf_signatures(leaves), places(leaves)):
            xs = [leaves[i] for i in chunk]
            tracing = isinstance(jax.tree.leaves(xs)[0], Tracer)
            parts.append(_SUMS.choose(alike, tracing, brief=False)(xs))
        if parts or axes:
            total = functools.reduce(add, parts) if parts else jnp.zeros((), scalar_dtype())
            sums.append(shards.summed(total, axes) if axes else total)
    return functools.reduce(add, sums) if sums else jnp.zeros((), jnp.float32)


def global_norm(updates: PyTree) -> Array:
    """Return the Euclidean norm of a whole tree, sqrt(sum of |x|^2 over all leaves).

    The squares are formed and summed in float32 or wider, so that neither bfloat16 nor float16
    leaves saturate: 600 bfloat16 leaves of norm 1 have a norm of 24.49. An empty tree has norm 0.
    """
    return root(sum_of_squares(updates))


@dataclass(frozen=True)
class _Summed:
    """The sums of the arrays that `arrays` returns; equal for equal functions."""

    arrays: Callable[..., tuple[Any, ...]]

    def __call__(self, *row_and_scalars: Any) -> tuple[Array, ...]:
        dtype = at_least_float32(promote(*(dtype_of(x) for x in row_and_scalars)))
        real = real_dtype(dtype)
        # For a complex leaf the lift raises later, with its path.
        wide = [cast(jnp.real(x), real) for x in row_and_scalars]
        return tuple(cast(jnp.sum(x), real) for x in self.arrays(*wide))


def tree_sums(
    arrays: Callable[..., tuple[Any, ...]], updates: Updates, leaves: Columns, *scalars: Any
) -> Any:
    """Return the sum over the tree of every array that `arrays` returns for a row of leaves.

    The sums are scalars of the step, formed in float32 or wider. The arrays themselves are never
    stored. Where leaves are shards, the sums cover all devices.

    Args:
      arrays: a function `arrays(*row, *scalars)` of a few operations, defined at module level,
        that returns a tuple of arrays.
      updates: the tree, whose leaves the rows belong to.
      leaves: lists of leaves of equal length, as `columns_of` returns them.
      *scalars: further arguments of every call.
    """
    summed = _Summed(arrays)
    common = [scalar(x) for x in scalars]
    if not leaves[0]:  # no leaf has a gradient
        zeros = summed(*(jnp.zeros(0, scalar_dtype()) for _ in leaves), *common)
        return shards.totals_of_nothing(zeros)
    per_row = map_rows(summed, leaves, *common)
    every = [[scalar(x) for x in sums] for sums in per_row]
    return tuple(shards.total_over_shards(updates, every))

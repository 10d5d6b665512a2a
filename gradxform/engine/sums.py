"""Sums over whole trees."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import Tracer
from gradxform.engine import shards
from gradxform.engine.calls import compiled_calls
from gradxform.engine.chunks import chunked, devices, leaf_signature
from gradxform.errors import shown
from gradxform.leaves import dtype_of
from gradxform.leaves.row_sparse import RowSparse
from gradxform.numerics import abs_sq, add, at_least_float32, cast
from gradxform.numerics.roots import root
from gradxform.types import Array, PyTree

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
        for chunk, alike in chunked(list(map(leaf_signature, leaves)), list(map(devices, leaves))):
            xs = [leaves[i] for i in chunk]
            tracing = isinstance(jax.tree.leaves(xs)[0], Tracer)
            parts.append(_SUMS.choose(alike, tracing, brief=False)(xs))
        if parts:
            total = functools.reduce(add, parts)
            sums.append(shards.summed(total, axes) if axes else total)
    return functools.reduce(add, sums) if sums else jnp.zeros((), jnp.float32)


def global_norm(updates: PyTree) -> Array:
    """Return the Euclidean norm of a whole tree, sqrt(sum of |x|^2 over all leaves).

    The squares are formed and summed in float32 or wider, so that neither bfloat16 nor float16
    leaves saturate: 600 bfloat16 leaves of norm 1 have a norm of 24.49. An empty tree has norm 0.
    """
    return root(sum_of_squares(updates))

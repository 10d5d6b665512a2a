"""Norms of arrays of which a device may have a piece."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.errors import name_of
from gradxform.leaves import is_hole, path_str, shape_of, with_paths
from gradxform.numerics import norm, over
from gradxform.transforms.matrix_rule import axes_of_all
from gradxform.types import Array, Updates


class Whole(NamedTuple):
    """What a rule must know of an array of which it sees a piece."""

    axes: Any  # which of its axes make a matrix; None where that does not matter
    sides: tuple[int, int]  # the rows and columns of a matrix; 1 and the size of all without axes
    rows: tuple[str, ...]  # the mesh axes that cut the rows
    columns: tuple[str, ...]  # those that cut the columns


def wholes(part: Any, numbers: Any, updates: Updates) -> list[Whole]:
    """Return what a rule for matrices must know of each leaf.

    Raises:
      ValueError: if a leaf is not a matrix, or is cut along an axis that is split.
    """
    whole = engine.whole_shapes(updates)
    every = axes_of_all(part, numbers, whole, uneven=False)
    leaves = [(path, shape_of(x)) for path, x in with_paths(whole) if not is_hole(x)]
    cuts = engine.cuts_of(updates)
    out = []
    for (path, shape), axes, cut in zip(leaves, every, cuts, strict=True):
        inner = axes.expanded(shape)[0]
        moved = {name: axes.moved(dim) for name, dim in cut.cuts}
        if None in moved.values():
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} is cut along the axis that is split "
                "into matrices; cut it along another one."
            )
        rows, columns = (
            tuple(name for name, dim in moved.items() if dim in dims)
            for dims in (inner.rows, inner.columns)
        )
        out.append(Whole(axes, axes.sizes(shape)[1:], rows, columns))
    return out


def arrays_of(updates: Updates) -> list[Whole]:
    """Return what a rule for arrays of any shape must know of each leaf: its size."""
    leaves = [x for _, x in with_paths(engine.whole_shapes(updates)) if not is_hole(x)]
    sizes = [math.prod(shape_of(x)) for x in leaves]
    cuts = engine.cuts_of(updates)
    return [Whole(None, (1, n), (), cut.axes) for n, cut in zip(sizes, cuts, strict=True)]


def whole_norm(x: Array, axes: tuple[int, ...], names: tuple[str, ...]) -> Array:
    """Return the norm over some axes, and over the devices along mesh axes, without overflow."""
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0)
    own = largest * norm(over(x, largest, 0), axes)
    if not names:
        return own
    psum = engine.exchange_now().psum
    bound = psum(own, names)  # at least the norm, and at most as many times as there are devices
    return bound * jnp.sqrt(psum(over(own, bound, 0) ** 2, names))

"""Norms of arrays, also where a device has a piece of one."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.errors import name_of
from gradxform.leaves import is_hole, path_str, shape_of, with_paths
from gradxform.numerics import abs_sq, over
from gradxform.numerics.roots import norm, root
from gradxform.transforms.matrices.dimensions import axes_of_all
from gradxform.types import Array, Updates


class Whole(NamedTuple):
    """The whole array, as far as a rule that sees a piece of it must know it."""

    axes: Any  # which of its axes make a matrix; None where that does not matter
    sides: tuple[int, int]  # the rows and columns of a matrix; 1 and the size of all without axes
    rows: tuple[str, ...]  # the mesh axes that cut the rows
    columns: tuple[str, ...]  # those that cut the columns


def wholes_of(
    part: Any, numbers: Any, updates: Updates, leaves_out: bool = False
) -> list[Whole | None]:
    """Return what a rule for matrices must know of each leaf; None for those that it leaves alone.

    Args:
      part: the rule.
      numbers: its dimension numbers.
      updates: the updates.
      leaves_out: whether None among the numbers leaves a parameter alone.

    Raises:
      ValueError: if a leaf is not a matrix, or is cut along an axis that is split.
    """
    whole = engine.whole_shapes(updates)
    every = axes_of_all(part, numbers, whole, uneven=False, leaves_out=leaves_out)
    leaves = [(path, shape_of(x)) for path, x in with_paths(whole) if not is_hole(x)]
    cuts = engine.cuts_of(updates)
    out = []
    for (path, shape), axes, cut in zip(leaves, every, cuts, strict=True):
        if axes is None:
            out.append(None)
            continue
        inner = axes.expanded(shape)[0]
        places = {name: axes.moved(dim) for name, dim in cut.cuts}
        if None in places.values():
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} is cut along the axis that is split "
                "into matrices; cut it along another one."
            )
        rows, columns = (
            tuple(name for name, dim in places.items() if dim in dims)
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
    return whole_norms([x], axes, names)[0]


def whole_norms(xs: Sequence[Array], axes: tuple[int, ...], names: tuple[str, ...]) -> list[Array]:
    """Return `whole_norm` of several arrays, by as many exchanges as for one."""
    local = [_array_norm_here(x, axes) for x in xs]
    if not names:
        return local
    # At least the norms, and at most as many times as there are devices.
    bounds = engine.over_pieces(*((x, names) for x in local))
    shares = [over(x, bound, 0) ** 2 for x, bound in zip(local, bounds, strict=True)]
    squares = engine.over_pieces(*((x, names) for x in shares))
    return [bound * root(x) for bound, x in zip(bounds, squares, strict=True)]


def _array_norm_here(x: Array, axes: tuple[int, ...]) -> Array:
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0)
    return largest * norm(over(x, largest, 0), axes)


def array_norms(*xs: Array, axes: tuple[int, ...] | int | None = None) -> list[Array]:
    """Return the Euclidean norms of arrays, of all their pieces, by one exchange.

    Norms along `axes` stay with length 1.
    """
    sums = engine.array_sums(*((abs_sq(x), axes) for x in xs), keepdims=axes is not None)
    return [root(x) for x in (sums if len(xs) > 1 else (sums,))]


def array_norm(x: Array) -> Array:
    """Return the Euclidean norm of an array, of all its pieces."""
    return array_norms(x)[0]


def array_rms(x: Array) -> Array:
    """Return the root mean square of an array, of all its pieces; 0 of an empty one."""
    return root(engine.array_sums(abs_sq(x)) / array_size(x))


def array_size(x: Array) -> int:
    """Return the number of entries of an array, of all its pieces, but at least 1."""
    return max(math.prod(engine.whole_shape(x)), 1)

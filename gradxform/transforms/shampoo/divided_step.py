"""Shampoo's step for arrays, also where a device has pieces of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.numerics import cast, taming
from gradxform.transforms.matrices.leaf import MatrixLeaf
from gradxform.transforms.shampoo.axes import Axes, Matrices, Scalars, at_least_vector
from gradxform.types import Array

__all__ = []

# The gradient, its average, the statistics of each axis and the roots of each.
Row = tuple[Any, ...]
# The step, the average, the statistics and the roots.
Step = tuple[Any, Array, Matrices, Matrices]


def own_pieces(matrices: Matrices, leaf: MatrixLeaf) -> Matrices:
    """Return this device's pieces of the matrices of an array."""
    (view,) = leaf.members
    if view.place != "cut":
        return matrices
    return tuple(engine.slot_piece(x[None], view.cut)[0] for x in matrices)


def steps(
    axes: Axes, rows: Sequence[Row], leaves: Sequence[MatrixLeaf], scalars: Scalars
) -> list[Step]:
    """Return the step for every array of some rank.

    Args:
      axes: the step for one array.
      rows: what it gets, for every array.
      leaves: how each is part of a whole one.
      scalars: the scalars of the step.
    """
    if engine.exchange_now() is None:
        return engine.map_rows(axes, [list(column) for column in zip(*rows, strict=True)], scalars)
    columns, cuts = [[row[k] for row in rows] for k in (0, 1)], [leaf.cut for leaf in leaves]
    entries = engine.map_rows(_Entries(axes), columns, scalars, cuts=cuts)
    shapes = [leaf.cut.whole(jnp.shape(x)) for x, leaf in zip(columns[0], leaves, strict=True)]
    out: list[Any] = [None] * len(rows)
    for shape in dict.fromkeys(shapes):
        indices = [i for i, other in enumerate(shapes) if other == shape]
        members = [_member(axes, entries[i], rows[i][2:], leaves[i], shape) for i in indices]
        results = engine.map_matrices(_DividedStepOfWhole(axes, shape), members, scalars)
        for i, (u, matrices) in zip(indices, results, strict=True):
            g, gbar = rows[i][:2]
            new = tuple(x[0] for x in matrices)
            gbar = entries[i][1] if axes.averages else gbar
            u = cast(leaves[i].update([u]), g.dtype)
            out[i] = u, gbar, new[: axes.rank], new[axes.rank :]
    return out


def _member(
    axes: Axes,
    entries: tuple[Array, Array],
    matrices: Sequence[Array],
    leaf: MatrixLeaf,
    shape: tuple[int, ...],
) -> engine.Member:
    """Return one array as the lift of rules for matrices sees it."""
    (view,) = leaf.members
    if view.place == "cut":
        whole = [
            (1, d) if x.ndim == 1 else (1, d, d)
            for x, d in zip(matrices, at_least_vector(shape) * 2, strict=True)
        ]
        (view,) = leaf.with_slots(tuple(engine.slot_dim(x, view.cut) for x in whole)).members
    ((arrays, _),) = leaf.given(entries if axes.averages else entries[:1])
    return engine.Member(arrays, tuple(x[None] for x in matrices), view)


@dataclass(frozen=True)
class _Entries:
    """The entries of the gradient and its average, scaled by the largest of the whole array."""

    axes: Axes

    def __call__(self, g: Any, gbar: Array, scalars: Scalars) -> tuple[Array, Array]:
        """Return the gradient, scaled down if it is too large, and its average."""
        x = cast(jnp.asarray(g), gbar.dtype)
        x = x * cast(taming(engine.array_max(jnp.abs(x))), x.dtype)
        return x, self.axes.mean(x, gbar, scalars.as_wide(gbar))


@dataclass(frozen=True)
class _DividedStepOfWhole:
    """The step for a batch of whole arrays, each a column of its entries."""

    axes: Axes
    shape: tuple[int, ...]

    is_static = True

    def rule(self, x: Array, *rest: Array) -> tuple[Array, ...]:
        """Return the steps, and the statistics and roots of every axis."""
        axes, count = self.axes, 2 * self.axes.rank
        arrays, scalars = rest[: len(rest) - len(Scalars._fields)], rest[-len(Scalars._fields) :]
        n, matrices = Scalars(*scalars), arrays[len(arrays) - count :]
        mean = arrays[0] if axes.averages else n.gbar_weight * x

        steps = []
        for i in range(len(x)):  # not a batch: see `linalg.one_by_one`
            m, y = (jnp.reshape(z[i], at_least_vector(self.shape)) for z in (mean, x))
            old = [z[i] for z in matrices]
            steps.append(axes.step(m, y, tuple(old[: axes.rank]), tuple(old[axes.rank :]), n))
        u, statistics, roots = jax.tree.map(lambda *zs: jnp.stack(zs), *steps)
        return jnp.reshape(u, x.shape), *statistics, *roots

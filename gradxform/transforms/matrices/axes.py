"""Which axes of an array make a matrix, and arrays that hold several matrices side by side."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.types import Array


class MatrixAxes(NamedTuple):
    """The axes of an array that is a batch of matrices."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def to_matrices(self, x: Array) -> Array:
        """Return `x` as an array (batch, rows, columns)."""
        size = self.sizes(x.shape)
        return jnp.reshape(jnp.transpose(x, self.batch + self.rows + self.columns), size)

    def to_stacks(self, x: Array) -> Array:
        """Return `x` as an array (*batch, rows, columns), where the batch keeps its axes."""
        batch = tuple(x.shape[i] for i in self.batch)
        return jnp.reshape(self.to_matrices(x), (*batch, *self.sizes(x.shape)[1:]))

    def from_matrices(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Undo `to_matrices` or `to_stacks` for an array of that shape."""
        order = self.batch + self.rows + self.columns
        back = sorted(range(len(order)), key=lambda i: order[i])
        return jnp.transpose(jnp.reshape(x, tuple(shape[i] for i in order)), back)

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the number of matrices, of their rows and of their columns."""
        batch, rows, columns = (math.prod([shape[i] for i in group]) for group in self)
        return batch, rows, columns

    def expanded(self, shape: tuple[int, ...]) -> tuple["MatrixAxes", tuple[int, ...]]:
        """Return axes that do not split any, and the shape to which they belong."""
        return self, shape

    def moved(self, axis):
        """Return where an axis is in the expanded shape; None for the one that is split."""
        return axis


class SplitAxes(NamedTuple):
    """The axes of an array with equal parts along one axis; each part is a batch of matrices."""

    inner: MatrixAxes  # of the array in which the axis is two: the part, and the place in it
    axis: int
    size: int  # of one part

    def expanded(self, shape: tuple[int, ...]) -> tuple[MatrixAxes, tuple[int, ...]]:
        """Return axes that do not split any, and the shape to which they belong."""
        i = self.axis
        return self.inner, (*shape[:i], shape[i] // self.size, self.size, *shape[i + 1 :])

    def moved(self, axis):
        """Return where an axis is in the expanded shape; None for the one that is split."""
        return None if axis == self.axis else axis + (axis > self.axis)

    def to_matrices(self, x: Array) -> Array:
        """Return `x` as an array (batch, rows, columns)."""
        return self.inner.to_matrices(jnp.reshape(x, self.expanded(x.shape)[1]))

    def from_matrices(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Undo `to_matrices` for an array of that shape."""
        return jnp.reshape(self.inner.from_matrices(x, self.expanded(shape)[1]), shape)

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the number of matrices, of their rows and of their columns."""
        return self.inner.sizes(self.expanded(shape)[1])


class UnevenAxes(NamedTuple):
    """The axes of an array with parts of several sizes along one axis."""

    inner: MatrixAxes  # of each part
    axis: int
    parts: tuple[int, ...]  # the size of each


class EqualMatrices(NamedTuple):
    """Equal matrices in an array: all of them, or those in one part of an uneven split."""

    axes: Any  # MatrixAxes or SplitAxes
    axis: int = 0
    start: int = 0
    stop: int | None = None  # None: the whole array

    def of(self, x: Array) -> Array:
        """Return one of several parts of an array."""
        index = [slice(None)] * x.ndim
        index[self.axis] = slice(self.start, self.stop)
        return x[tuple(index)]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part in an array of that shape."""
        if self.stop is None:
            return shape
        return (*shape[: self.axis], self.stop - self.start, *shape[self.axis + 1 :])


def parts_of(axes: Any) -> list[EqualMatrices]:
    """Return the parts of an array; the matrices in each have equal sides."""
    if not isinstance(axes, UnevenAxes):
        return [EqualMatrices(axes)]
    out, start = [], 0
    for size in axes.parts:
        out.append(EqualMatrices(axes.inner, axes.axis, start, start + size))
        start += size
    return out


def array_of_parts(parts: list[EqualMatrices], xs: list[Array]) -> Array:
    """Return the array with several parts `xs`: undo `parts_of`."""
    return jnp.concatenate(xs, parts[0].axis)


def split_axes(axes: MatrixAxes, axis: int, parts: tuple[int, ...]) -> SplitAxes | UnevenAxes:
    """Return the axes of an array whose rows or columns are split into parts of these sizes."""
    if len(set(parts)) > 1:
        return UnevenAxes(axes, axis, parts)
    batch, rows, columns = (tuple(i + (i >= axis) for i in group) for group in axes)
    batch = tuple(sorted((*batch, axis)))
    return SplitAxes(MatrixAxes(batch, rows, columns), axis, parts[0])

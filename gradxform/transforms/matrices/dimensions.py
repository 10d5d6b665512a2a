"""Dimension numbers: which axes of a parameter make a matrix."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.errors import name_of, shown
from gradxform.leaves import Path, is_hole, is_update_leaf, masks, path_str, with_paths
from gradxform.transforms.matrices.axes import MatrixAxes as MatrixAxes, UnevenAxes, split_axes
from gradxform.types import PyTree
from gradxform.values import FrozenTree, Value, fields_of, is_function, replace
from gradxform.values.fields import value


class _Numbers(Value):
    """Values with the two methods that the named tuples of Optax have."""

    def _asdict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return fields_of(self)

    def _replace(self, **fields: Any) -> "_Numbers":
        """Return the same with other axes."""
        return replace(self, **fields)


@value
class MuonDimensionNumbers(_Numbers):
    """Say which axes of a parameter are the rows of a matrix, and which its columns.

    With x W = y, the product sums over the rows, and y has the columns. All other axes are batches
    of matrices.

    Args:
      reduction_axis: the axis or axes of the rows; negative ones count from the end.
      output_axis: the axis or axes of the columns.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1


@value
class GaLoreDimensionNumbers(_Numbers):
    """Say which axes of a parameter are the rows of a matrix, and which its columns.

    All other axes are batches of matrices, each with a projector of its own: for layers that are
    stacked along axis 0, `GaLoreDimensionNumbers(1, 2)`.

    Args:
      reduction_axis: the axis or axes of the rows; negative ones count from the end.
      output_axis: the axis or axes of the columns.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1


@value
class matrix_split(Value):
    """Say that a parameter holds several matrices side by side, as a fused `qkv` does.

    A kernel of shape (d, 3 d) whose columns are queries, keys and values is three matrices with
    `matrix_split(1, (d, d, d))`, and one matrix for each head with `matrix_split(1, head_size)`.
    Parts may differ in size, as with fewer keys than queries.

    Args:
      axis: the axis along which they lie, one of the rows or columns; a negative one counts from
        the end.
      sizes: the length of each part, which add up to that of the axis; or one length, of all parts.
      numbers: which axes are rows and columns, `MuonDimensionNumbers`.
    """

    axis: int
    sizes: int | tuple[int, ...]
    numbers: Any = MuonDimensionNumbers()

    def __post_init__(self) -> None:
        sizes = self.sizes if isinstance(self.sizes, tuple) else (self.sizes,)
        if not sizes or not all(type(x) is int and x > 0 for x in sizes):
            raise ValueError(
                f"matrix_split: sizes must be a length of at least 1, or a tuple of them, got "
                f"{shown(self.sizes)}."
            )
        object.__setattr__(
            self, "numbers", _dimensions_from_optax(self.numbers, MuonDimensionNumbers)
        )
        if not isinstance(self.numbers, MuonDimensionNumbers):
            raise TypeError(
                f"matrix_split: numbers must be MuonDimensionNumbers, got {shown(self.numbers)}."
            )


# What may stand where dimension numbers of a kind may.
_ACCEPTED: dict[type, tuple[type, ...]] = {
    MuonDimensionNumbers: (MuonDimensionNumbers, matrix_split),
}


def _kinds(kind: type) -> tuple[type, ...]:
    return _ACCEPTED.get(kind, (kind,))


def _names(kind: type) -> str:
    return ", ".join(k.__name__ for k in _kinds(kind))


def check_numbers(part: Value, field: str, kind: type) -> None:
    """Require a field to hold dimension numbers that `matrices` reads; convert those of Optax.

    That is: None, numbers of that kind for all parameters, a tree of them that may be a prefix of
    the parameters, with None for those that are not matrices, or a function that returns one.
    """
    numbers = getattr(part, field)
    if isinstance(numbers, FrozenTree):
        ours = _dimensions_from_optax(numbers.unfreeze(), kind)
        leaves = jax.tree.leaves(ours, is_leaf=lambda x: x is None)
        for leaf in leaves:
            if leaf is not None and not isinstance(leaf, _kinds(kind)):
                raise TypeError(
                    f"{name_of(part)}: the entries of {field} must be {_names(kind)} "
                    f"or None, got {shown(leaf)}."
                )
        object.__setattr__(
            part, field, ours if isinstance(ours, _kinds(kind)) else FrozenTree(ours)
        )
    elif not (numbers is None or isinstance(numbers, _kinds(kind)) or is_function(numbers)):
        raise TypeError(
            f"{name_of(part)}: {field} must be {_names(kind)}, a tree of them or a "
            f"function of the parameters, got {shown(numbers)}."
        )


def matrices(
    part: Value, dimension_numbers: Any, kind: type, tree: PyTree
) -> list[tuple[Path, Any, Any]]:
    """Return the path, the array and the axes of every leaf of `tree`; None where none are given.

    Args:
      part: the value that asks, for messages.
      dimension_numbers: what passed `check_numbers`.
      kind: the class of the dimension numbers.
      tree: parameters or updates.

    Raises:
      ValueError: if the numbers do not fit the array, or none are given for one.
    """
    named = [(path, leaf) for path, leaf in with_paths(tree) if not is_hole(leaf)]
    entries = numbers_of(part, dimension_numbers, tree)

    def axes_of_leaves() -> list[Any]:
        return [_axes(part, path, x, entries.of_leaves[path], kind) for path, x in named]

    axes = entries.once(kind, axes_of_leaves)
    return [(path, leaf, x) for (path, leaf), x in zip(named, axes, strict=True)]


def numbers_of(part: Value, dimension_numbers: Any, tree: PyTree) -> masks.Entries:
    """Return the dimension numbers of every leaf of `tree`, which may be Optax's."""
    return masks.entries_of(part, dimension_numbers, tree, object, _is_entry)


def axes_of_all(
    part: Value, given: Any, tree: PyTree, uneven: bool = True, leaves_out: bool = False
) -> list[Any]:
    """Return the axes of every leaf; an array without dimension numbers must have two.

    Args:
      part: the rule that asks.
      given: its dimension numbers.
      tree: parameters or updates.
      uneven: whether it handles arrays that are split into parts of several sizes.
      leaves_out: whether None among the numbers leaves an array alone, whose axes are None then.
    """
    out = []
    for path, x, axes in matrices(part, given, MuonDimensionNumbers, tree):
        if axes is None and given is not None and leaves_out:
            out.append(None)
            continue
        if axes is None and jnp.ndim(x) != 2:
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} of shape {jnp.shape(x)} is "
                "not a matrix. Give its weight_dimension_numbers, or leave it to another "
                "transform with muon(...) or partition(...)."
            )
        if isinstance(axes, UnevenAxes) and not uneven:
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} is split into parts of several "
                "sizes. Give it parts of equal sizes, or make them parameters of their own."
            )
        out.append(MatrixAxes((), (0,), (1,)) if axes is None else axes)
    return out


def low_rank_axes(part: Value, numbers: Any, tree: PyTree) -> list[Any]:
    """Return the axes of every leaf that is projected; None for those that are not.

    By default arrays of two dimensions are, and with `GaLoreDimensionNumbers` for all parameters
    those of two or more. An array without entries is not.

    Args:
      part: the value that asks, for messages.
      numbers: what passed `check_numbers`.
      tree: parameters or updates.
    """
    common = numbers if isinstance(numbers, GaLoreDimensionNumbers) else None
    by_leaf = None if common is not None else numbers
    out = []
    for path, x, axes in matrices(part, by_leaf, GaLoreDimensionNumbers, tree):
        # By default only arrays of two dimensions are matrices: a third may be of any meaning.
        if by_leaf is None and (jnp.ndim(x) == 2 if common is None else jnp.ndim(x) >= 2):
            axes = axes_of(part, path, x, common or GaLoreDimensionNumbers())
        empty = not math.prod(jnp.shape(x))  # it has nothing to project
        out.append(None if empty else axes)
    return out


def _axes(part: Value, path: Path, x: Any, numbers: Any, kind: type) -> Any:
    """Return the axes of a leaf; None where no numbers are given."""
    numbers = _dimensions_from_optax(numbers, kind)
    if numbers is not None and not isinstance(numbers, _kinds(kind)):
        raise TypeError(
            f"{name_of(part)}: the dimension numbers of {path_str(path)} must be "
            f"{_names(kind)} or None, got {shown(numbers)}."
        )
    return numbers and axes_of(part, path, x, numbers)


def axes_of(part: Value, path: Path, x: Any, numbers: Any) -> Any:
    """Return the axes that dimension numbers mean for one array."""
    if isinstance(numbers, matrix_split):
        return _axes_of_matrix_split(part, path, x, numbers)
    n, where = jnp.ndim(x), f"parameter {path_str(path)} of shape {jnp.shape(x)}"
    groups = []
    for entry in (numbers.reduction_axis, numbers.output_axis):
        axes = entry if isinstance(entry, tuple) else (entry,)
        if not all(-n <= axis < n for axis in axes):
            raise ValueError(
                f"{name_of(part)}: {numbers!r} names an axis that {where} does not have."
            )
        groups.append(tuple(axis % n for axis in axes))
    rows, columns = groups
    if len({*rows, *columns}) < len(rows) + len(columns):
        raise ValueError(
            f"{name_of(part)}: {numbers!r} names an axis of {where} twice. Name each axis once, as "
            "one of the rows or of the columns; all others are batches."
        )
    return MatrixAxes(tuple(i for i in range(n) if i not in rows + columns), rows, columns)


def _axes_of_matrix_split(part: Value, path: Path, x: Any, split: matrix_split) -> Any:
    """Return the axes that a split means for one array."""
    axes = axes_of(part, path, x, split.numbers)
    n, shape = jnp.ndim(x), jnp.shape(x)
    where = f"parameter {path_str(path)} of shape {shape}"
    if not -n <= split.axis < n:
        raise ValueError(f"{name_of(part)}: {split!r} splits an axis that {where} does not have.")
    axis = split.axis % n
    if axis in axes.batch:
        raise ValueError(
            f"{name_of(part)}: {split!r} splits axis {axis} of {where}, which is a batch of "
            "matrices already. Split one of its rows or columns."
        )
    length = shape[axis]
    sizes = split.sizes
    if isinstance(sizes, int):
        sizes = (sizes,) * (length // sizes)
    if sum(sizes) != length:
        raise ValueError(
            f"{name_of(part)}: the parts of {split!r} add up to {sum(sizes)}, but axis {axis} of "
            f"{where} has length {length}. Give sizes that add up to it, or one that divides it."
        )
    return split_axes(axes, axis, sizes)


_FIELDS = ("reduction_axis", "output_axis")


def _is_entry(x: Any) -> bool:
    """Whether `x` is one entry of a tree of dimension numbers: those of Optax are tuples."""
    return is_update_leaf(x) or getattr(x, "_fields", None) == _FIELDS


def _dimensions_from_optax(tree: PyTree, kind: type) -> PyTree:
    """A tree with Optax's dimension numbers as values."""

    def convert(x: Any) -> Any:
        return kind(*x) if getattr(x, "_fields", None) == _FIELDS else x

    return jax.tree.map(convert, tree, is_leaf=_is_entry)

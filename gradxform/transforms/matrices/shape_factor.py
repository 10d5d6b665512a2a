"""Factors that follow from the sides of a matrix."""

import abc
import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, EmptyState
from gradxform.leaves import is_hole, shape_of, with_paths
from gradxform.transforms.matrices.axes import parts_of
from gradxform.transforms.matrices.dimensions import (
    MuonDimensionNumbers,
    axes_of_all,
    check_numbers,
    numbers_of,
)
from gradxform.types import StaticTree, Updates

__all__ = []


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ShapeFactor(ArrayRule):
    """Base of rules that multiply a matrix by a factor of its sides, also on a mesh."""

    weight_dimension_numbers: StaticTree = None

    State = EmptyState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def __post_init__(self):
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return an empty state."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return EmptyState()

    def statics(self, updates: Updates) -> list[Any]:
        """Return for every leaf the sides of its matrices, by part, and how it is divided."""
        numbers, cuts = self.weight_dimension_numbers, engine.cuts_of(updates)
        whole = engine.whole_shapes(updates)

        def sides() -> list[Any]:
            axes = axes_of_all(self, numbers, whole)
            leaves = [x for _, x in with_paths(whole) if not is_hole(x)]
            triples = zip(axes, leaves, cuts, strict=True)
            return [(_sides(a, shape_of(x)), cut) for a, x, cut in triples]

        return numbers_of(self, numbers, whole).once(("sides", *cuts), sides)

    def rule(self, g, p, static):
        """Return the update times the factor of its shape."""
        (axis, parts), cut = static
        factors = [self.factor(*sides) for *sides, _ in parts]
        if len(factors) == 1:
            return factors[0] * g
        lengths = [length for *_, length in parts]
        each = [jnp.full((n,), x, g.dtype) for n, x in zip(lengths, factors, strict=True)]
        factor = jnp.concatenate(each)
        cuts_of_axis = tuple((name, 0) for name, dim in cut.cuts if dim == axis)
        factor = engine.own_piece(factor, engine.Cut(cuts_of_axis, cut.sizes))
        shape = [1] * g.ndim
        shape[axis] = -1
        return jnp.reshape(factor, shape) * g

    @abc.abstractmethod
    def factor(self, n: int, k: int, places: int) -> Any:
        """Return the factor of a matrix of n rows and k columns.

        Args:
          n: the number of rows.
          k: the number of columns.
          places: the product of the lengths of all reduction axes but the last: for a convolution
            the number of places in the window, if the last has the inputs.
        """


def _sides(axes: Any, shape: tuple[int, ...]) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return the axis along which parts lie; of each the sides, the places, its length there."""
    parts = parts_of(axes)
    shapes = [part.shape(shape) for part in parts]
    sides = []
    for part, x in zip(parts, shapes, strict=True):
        inner, expanded = part.axes.expanded(x)
        places = math.prod(expanded[i] for i in inner.rows[:-1])
        sides.append((*part.axes.sizes(x)[1:], places, x[part.axis] if x else 1))
    return parts[0].axis, tuple(sides)

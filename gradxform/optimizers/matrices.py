"""Optimizers of matrices, which leave all other parameters to AdamW or another rule."""

from collections.abc import Mapping

from gradxform.base import Transform
from gradxform.leaves.masks import label_by, ndim_at_least
from gradxform.transforms.muon import muon_labels
from gradxform.types import StaticTree
from gradxform.wrappers.select import partition

__all__ = []


def with_adamw(
    label: str, matrices: Transform, others: Transform, dimension_numbers: StaticTree
) -> partition:
    """Return a transform of matrices for those parameters that are, and AdamW for the others.

    Args:
      label: of the matrices, among the parts of the state.
      matrices: the transform of the matrices.
      others: the transform of all other parameters, labelled "adam".
      dimension_numbers: `MuonDimensionNumbers`, which say what is a matrix. None: parameters of two
        dimensions are.
    """
    return with_others({label: matrices, "adam": others}, dimension_numbers)


def with_others(parts: Mapping[str, Transform], dimension_numbers: StaticTree) -> partition:
    """Return a transform of matrices for those parameters that are, and another for the others.

    Args:
      parts: both by their labels, first that of the matrices.
      dimension_numbers: as in `with_adamw`.
    """
    label, other = parts
    if dimension_numbers is None:
        labels = label_by((label, ndim_at_least(2) & ~ndim_at_least(3)), (other, True))
    else:
        labels = muon_labels(dimension_numbers, label, None if other == "adam" else other)
    return partition(parts, labels)

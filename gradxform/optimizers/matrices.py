"""Optimizers of matrices, which leave all other parameters to AdamW or another rule."""

from collections.abc import Mapping
from typing import Any

from gradxform.base import Transform
from gradxform.leaves.masks import label_by, ndim_at_least
from gradxform.optimizers.adam import adamw
from gradxform.transforms.muon import muon_labels
from gradxform.types import ScalarOrSchedule, StaticTree
from gradxform.wrappers.select import partition

__all__ = []


def with_adamw(
    label: str,
    matrices: Transform,
    dimension_numbers: StaticTree,
    learning_rate: ScalarOrSchedule,
    adam_learning_rate: ScalarOrSchedule | None,
    *adam: Any,
    **more: Any,
) -> partition:
    """Return a transform of matrices for those parameters that are, and AdamW for the others.

    Args:
      label: of the matrices, among the parts of the state. That of the others is "adam".
      matrices: the transform of the matrices.
      dimension_numbers: `MuonDimensionNumbers`, which say what is a matrix. None: parameters of two
        dimensions are.
      learning_rate: of the matrices.
      adam_learning_rate: of the others; None for that of the matrices.
      *adam: the other arguments of `adamw`.
      **more: the same by name.
    """
    rate = learning_rate if adam_learning_rate is None else adam_learning_rate
    return with_others({label: matrices, "adam": adamw(rate, *adam, **more)}, dimension_numbers)


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

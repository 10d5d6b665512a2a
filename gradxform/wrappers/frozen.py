"""Parameters that do not move, under Optax's names."""

from typing import Any

import jax
import jax.numpy as jnp

from gradxform.base import check_transform
from gradxform.errors import shown
from gradxform.interop import set_to_zero
from gradxform.leaves import dtype_of, masks
from gradxform.types import StaticMask
from gradxform.values import FrozenTree, is_function
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.registry import register
from gradxform.wrappers.select import masked, partition

__all__ = [
    "freeze",
    "selective_transform",
]


@with_checked_arguments
def freeze(mask: StaticMask) -> masked:
    """Return the part of a chain that sets the updates of some parameters to zero.

    Parts before it still have slots for these parameters; `selective_transform` and `param_groups`
    save them.

    Args:
      mask: the parameters to freeze: True for all, a mask such as `path_matches("^encoder/")`, a
        tree of booleans that may be a prefix of the parameters, or a function of the parameters
        that returns one.

    Returns:
      `masked(set_to_zero(), mask)`.
    """
    return masked(set_to_zero(), mask)


@with_checked_arguments
def selective_transform(optimizer: Any, *, freeze_mask: StaticMask) -> partition:
    """Return an optimizer of the parameters that are not frozen; frozen ones do not have slots.

    Args:
      optimizer: a transform.
      freeze_mask: the parameters to freeze, as `mask` in `freeze`. Keyword-only.

    Returns:
      A `partition` with the labels "train" and "freeze".

    Raises:
      TypeError: if `freeze_mask` is not a mask.
    """
    check_transform("selective_transform", optimizer, "optimizer")
    transforms = {"train": optimizer, "freeze": set_to_zero()}
    if isinstance(freeze_mask, masks.Mask):
        labels: Any = masks.label_by(("freeze", freeze_mask), ("train", True))
        return partition(transforms, labels)
    if is_function(freeze_mask) and not isinstance(freeze_mask, masks.label_by):
        return partition(transforms, lambda params: _freeze_labels(freeze_mask(params)))
    return partition(transforms, _freeze_labels(freeze_mask))


def _freeze_labels(mask: Any) -> Any:
    """Return the tree of labels for a tree of booleans."""

    def label(entry: Any) -> str:
        if jnp.shape(entry) == () and dtype_of(entry) == jnp.bool_:
            entry = bool(entry)
        if not isinstance(entry, bool):
            raise TypeError(
                "selective_transform: freeze_mask must be a mask such as path_matches('^encoder/'),"
                f" or a tree of True and False, got {shown(entry)}."
            )
        return "freeze" if entry else "train"

    tree = mask.unfreeze() if isinstance(mask, FrozenTree) else mask
    return jax.tree.map(label, tree)


register("freeze", freeze)
register("selective_transform", selective_transform)

"""The leaves of states that all replicas share, and those that no two devices do."""

from typing import Any

import jax

from gradxform.leaves.states import marked_fields
from gradxform.types import Everywhere, PerDevice, PyTree


def is_shared(tree: PyTree) -> list[bool]:
    """Return for every leaf whether it is shared: the same on all replicas, without their axis.

    Shared leaves are those in fields of states that are annotated `Everywhere`, anywhere in the
    tree.
    """
    return _leaf_flags(tree, Everywhere)


def is_per_device(tree: PyTree) -> list[bool]:
    """Return for every leaf whether it is in a field of a state that is annotated `PerDevice`."""
    return _leaf_flags(tree, PerDevice)


def _leaf_flags(tree: PyTree, mark: Any) -> list[bool]:
    """Return for every leaf whether it is in a field of a state with that annotation."""
    flags: list[bool] = []
    _visit(tree, mark, False, flags)
    return flags


def _visit(x: Any, mark: Any, inside: bool, flags: list[bool]) -> None:
    one_level = jax.tree_util.default_registry.flatten_one_level(x)
    if one_level is None:
        flags.append(inside)
        return
    names = getattr(type(x), "_fields", None)
    marked = () if names is None else marked_fields(type(x), mark)
    for i, child in enumerate(one_level[0]):
        _visit(child, mark, inside or (names is not None and names[i] in marked), flags)

"""Results that depend only on the structure of a tree, computed once for each structure."""

from collections.abc import Callable
from typing import Any, TypeVar

from gradxform.leaves.trees import flatten_updates
from gradxform.types import PyTree
from gradxform.values.memory import Memory

__all__ = []

T = TypeVar("T")


def remembered_by_structure(what: Any, tree: PyTree, make: Callable[[], T]) -> T:
    """Return `make()`, which is called once for each structure with the shapes of its leaves.

    Args:
      what: which result this is, and what it depends on besides: anything that hashes.
      tree: updates or parameters.
      make: computes the result, which nobody changes. An error is not remembered.
    """
    leaves, treedef = flatten_updates(tree)
    # For a leaf without a shape, such as a hole or a number, the type tells as much.
    key = (what, treedef, tuple([getattr(x, "shape", type(x)) for x in leaves]))
    result = _RESULTS.get(key)
    if result is None:
        result = make()
        _RESULTS.keep(key, result)
    return result


_RESULTS: Memory[Any, Any] = Memory()

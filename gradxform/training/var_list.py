"""Which parameters a call is about: a mask, a tree of booleans, or a list of paths."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gradxform._names.deferred import signature_of
from gradxform.errors import did_you_mean, must_be, shown
from gradxform.leaves import Path, is_hole, masks, with_paths
from gradxform.types import PyTree
from gradxform.values import FrozenTree, is_function

# How many paths a message lists.
LISTED = 8


def selected_by_choice(part: str, field: str, choice: Any, tree: PyTree) -> list[bool]:
    """Return for every leaf of a tree, in order, whether it is selected.

    Args:
      part: the name of the function, for messages.
      field: the name of its argument, for messages.
      choice: a list of paths such as `encoder/kernel`, each of a leaf or of a branch; a mask, a
        tree of booleans, a function of the parameters or one `where(path, leaf)`; or a function
        without arguments that returns one of these.
      tree: the parameters.

    Raises:
      ValueError: if a path or a pattern selects nothing, or a path occurs twice.
      TypeError: if `choice` is none of these.
    """
    leaves = [(path, leaf) for path, leaf in with_paths(tree) if not is_hole(leaf)]
    if _is_function(choice, 0) and not _is_function(choice, 1):
        choice = choice()
    if isinstance(choice, str):
        raise TypeError(
            f"{part}: {field} must be a list of paths, got the string {choice!r}; write "
            f"[{choice!r}]."
        )
    if _is_var_list_of_paths(choice):
        return _var_list_by_paths(part, field, choice, [path for path, _ in leaves])
    if _is_function(choice, 2) and not _is_function(choice, 1):
        return [bool(choice(path, leaf)) for path, leaf in leaves]
    frozen = choice
    if not isinstance(choice, bool | masks.Mask | FrozenTree) and not is_function(choice):
        entries = jax.tree.leaves(choice)
        if not entries or not all(isinstance(x, bool | np.bool_) for x in entries):
            raise TypeError(
                f"{part}: {field} must be a list of paths such as 'encoder/kernel', a mask such as "
                f'path_matches("kernel") or a tree of booleans, got {shown(choice)}.'
            )
        frozen = FrozenTree(choice)
    return [x for x in jax.tree.leaves(masks.resolve(part, frozen, tree)) if not is_hole(x)]


def as_static(choice: Any) -> Any:
    """Return a choice that hashes, so that equal ones share a compiled program."""
    if isinstance(choice, list | tuple) and _is_var_list_of_paths(choice):
        return tuple(choice)
    is_tree = isinstance(choice, dict | list | tuple) and jax.tree.leaves(choice)
    return FrozenTree(choice) if is_tree else choice


def quoted_paths(paths: Sequence[Path]) -> str:
    """Return paths for a message, the first few of many, as one writes them in a list."""
    more = ", ..." if len(paths) > LISTED else ""
    return ", ".join(repr("/".join(path)) for path in paths[:LISTED]) + more


def index_of(part: str, field: str, path: Any, paths: Sequence[Path]) -> int:
    """Return which of `paths` is meant by `encoder/kernel`, or by its names as a tuple.

    Raises:
      ValueError: if none is.
      TypeError: if it is not a path.
    """
    if isinstance(path, tuple) and all(isinstance(name, str) for name in path):
        path = "/".join(path)
    if not isinstance(path, str):
        raise TypeError(
            must_be(part, field, "the path of a parameter, such as 'encoder/kernel'", path)
        )
    path_names = ["/".join(names) for names in paths]
    if path not in path_names:
        raise _no_such_path(part, field, path, paths, path_names)
    return path_names.index(path)


def _no_such_path(
    part: str, field: str, path: str, paths: Sequence[Path], path_names: Sequence[str]
) -> ValueError:
    ends = [name for name in path_names if path and name.endswith("/" + path)]
    hint = did_you_mean(path, path_names) or did_you_mean(path, ends, cutoff=0.0)
    return ValueError(
        f"{part}: {field} names no parameter, got {path!r}; the parameters are "
        f"{quoted_paths(paths) or 'none'}.{hint}"
    )


def _is_var_list_of_paths(choice: Any) -> bool:
    is_list = isinstance(choice, list | tuple) and not hasattr(choice, "_fields")
    return is_list and bool(choice) and all(isinstance(path, str) for path in choice)


def _var_list_by_paths(
    part: str, field: str, choice: Sequence[str], paths: Sequence[Path]
) -> list[bool]:
    path_names = ["/".join(path) for path in paths]
    chosen = [False] * len(paths)
    for i, path in enumerate(choice):
        if path in choice[:i]:
            raise ValueError(f"{part}: {field} names {path!r} twice.")
        below = [k for k, name in enumerate(path_names) if (name + "/").startswith(path + "/")]
        if not below or not path:
            branches = {"/".join(p[:n]) for p in paths for n in range(1, len(p) + 1)}
            raise _no_such_path(part, field, path, paths, sorted(branches))
        for k in below:
            chosen[k] = True
    return chosen


def _is_function(x: Any, count: int) -> bool:
    """Whether `x` is a function that can be called with that many arguments."""
    if isinstance(x, masks.Mask) or not is_function(x):
        return False
    function: Callable[..., Any] = x
    try:
        signature_of(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True

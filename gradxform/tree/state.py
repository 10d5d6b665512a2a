"""Functions to read, change and map the parts of an optimizer's state by name.

The name of a part is its dict key, its field, or the class of its NamedTuple. The functions are
public in `gradxform.tree`, with Optax's names and arguments.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import did_you_mean, leaf_path
from gradxform.types import PyTree

KeyPath = tuple[Any, ...]
Filtering = Callable[[KeyPath, Any], bool]


@dataclasses.dataclass(frozen=True)
class NamedTupleKey:
    """The entry of a key path for a field of a NamedTuple, with the name of the class.

    Attributes:
      tuple_name: the name of the NamedTuple's class.
      name: the name of the field.
    """

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


_LEAF = jax.tree.structure(0)


class _Level(NamedTuple):
    """A node of a tree, with its children as leaves."""

    entries: list[Any]  # the entry of each child in a key path
    children: list[Any]
    treedef: Any


def level_of(node: Any) -> _Level | None:
    """Return the node's level, or None for a leaf."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if treedef == _LEAF:
        return None
    entries: list[Any] = [path[-1] for path, _ in flat]
    if is_named_tuple(node):
        entries = [NamedTupleKey(type(node).__name__, name) for name in node._fields]
    return _Level(entries, [child for _, child in flat], treedef)


def is_named_tuple(x: Any) -> bool:
    """Whether `x` is a NamedTuple."""
    return isinstance(x, tuple) and hasattr(x, "_fields")


def entry_name(entry: Any) -> Any:
    """Return the name in a path entry; `_NAMELESS` for an index."""
    if isinstance(entry, jax.tree_util.DictKey):
        return entry.key
    if isinstance(entry, jax.tree_util.GetAttrKey | NamedTupleKey):
        return entry.name
    return _NAMELESS


_NAMELESS = object()


def _named_parts(tree: PyTree, path: KeyPath = ()) -> Iterator[tuple[Any, KeyPath, Any]]:
    """Yield the name, path and value of every part of `tree` with a name, parents first."""
    level = level_of(tree)
    if level is None:
        return
    yield from _named_at_level(tree, level, path)
    for entry, child in zip(level.entries, level.children, strict=True):
        yield from _named_parts(child, (*path, entry))


def _named_at_level(node: Any, level: _Level, path: KeyPath) -> Iterator[tuple[Any, KeyPath, Any]]:
    """Yield the name, path and value of a node, if it has one, and of its children."""
    class_name = type(node).__name__
    if is_named_tuple(node) and (not path or entry_name(path[-1]) != class_name):
        yield class_name, path, node
    for entry, child in zip(level.entries, level.children, strict=True):
        if entry_name(entry) is not _NAMELESS:
            yield entry_name(entry), (*path, entry), child


def get_all_with_path(
    tree: PyTree, key: Any, filtering: Filtering | None = None
) -> list[tuple[KeyPath, Any]]:
    """Return all parts of a tree with the name `key`, with their paths.

    Args:
      tree: a state, or any tree.
      key: a dict key, the name of a field, or the class name of a NamedTuple.
      filtering: `filtering(path, value) -> bool`; parts that it rejects are left out. In the path,
        a field of a NamedTuple is a `NamedTupleKey`, which has the name of the class too.

    Returns:
      Pairs `(path, value)`, those of a node before those inside it, as in Optax.
      `jax.tree_util.keystr(path)` prints a path.
    """
    return [
        (path, value)
        for path, value in _parts_called(tree, key)
        if filtering is None or filtering(path, value)
    ]


def _parts_called(tree: PyTree, key: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the parts called `key`: of all outermost nodes that have one, then inside each."""
    inner: list[tuple[KeyPath, Any]] = []
    places = [(path, tree)]
    while places:
        place, node = places.pop()
        level = level_of(node)
        if level is None:
            continue
        matches = [(at, x) for name, at, x in _named_at_level(node, level, place) if name == key]
        children = [((*place, k), x) for k, x in zip(level.entries, level.children, strict=True)]
        if matches:
            yield from matches
            inner.extend(children)
        else:
            places.extend(reversed(children))
    for place, node in inner:
        yield from _parts_called(node, key, place)


def get(tree: PyTree, key: Any, default: Any = None, filtering: Filtering | None = None) -> Any:
    """Return the only part of a tree with the name `key`: `get(state, "mu")`.

    Args:
      tree: a state, or any tree.
      key: a dict key, the name of a field, or the class name of a NamedTuple.
      default: the value to return if there is none.
      filtering: `filtering(path, value) -> bool`, to choose among several; see `get_all_with_path`.

    Returns:
      The value, or `default`.

    Raises:
      KeyError: if there are several.
    """
    parts = get_all_with_path(tree, key, filtering)
    if len(parts) > 1:
        listed = ", ".join(path_str(path) for path, _ in parts)
        raise KeyError(
            f"get: {len(parts)} values are called {key!r}: {listed}. Choose one with filtering=, "
            "or take all with get_all_with_path."
        )
    return parts[0][1] if parts else default


def set(tree: PyTree, filtering: Filtering | None = None, /, **kwargs: Any) -> PyTree:
    """Return a copy of a tree with new values for all parts with these names.

    `set(state, learning_rate=1e-4)` changes a hyperparameter that `inject_hyperparams` keeps in the
    state. A Python number is written into the arrays of the old value: an `int` or `float` set over
    a float32 array gives a float32 array with the old one's shape, weak type and sharding, so that
    a jitted step does not compile again, and `set(state, mu=0)` resets a momentum. (Optax replaces
    the array by the number.) Any other value replaces the old one.

    Args:
      tree: a state, or any tree.
      filtering: `filtering(path, value) -> bool`; parts that it rejects stay. Positional only.
      **kwargs: the new values, by dict key, by name of a field or by class name of a NamedTuple.

    Returns:
      The changed copy.

    Raises:
      KeyError: if no part has one of the names, or `filtering` rejects all parts with it.
      ValueError: if an array cannot hold the number to be written into it.
    """
    for key in kwargs:
        if not get_all_with_path(tree, key, filtering):
            _refuse_name(tree, key)

    def replaced(path: KeyPath, name: Any, node: Any) -> Any:
        if name in kwargs and (filtering is None or filtering(path, node)):
            return _written(path, node, kwargs[name])
        level = level_of(node)
        if level is None:
            return node
        class_name = type(node).__name__
        if is_named_tuple(node) and class_name != name and class_name in kwargs:
            if filtering is None or filtering(path, node):
                return _written(path, node, kwargs[class_name])
        new = [
            replaced((*path, entry), entry_name(entry), child)
            for entry, child in zip(level.entries, level.children, strict=True)
        ]
        same = all(a is b for a, b in zip(new, level.children, strict=True))
        return node if same else jax.tree.unflatten(level.treedef, new)

    return replaced((), _NAMELESS, tree)


def _refuse_name(tree: PyTree, key: str) -> None:
    names = dict.fromkeys(name for name, _, _ in _named_parts(tree) if isinstance(name, str))
    if key in names:
        raise KeyError(f"set: filtering rejects every value called {key!r}.")
    raise KeyError(f"set: nothing is called {key!r}.{did_you_mean(key, names)}")


def path_str(path: KeyPath) -> str:
    """Return a path for messages, as the expression that would follow the tree's name."""
    text = ""
    for entry in path:
        is_field = isinstance(entry, NamedTupleKey | jax.tree_util.GetAttrKey)
        text += f".{entry.name}" if is_field else leaf_path((entry,))
    return text.removeprefix(".") or "the root"


def _written(path: KeyPath, old: Any, new: Any) -> Any:
    """Return `new`, or if it is a number, `old` with that number in all of its arrays."""
    leaves, treedef = jax.tree.flatten(old)
    all_arrays = all(isinstance(x, jax.Array | np.ndarray | np.generic) for x in leaves)
    if not (leaves and all_arrays and isinstance(new, bool | int | float | complex)):
        return new
    return jax.tree.unflatten(treedef, [_array_with_number(path, x, new) for x in leaves])


def _array_with_number(path: KeyPath, x: Any, number: Any) -> Any:
    if not _dtype_holds(x.dtype, number):
        raise ValueError(
            f"set: {path_str(path)} has dtype {x.dtype}, which cannot hold {number!r}."
        )
    return (jnp if isinstance(x, jax.Array) else np).full_like(x, number)


def _dtype_holds(dtype: Any, number: Any) -> bool:
    """Whether an array of `dtype` can hold `number` (rounded, if both are floating)."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return True
    if isinstance(number, complex):
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return number == number // 1 and jnp.iinfo(dtype).min <= number <= jnp.iinfo(dtype).max
    if jnp.issubdtype(dtype, jnp.bool_):
        return isinstance(number, bool)
    return jnp.issubdtype(dtype, jnp.floating)

"""Values: transforms, schedules and masks, which compare, hash, pickle and print by their fields.

A value is a frozen dataclass of normalized fields (`fields.py` makes classes into values). It is
static: never a pytree, and without arrays, except for live numbers, which only a run knows.
"""

import dataclasses
import functools
import math
import types as pytypes
import typing
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax

from gradxform.errors import did_you_mean, name_of, shown
from gradxform.types import PyTree
from gradxform.values.content import (
    Hole as Hole,
    Made,
    is_live as is_live,
    keeping_arrays as keeping_arrays,
    keeps_arrays as keeps_arrays,
    key_of as key_of,
    normal as normal,
    put_live as put_live,
    take_live as take_live,
)

T = TypeVar("T")


class FrozenTree(Made):
    """A static tree (of Python scalars, strings or values) that hashes and compares by value."""

    leaves: tuple[Any, ...]
    treedef: Any

    def __init__(self, tree: PyTree) -> None:
        try:
            leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_none)
        except (TypeError, ValueError):
            leaves, treedef = jax.tree.flatten(_tree_with_nodes(tree), is_leaf=_is_none)
        if not _PLAIN.issuperset(map(type, leaves)):
            if any(map(_is_mapping, leaves)):
                nodes = [_mapping_in_value_as_node(leaf) for leaf in leaves]
                leaves, treedef = jax.tree.flatten(treedef.unflatten(nodes), is_leaf=_is_none)
            leaves = map(normal, leaves)
        object.__setattr__(self, "leaves", tuple(leaves))
        object.__setattr__(self, "treedef", treedef)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a FrozenTree is immutable: {name} cannot be set")

    def unfreeze(self) -> PyTree:
        """Return the tree from which this was made, with dicts as in `as_node`."""
        return jax.tree.unflatten(self.treedef, self.leaves)

    def _parts(self) -> tuple[Any, ...]:
        return self.leaves

    def _with_parts(self, parts: Sequence[Any]) -> "FrozenTree":
        tree = object.__new__(FrozenTree)
        object.__setattr__(tree, "leaves", tuple(parts))
        object.__setattr__(tree, "treedef", self.treedef)
        return tree

    def _key_of(self) -> Any:
        return (
            FrozenTree,
            self.treedef,
            _structure_key(self.treedef),
            *[(type(x), x) if type(x) in _PLAIN else key_of(x) for x in self.leaves],
        )

    def __repr__(self) -> str:
        return repr(as_dicts(self.unfreeze()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenTree, (self.unfreeze(),)


# Leaves of these classes are as they should be, and their own keys. A function of the parameters
# returns a tree of them at every step.
_PLAIN = frozenset({bool, int, str, type(None)})


def _is_none(x: Any) -> bool:
    return x is None


def _is_mapping(x: Any) -> bool:
    """Whether a leaf is a mapping that JAX does not know, such as an ml_collections.ConfigDict."""
    is_like_one = hasattr(x, "keys") and hasattr(x, "__getitem__") and not isinstance(x, type)
    return isinstance(x, Mapping) or is_like_one


def _mapping_in_value_as_node(x: Any) -> Any:
    return (
        as_node({k: _mapping_in_value_as_node(x[k]) for k in list(x.keys())})
        if _is_mapping(x)
        else x
    )


def is_function(x: Any) -> bool:
    """Whether `x` is a function and not a tree: models are trees that can be called.

    As for Optax, a tree is told by its leaves. One without leaves, or with functions only, is
    called.
    """
    if not callable(x) or isinstance(x, type):
        return False
    return isinstance(x, jax.tree_util.Partial) or all(map(callable, jax.tree.leaves(x)))


def _structure_key(treedef: Any) -> Any:
    """Return a key with the types of dict keys, which a tree's structure compares by `==`."""
    kind, keys = treedef.node_data() or (None, None)
    key_types = tuple(map(type, keys)) if isinstance(keys, list | tuple) else ()
    return (kind, key_types, *map(_structure_key, treedef.children()))


def as_node(x: Any) -> Any:
    """Return a dict with keys that cannot be sorted as an OrderedDict in a fixed order; else `x`.

    JAX sorts the keys of a dict, which fails for keys of several types. It does not sort those of
    an OrderedDict.
    """
    if not _is_unsortable(x):
        return x
    return OrderedDict((k, x[k]) for k in sorted(x, key=lambda k: (type(k).__qualname__, repr(k))))


def _tree_with_nodes(tree: PyTree) -> PyTree:
    """Return `tree` with every dict in it `as_node`."""

    def one(x: Any) -> Any:
        return as_node({k: _tree_with_nodes(v) for k, v in x.items()}) if _is_unsortable(x) else x

    return jax.tree.map(one, tree, is_leaf=lambda x: x is None or _is_unsortable(x))


def _is_unsortable(x: Any) -> bool:
    if type(x) is not dict:
        return False
    try:
        sorted(x)
    except TypeError:
        return True
    return False


def as_dicts(tree: PyTree) -> PyTree:
    """Undo `as_node` throughout `tree`, for code that does not flatten it."""

    def is_ordered(x: Any) -> bool:
        return type(x) is OrderedDict and _is_unsortable(dict(x))

    def unordered(x: Any) -> Any:
        return {k: as_dicts(v) for k, v in x.items()} if is_ordered(x) else x

    return jax.tree.map(unordered, tree, is_leaf=lambda x: x is None or is_ordered(x))


def frozen(x: Any) -> Any:
    """Return `x` as a hashable value: a dict or list as a FrozenTree, a scalar as a number."""
    return FrozenTree(x) if isinstance(x, dict | list) else normal(x)


def thawed(x: Any) -> Any:
    """Undo `frozen`."""
    return x.unfreeze() if isinstance(x, FrozenTree) else x


class Value(Made):
    """Base of everything that is compared by its fields."""

    registered_name: ClassVar[str | None] = None
    # Whether it is known to hold no live number.
    is_static: ClassVar[bool] = False
    # The name of a field that takes the remaining positional arguments, as in `chain(a, b, c)`.
    variadic: ClassVar[str | None] = None
    # The field of configs that has the arguments with which it is called, if it makes other values.
    called_with: ClassVar[str | None] = None
    # Whether it is called with something else than a count, so that it cannot be a schedule.
    never_schedule: ClassVar[bool] = False
    # Whether it returns something else than booleans of parameters, so that it cannot be a mask.
    never_mask: ClassVar[bool] = False

    def written(self) -> tuple[str | None, dict[str, Any]]:
        """Return the name and the fields that configs have for it."""
        return self.registered_name, fields_of(self)

    def _parts(self) -> tuple[Any, ...]:
        return tuple(fields_of(self).values())

    def _with_parts(self, parts: Sequence[Any]) -> "Value":
        new = object.__new__(type(self))
        for name, part in zip(fields_of(self), parts, strict=True):
            object.__setattr__(new, name, part)
        return new

    def _key_of(self) -> Any:
        return (type(self), *map(key_of, self._parts()))

    def _is_checked(self) -> bool:
        return True

    def __setattr__(self, name: str, x: Any) -> None:
        if _is_frozen_field(type(self), name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, x)

    def __delattr__(self, name: str) -> None:
        if _is_frozen_field(type(self), name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def __repr__(self) -> str:
        return f"{call_name(type(self))}({', '.join(_call_arguments(self))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), fields_of(self))


def _is_frozen_field(cls: type[Value], name: str) -> bool:
    """Whether an attribute cannot be set: every one of a class of values, and fields below it."""
    key = "__dataclass_fields__"
    return key in cls.__dict__ or name in getattr(cls, key, ())


def call_name(cls: type[Value]) -> str:
    """Return the name by which code calls a class of values."""
    registered = cls.registered_name or ":"
    return cls.__name__ if ":" in registered else registered


def fields_of(v: Value) -> dict[str, Any]:
    """Return the fields of a value by name, in order."""
    if not dataclasses.is_dataclass(v):  # a class without the decorator
        return {}
    return {f.name: getattr(v, f.name) for f in dataclasses.fields(v)}


def rebuild(cls: type[T], fields: dict[str, Any]) -> T:
    """Return a value of class `cls` with these fields, checked by its constructor."""
    variadic = getattr(cls, "variadic", None)
    if variadic is None:
        return cls(**fields)
    rest = {k: v for k, v in fields.items() if k != variadic}
    return cls(*fields[variadic], **rest)


def replace(v: T, **changes: Any) -> T:
    """Return `v` with some fields changed, checked like a new one."""
    if not isinstance(v, Value):
        raise TypeError(f"replace: needs a transform, schedule or mask, got {shown(v)}.")
    fields = fields_of(v)
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise TypeError(
            f"{name_of(v)}: no field named {unknown[0]!r}, it has {', '.join(fields) or 'none'}."
            f"{did_you_mean(unknown[0], fields)}"
        )
    return rebuild(type(v), fields | changes)


# ------------------------------------------------------------------------------------- printing


def printed(x: Any) -> str:
    """Return `x` as text that evaluates to an equal value, where possible."""
    if is_live(x):
        return f"<live {x.dtype}>"
    if isinstance(x, float) and not math.isfinite(x):
        return f"float('{x}')"
    if isinstance(x, pytypes.FunctionType | pytypes.BuiltinFunctionType | type):
        return x.__qualname__
    if type(x) is functools.partial:
        named = [f"{name}={printed(arg)}" for name, arg in x.keywords.items()]
        return f"functools.partial({', '.join([*map(printed, (x.func, *x.args)), *named])})"
    if type(x) is tuple:
        return f"({', '.join(printed(v) for v in x)}{',' if len(x) == 1 else ''})"
    return repr(x)


def _call_arguments(v: Value) -> Iterator[str]:
    """Yield the arguments of the call that makes `v`; switches at their default are left out."""
    for f in dataclasses.fields(typing.cast(Any, v)):
        x = getattr(v, f.name)
        if f.name == v.variadic:
            yield from (printed(item) for item in x)
        elif not (x is f.default and (x is None or isinstance(x, bool))):
            yield f"{f.name}={printed(x)}"

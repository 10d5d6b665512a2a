"""What a value is: transforms, schedules and masks compare, hash, pickle and print by value.

A value is a frozen dataclass of normalised fields (`registry.py` makes classes into values). It is
static: never a pytree, and without arrays, except for live numbers, which only a run knows.
"""

import contextlib
import contextvars
import dataclasses
import math
import types as pytypes
import typing
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._compat import is_tracer
from gradxform.errors import did_you_mean, name_of, shown

T = TypeVar("T")


def plain(x: Any) -> Any:
    """NumPy and JAX scalars as Python numbers; anything else as it is."""
    if is_tracer(x) or isinstance(x, type):
        return x
    if _KEEP_ARRAYS.get() and isinstance(x, jax.Array) and x.ndim == 0:
        return x
    if isinstance(x, np.generic | np.ndarray | jax.Array) and x.ndim == 0:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.item()
    return x


class FrozenTree:
    """A static tree (of Python scalars, strings or values) that hashes and compares by value."""

    __slots__ = ("leaves", "treedef")

    def __init__(self, tree: Any):
        leaves, treedef = jax.tree.flatten(tree, is_leaf=lambda x: x is None)
        object.__setattr__(self, "leaves", tuple(plain(leaf) for leaf in leaves))
        object.__setattr__(self, "treedef", treedef)

    def __setattr__(self, name: str, value: Any):
        raise AttributeError(f"a FrozenTree is immutable: {name} cannot be set")

    def unfreeze(self) -> Any:
        """Return the tree as it was given."""
        return jax.tree.unflatten(self.treedef, self.leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenTree) and key_of(self) == key_of(other)

    def __hash__(self) -> int:
        return hash(key_of(self))

    def __repr__(self) -> str:
        return repr(self.unfreeze())

    def __reduce__(self):
        return FrozenTree, (self.unfreeze(),)


def frozen(x: Any) -> Any:
    """Return `x` as something that hashes: a dict or list as a FrozenTree, a scalar as a number."""
    return FrozenTree(x) if isinstance(x, dict | list) else plain(x)


def thawed(x: Any) -> Any:
    """Undo `frozen`."""
    return x.unfreeze() if isinstance(x, FrozenTree) else x


class Hole:
    """Stands in a value for the `index`-th live number that was taken out of it."""

    def __init__(self, index: int):
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hole) and self.index == other.index

    def __hash__(self) -> int:
        return hash((Hole, self.index))


class Value:
    """Base of everything that is compared by value: its fields are all that it is."""

    registered_name: ClassVar[str | None] = None
    # The name of a field that takes the remaining positional arguments, as in `chain(a, b, c)`.
    variadic: ClassVar[str | None] = None
    # Whether it is called with something else than a count, and so can be no schedule.
    never_schedule: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        try:
            return key_of(self) == key_of(other)
        except TypeError:  # holds a live number, which has no value to compare
            return False

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash(key_of(self))
            object.__setattr__(self, "_hash", found)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_printed(self))})"

    def __reduce__(self):
        return rebuild, (type(self), fields_of(self))


def fields_of(v: Value) -> dict[str, Any]:
    """Return the fields of a value by name, in order."""
    return {f.name: getattr(v, f.name) for f in dataclasses.fields(typing.cast(Any, v))}


def rebuild(cls: type[T], fields: dict[str, Any]) -> T:
    """Make a value of class `cls` from its fields, as the constructor would."""
    variadic = getattr(cls, "variadic", None)
    if variadic is None:
        return cls(**fields)
    rest = {k: v for k, v in fields.items() if k != variadic}
    return cls(*fields[variadic], **rest)


def replace(v: T, **changes: Any) -> T:
    """Return `v` with some fields changed, checked like a new one."""
    if not isinstance(v, Value):
        raise TypeError(f"replace: a transform, schedule or mask is wanted, got {shown(v)}.")
    fields = fields_of(v)
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise TypeError(
            f"{name_of(v)}: no field named {unknown[0]!r}, it has {', '.join(fields) or 'none'}."
            f"{did_you_mean(unknown[0], fields)}"
        )
    return rebuild(type(v), fields | changes)


def key_of(x: Any) -> Any:
    """Return a hashable key that tells apart what `==` confuses: 1, 1.0 and True; 0.0 and -0.0."""
    if isinstance(x, Value):
        found = x.__dict__.get("_key")
        if found is None:
            found = (type(x), *(key_of(v) for v in fields_of(x).values()))
            object.__setattr__(x, "_key", found)
        return found
    if isinstance(x, float):
        return (float, x.hex())
    if isinstance(x, bool | int | str) or x is None:
        return (type(x), x)
    if isinstance(x, tuple) and type(x) is tuple:
        return (tuple, *(key_of(v) for v in x))
    if isinstance(x, FrozenTree):
        return (FrozenTree, x.treedef, *(key_of(v) for v in x.leaves))
    if is_live(x):
        raise TypeError("a value that holds a live number is not hashable")
    hash(x)
    return x


# --------------------------------------------------------------------------------- live numbers

# A field may hold a live number, a traced one or a 0-d array, instead of a Python number: under
# `vmap` over a learning rate, or when hyperparameters come out of a state. Such a value is not
# hashable; the lift takes the numbers out, so that they are arguments of the compiled call.
_KEEP_ARRAYS: contextvars.ContextVar[bool] = contextvars.ContextVar("keep_arrays", default=False)


@contextlib.contextmanager
def keeping_arrays() -> Iterator[None]:
    """Leave 0-d arrays in the fields of values made here, which else become Python numbers."""
    token = _KEEP_ARRAYS.set(True)
    try:
        yield
    finally:
        _KEEP_ARRAYS.reset(token)


def keeps_arrays() -> bool:
    """Whether `keeping_arrays` is in force."""
    return _KEEP_ARRAYS.get()


def is_live(x: Any) -> bool:
    """Whether `x` is a number that only a run knows: traced, or a 0-d array."""
    return isinstance(x, jax.Array) and x.ndim == 0


def take_live(x: Any, taken: list[Any]) -> Any:
    """Return `x` with every live number replaced by a `Hole`; the numbers go to `taken`."""
    if is_live(x):
        taken.append(x)
        return Hole(len(taken) - 1)
    if isinstance(x, tuple) and type(x) is tuple:
        return tuple(take_live(v, taken) for v in x)
    if isinstance(x, Value):
        before = len(taken)
        fields = {k: take_live(v, taken) for k, v in fields_of(x).items()}
        if len(taken) == before:
            return x
        return _unchecked(type(x), fields)
    return x


def put_live(x: Any, taken: tuple[Any, ...]) -> Any:
    """Undo `take_live`."""
    if isinstance(x, Hole):
        return taken[x.index]
    if isinstance(x, tuple) and type(x) is tuple:
        return tuple(put_live(v, taken) for v in x)
    if isinstance(x, Value):
        return _unchecked(type(x), {k: put_live(v, taken) for k, v in fields_of(x).items()})
    return x


def _unchecked(cls: type, fields: dict[str, Any]) -> Any:
    new = object.__new__(cls)
    for name, v in fields.items():
        object.__setattr__(new, name, v)
    return new


# ------------------------------------------------------------------------------------- printing


def printed(x: Any) -> str:
    """Spell `x` so that evaluating the text gives an equal value, where that is possible."""
    if is_live(x):
        return f"<live {x.dtype}>"
    if isinstance(x, float) and not math.isfinite(x):
        return f"float('{x}')"
    if isinstance(x, pytypes.FunctionType | pytypes.BuiltinFunctionType | type):
        return x.__qualname__
    if type(x) is tuple:
        return f"({', '.join(printed(v) for v in x)}{',' if len(x) == 1 else ''})"
    return repr(x)


def _printed(v: Value) -> Iterator[str]:
    """The arguments of the call that makes `v`; switches that are off are left out."""
    for f in dataclasses.fields(typing.cast(Any, v)):
        x = getattr(v, f.name)
        if f.name == v.variadic:
            yield from (printed(item) for item in x)
        elif not (x is f.default and (x is None or isinstance(x, bool))):
            yield f"{f.name}={printed(x)}"

"""The content of values: their parts, the keys by which they compare, live numbers in them.

The fields of a value may hold numbers, strings, functions and classes; tuples, named tuples,
frozensets, frozen dataclasses, partials and static trees of these; and other values.
"""

import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import types as pytypes
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer
from gradxform.errors import shown
from gradxform.types import SupportsTransform


class Made:
    """Base of the types with parts that this library defines: values and static trees."""

    # The key and the hash, once they have been asked for.
    _key: Any = None
    _hash: int | None = None

    def _parts(self) -> tuple[Any, ...]:
        """Return the parts, in a fixed order."""
        raise NotImplementedError

    def _with_parts(self, parts: Sequence[Any]) -> Any:
        """Return a copy with other parts, without checks."""
        raise NotImplementedError

    def _key_of(self) -> Any:
        """Make the key for comparisons."""
        raise NotImplementedError

    def _kept_key(self) -> Any:
        """Return the key for comparisons, made once."""
        if self._key is None:
            object.__setattr__(self, "_key", self._key_of())
        return self._key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not isinstance(other, Made):
            return NotImplemented
        if self._key is None or other._key is None:
            return equal_keys(self, other)
        return self._key == other._key

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(self._kept_key()))
        assert self._hash is not None
        return self._hash

    def _is_checked(self) -> bool:
        """Whether its parts are known to be values."""
        return False


class Hole:
    """Placeholder for the `index`-th live number taken out of a value."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hole) and self.index == other.index

    def __hash__(self) -> int:
        return hash((Hole, self.index))


def plain_number(x: Any) -> Any:
    """Return a NumPy or JAX scalar as a Python number, anything else unchanged."""
    if is_tracer(x) or isinstance(x, type):
        return x
    if _KEEP_ARRAYS.get() and isinstance(x, jax.Array) and x.ndim == 0:
        return x
    if isinstance(x, np.generic | np.ndarray | jax.Array) and x.ndim == 0:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.item()
    return x


# ---------------------------------------------------------------------------------------- parts


def parts_of(x: Any) -> tuple[Any, ...] | None:
    """Return the parts of a value, or None if it does not have parts.

    Values and frozen trees, tuples and named tuples, frozensets, frozen dataclasses and partials of
    functions have parts.
    """
    if isinstance(x, Made):
        return x._parts()
    if isinstance(x, tuple | frozenset):
        return tuple(x)
    if isinstance(x, functools.partial):
        return (x.func, *x.args, *x.keywords.values())
    names = _fields(type(x))
    return None if names is None else tuple(getattr(x, name) for name in names)


def is_hashable(x: Any) -> bool:
    """Whether `x` can be the key of a dict."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


def all_in(x: Any) -> Iterator[Any]:
    """Yield `x` and what it has for parts, at any depth."""
    yield x
    for part in parts_of(x) or ():
        yield from all_in(part)


def with_parts(x: Any, parts: Sequence[Any]) -> Any:
    """Return a copy of `x` with other parts, in the order of `parts_of`."""
    if isinstance(x, Made):
        return x._with_parts(parts)
    if isinstance(x, tuple):
        return tuple.__new__(type(x), parts)
    if isinstance(x, frozenset):
        return type(x)(parts)
    if isinstance(x, functools.partial):
        function, *arguments = parts
        args, named = arguments[: len(x.args)], arguments[len(x.args) :]
        return type(x)(function, *args, **dict(zip(x.keywords, named, strict=True)))
    new = copy.copy(x)
    for name, part in zip(_fields(type(x)) or (), parts, strict=True):
        object.__setattr__(new, name, part)
    return new


@functools.cache
def _fields(cls: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass that hashes by them, None for any other class."""
    if not dataclasses.is_dataclass(cls) or cls.__hash__ in (None, object.__hash__):
        return None
    return tuple(f.name for f in dataclasses.fields(cls))  # also those that its own `==` leaves out


def normal(x: Any) -> Any:
    """Return `x` with the NumPy and JAX scalars in it, at any depth, as Python numbers."""
    parts = None if isinstance(x, Made) else parts_of(x)
    if parts is None:
        return plain_number(x)
    new = [normal(part) for part in parts]
    return x if _is_unchanged(new, parts) else with_parts(x, new)


def _is_unchanged(new: Sequence[Any], old: Sequence[Any]) -> bool:
    return all(n is o for n, o in zip(new, old, strict=True))


# ------------------------------------------------------------------------------------- comparing


def key_of(x: Any) -> Any:
    """Return a hashable key for a value, which also distinguishes some values that are equal.

    The key includes all types at every depth, so that 1, 1.0 and True differ, as do 0.0 and -0.0
    and named tuples of different classes. Functions, classes and objects with their own `==` are
    compared by it; partials are compared by their parts.

    Raises:
      TypeError: if `x` holds a live number or something that cannot be hashed.
    """
    if isinstance(x, Made):
        return x._kept_key()
    if isinstance(x, enum.Enum) or x is None:  # before numbers, which some enums are
        return (type(x), x)
    if isinstance(x, bool | int | float | complex | str | bytes):
        return _key_of_scalar(x)
    if is_live(x):
        raise TypeError("a value that holds a live number is not hashable")
    if isinstance(x, frozenset):
        return (type(x), frozenset(map(key_of, x)))
    if isinstance(x, functools.partial):
        return _key_of_partial(x)
    parts = parts_of(x)
    if parts is not None and not _is_foreign_content(x):
        return (type(x), *map(key_of, parts))
    try:
        hash(x)
    except TypeError:
        if not _is_foreign_content(x):
            raise
        return (type(x), _KeyByIdentity(x))
    return (type(x), x)


def equal_keys(x: Any, other: Any) -> bool:
    """Whether two values have the same key; a value with a live number never does."""
    try:
        return key_of(x) == key_of(other)
    except TypeError:
        return False


def _attributes_for_key(x: Any) -> dict[str, Any]:
    """Return the attributes in an object's dict and slots."""
    attributes = dict(getattr(x, "__dict__", ()))
    for cls in type(x).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(x, name):
                attributes[name] = getattr(x, name)
    return attributes


def _key_of_scalar(x: Any) -> tuple[Any, ...]:
    if isinstance(x, float):
        content: Any = float.hex(x)
    elif isinstance(x, complex):
        content = (x.real.hex(), x.imag.hex())
    else:
        content = int(x) if isinstance(x, int) else x
    attributes = _attributes_for_key(x)  # only instances of a subclass have any
    if attributes:
        return (type(x), content, key_of(tuple(attributes.items())))
    return (type(x), content)


def _key_of_partial(x: functools.partial) -> Any:
    """Return the key of a partial: that of its parts if these are values, else its identity."""
    try:
        named = frozenset((name, key_of(arg)) for name, arg in x.keywords.items())
        return (type(x), key_of(x.func), tuple(map(key_of, x.args)), named)
    except TypeError:
        if any(map(is_live, jax.tree.leaves((x.args, x.keywords)))):
            raise
        return (type(x), _KeyByIdentity(x))


def _is_foreign_content(x: Any) -> bool:
    """Whether `x` is a transformation of another library, which is not looked into."""
    return not isinstance(x, Made | type) and isinstance(x, SupportsTransform)


class _KeyByIdentity:
    """Wraps an object that is equal only to itself."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _KeyByIdentity) and self.x is other.x

    def __hash__(self) -> int:
        return id(self.x)


def flaw_of(x: Any) -> str | None:
    """Return why a field is not a value, with the remedy, or None if it is one."""
    if x is None or isinstance(x, bool | int | float | complex | str | bytes | type | Hole):
        return None
    if isinstance(x, pytypes.FunctionType) or (isinstance(x, Made) and x._is_checked()):
        return None
    if isinstance(x, np.ndarray | jax.Array):
        return None if is_live(x) and not x.ndim else f"{shown(x)}. {_NO_ARRAYS}"
    if _is_foreign_content(x):
        return None
    if isinstance(x, functools.partial):
        return _flaw_of_partial(x)
    if isinstance(x, tuple | frozenset) and _attributes_for_key(x):
        return f"{shown(x)}, which has attributes besides its entries. {_FREEZE}"
    parts = parts_of(x)
    if parts is not None:
        return next(filter(None, map(flaw_of, parts)), None)
    if isinstance(x, list | set | dict):
        return f"a {type(x).__name__}, which can change. Give a tuple or a frozenset."
    if not is_hashable(x):
        return f"{shown(x)}, which cannot be hashed. {_FREEZE}"
    if type(x).__hash__ is object.__hash__ and not callable(x) and _attributes_for_key(x):
        return f"{shown(x)}, which can change and is equal only to itself. {_FREEZE}"
    return None


def _flaw_of_partial(x: functools.partial) -> str | None:
    """Return why a partial is not a value: it has an array other than the live numbers."""
    numbers: list[Any] = []
    take_live(x, numbers)
    for arg in jax.tree.leaves((x.args, x.keywords)):
        live = any(arg is number for number in numbers) and not arg.ndim
        if isinstance(arg, np.ndarray | jax.Array) and not live:
            return f"a partial that holds {shown(arg)}. {_NO_ARRAYS}"
    return flaw_of(x.func)


_NO_ARRAYS = "Arrays belong in the state or in the parameters, not in a transform."
_FREEZE = "Make its class a frozen dataclass or a NamedTuple."


# --------------------------------------------------------------------------------- live numbers

# A field may hold a live number, a traced one or a 0-d array, instead of a Python number: under
# `vmap` over a learning rate, or when hyperparameters come out of a state. Such a value is not
# hashable; the lift takes the numbers out, so that they are arguments of the compiled call.
_KEEP_ARRAYS: contextvars.ContextVar[bool] = contextvars.ContextVar("keep_arrays", default=False)


@contextlib.contextmanager
def keeping_arrays() -> Iterator[None]:
    """Keep 0-d arrays in the fields of values made here, instead of making them Python numbers."""
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
    return isinstance(x, jax.Array) and (x.ndim == 0 or is_tracer(x))


def take_live(x: Any, taken: list[Any]) -> Any:
    """Return `x` with every live number in it replaced by a `Hole`; the numbers go to `taken`."""
    if is_live(x):
        taken.append(x)
        return Hole(len(taken) - 1)
    if isinstance(x, Made) and x._key is not None:
        return x  # does not hold a live number: it would not have a key
    parts = parts_of(x)
    if parts is None:
        return x
    before = len(taken)
    new = [take_live(part, taken) for part in parts]
    return x if len(taken) == before else with_parts(x, new)


def put_live(x: Any, taken: tuple[Any, ...]) -> Any:
    """Undo `take_live`."""
    if isinstance(x, Hole):
        return taken[x.index]
    parts = parts_of(x)
    if parts is None:
        return x
    new = [put_live(part, taken) for part in parts]
    return x if _is_unchanged(new, parts) else with_parts(x, new)

"""The value base: transforms, schedules and masks are frozen dataclasses that compare by value.

`@value` turns a class into a frozen dataclass whose fields are normalised when it is made (NumPy
scalars become Python numbers, dtypes become names, dicts become `FrozenTree`), that compares,
hashes and pickles by value, that prints as the call which makes it, and that is registered under
its name. A value is static: it is never a pytree and never holds an array with dimensions.
"""

import collections.abc
import contextlib
import contextvars
import dataclasses
import math
import types as pytypes
import typing
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import types
from gradxform._compat import is_tracer
from gradxform.errors import name_of

T = TypeVar("T")

# Every class and recipe that a config may name. Third parties register under "their:name".
REGISTRY: dict[str, Callable[..., Any]] = {}


class FrozenTree:
    """A static tree (of Python scalars, strings or values) that hashes and compares by value."""

    __slots__ = ("leaves", "treedef")

    def __init__(self, tree: Any):
        leaves, treedef = jax.tree.flatten(tree, is_leaf=lambda x: x is None)
        object.__setattr__(self, "leaves", tuple(_plain(leaf) for leaf in leaves))
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
    return FrozenTree(x) if isinstance(x, dict | list) else _plain(x)


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
    return {f.name: getattr(v, f.name) for f in dataclasses.fields(v)}  # type: ignore[arg-type]


def rebuild(cls: type[T], fields: dict[str, Any]) -> T:
    """Make a value of class `cls` from its fields, as the constructor would."""
    variadic = getattr(cls, "variadic", None)
    if variadic is None:
        return cls(**fields)
    rest = {k: v for k, v in fields.items() if k != variadic}
    return cls(*fields[variadic], **rest)


def replace(v: T, **changes: Any) -> T:
    """Return `v` with some fields changed, checked like a new one."""
    fields = fields_of(typing.cast(Value, v))
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise TypeError(f"{name_of(v)}: no field named {unknown[0]!r}, it has {', '.join(fields)}.")
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


# ------------------------------------------------------------------------------- making a value


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def value(cls: type[T] | None = None, /, *, name: str | None = None) -> Any:
    """Make a class a value: a frozen, normalised, registered dataclass.

    Args:
      cls: a subclass of `Transform`, `Schedule`, `Mask` or `Value`, with annotated fields. Its
        `__post_init__`, if any, sees normalised fields and checks their ranges.
      name: what configs call it. Classes of other packages give `"their:name"` here; without a
        name they work in every way but cannot be written to a config.
    """
    if cls is None:
        return lambda c: value(c, name=name)
    if name is not None and ":" not in name:
        raise ValueError(
            f"{cls.__name__}: the name {name!r} has no package; register under 'package:{name}'."
        )
    if name is None and cls.__module__.split(".")[0] == "gradxform":
        name = cls.__name__
    check = cls.__dict__.get("__post_init__") or getattr(cls, "__post_init__", None)

    def __post_init__(self):
        for key, annotation in _annotations(type(self)).items():
            given = getattr(self, key)
            object.__setattr__(self, key, _normalised(self, key, given, annotation))
        if check is not None:
            check(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    variadic = getattr(cls, "variadic", None)
    made = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    if variadic is not None:
        made.__init__ = _variadic_init(made, variadic)  # type: ignore[misc]
    # An attribute of the class itself, never inherited: a subclass has no name until it is given one.
    made.registered_name = name  # type: ignore[attr-defined]
    if name is not None:
        register(name, made)
    return made


def register(name: str, made: Callable[..., T]) -> Callable[..., T]:
    """Make `made` (a class or a recipe) known to configs under `name`."""
    known = REGISTRY.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (
        made.__module__,
        made.__qualname__,
    ):
        raise ValueError(
            f"{name!r} is already registered, by {known.__module__}.{known.__qualname__}; "
            "choose another name."
        )
    REGISTRY[name] = made
    return made


def _variadic_init(cls: type, variadic: str) -> Callable[..., None]:
    others = {f.name: f for f in dataclasses.fields(cls) if f.name != variadic}

    def __init__(self, *args, **kwargs):
        unknown = sorted(set(kwargs) - set(others))
        if unknown:
            raise TypeError(f"{cls.__name__}: unexpected argument {unknown[0]!r}.")
        object.__setattr__(self, variadic, tuple(args))
        for key, f in others.items():
            object.__setattr__(self, key, kwargs.get(key, f.default))
        self.__post_init__()

    return __init__


def _annotations(cls: type) -> dict[str, Any]:
    found = cls.__dict__.get("_hints")
    if found is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        found = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
        cls._hints = found  # type: ignore[attr-defined]
    return found


def annotation_kinds(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation: `float | None` is float and NoneType."""
    if typing.get_origin(annotation) in (typing.Union, pytypes.UnionType):
        return [k for arg in typing.get_args(annotation) for k in annotation_kinds(arg)]
    return [annotation]


def _plain(x: Any) -> Any:
    """NumPy and JAX scalars as Python numbers; anything else as it is."""
    if is_tracer(x) or isinstance(x, type):
        return x
    if _KEEP_ARRAYS.get() and isinstance(x, jax.Array) and x.ndim == 0:
        return x
    if isinstance(x, np.generic | np.ndarray | jax.Array) and x.ndim == 0:
        return x.item()
    return x


def _normalised(part: Value, field: str, x: Any, annotation: Any) -> Any:
    if is_tracer(x) or isinstance(x, Hole) or (_KEEP_ARRAYS.get() and is_live(x)):
        return x
    kinds = annotation_kinds(annotation)
    if types.DType in kinds:
        return None if x is None else _dtype_name(part, field, x)
    if types.Key in kinds:
        return _static_key(part, field, x)
    if types.StaticTree in kinds and not isinstance(x, Value) and not callable(x):
        return x if isinstance(x, FrozenTree | bool) or x is None else FrozenTree(x)
    if any(k is Any or typing.get_origin(k) is typing.Annotated for k in kinds):
        return _refuse_arrays(part, field, _plain(x))
    x = _refuse_arrays(part, field, _plain(x))
    if isinstance(x, bool):
        ok = bool in kinds
    elif x is None:
        ok = type(None) in kinds
    elif isinstance(x, int):
        ok = int in kinds or float in kinds
        x = x if int in kinds else float(x)
    elif isinstance(x, float):
        ok = float in kinds
        if ok and math.isnan(x):
            raise ValueError(f"{name_of(part)}: {field} must be a number, got nan.")
    elif isinstance(x, str):
        ok = str in kinds
    else:
        return _other(part, field, x, kinds)
    if not ok:
        raise TypeError(f"{name_of(part)}: {field} must be {_rule(kinds)}, got {x!r}.")
    return x


def _other(part: Value, field: str, x: Any, kinds: list[Any]) -> Any:
    """An `x` that is no scalar: a value of a class that the annotation names, or a function."""
    for k in kinds:
        origin = typing.get_origin(k) or k
        if origin is collections.abc.Callable:
            if callable(x):
                return x
        elif origin is tuple and isinstance(x, tuple | list):
            return tuple(_plain(v) for v in x)
        elif isinstance(origin, type) and origin is not jax.Array:
            if isinstance(x, origin):
                return x
    raise TypeError(f"{name_of(part)}: {field} must be {_rule(kinds)}, got {x!r}.")


def _refuse_arrays(part: Value, field: str, x: Any) -> Any:
    if isinstance(x, np.ndarray | jax.Array) and x.ndim > 0:
        raise TypeError(
            f"{name_of(part)}: {field} must be a number, got an array of shape {x.shape}. "
            "Arrays belong in the state or in the parameters, not in a transform."
        )
    if isinstance(x, complex):
        raise TypeError(f"{name_of(part)}: {field} must be real, got {x!r}.")
    return x


def _static_key(part: Value, field: str, key: Any) -> Any:
    """A PRNG key as something that hashes and prints: a seed, or the words of the key."""
    if isinstance(key, bool | float | str) or key is None:
        raise TypeError(f"{name_of(part)}: {field} must be an integer or a PRNG key, got {key!r}.")
    if isinstance(key, int | tuple):
        return key
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        words = tuple(int(w) for w in np.asarray(jax.random.key_data(key)).ravel())
        return (str(jax.random.key_impl(key)), *words)
    return tuple(int(w) for w in np.asarray(key).ravel())


def _dtype_name(part: Value, field: str, x: Any) -> str:
    try:
        name = jnp.dtype(x).name
    except TypeError:
        raise TypeError(f"{name_of(part)}: {field} must be a dtype or None, got {x!r}.") from None
    if not jnp.issubdtype(jnp.dtype(name), jnp.inexact):
        raise ValueError(f"{name_of(part)}: {field} must be a floating dtype, got {name!r}.")
    return name


def _rule(kinds: list[Any]) -> str:
    words = {float: "a number", int: "an integer", bool: "True or False", str: "a string"}
    words |= {type(None): "None", tuple: "a tuple"}
    said = [words.get(typing.get_origin(k) or k) for k in kinds]
    if float in kinds:
        said = [w for w in said if w != "an integer"]
    said = [w for w in said if w is not None]
    if any(typing.get_origin(k) is collections.abc.Callable for k in kinds):
        said.append("a schedule" if float in kinds else "a function")
    said += [
        k.__name__ for k in kinds if isinstance(k, type) and k not in words and k is not jax.Array
    ]
    return " or ".join(dict.fromkeys(said)) or "something else"


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
    for f in dataclasses.fields(v):  # type: ignore[arg-type]
        x = getattr(v, f.name)
        if f.name == v.variadic:
            yield from (printed(item) for item in x)
        elif not (x is f.default and (x is None or isinstance(x, bool))):
            yield f"{f.name}={printed(x)}"

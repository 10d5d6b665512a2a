"""`@value` makes a class a value: what its fields may hold, and how they are normalized.

`@value` turns a class into a frozen dataclass whose fields are normalized when it is made (NumPy
scalars become Python numbers, dtypes become names, dicts become `FrozenTree`), that compares,
hashes and pickles by value, that prints as the call which makes it, and that is registered under
its name.
"""

import collections.abc
import contextlib
import dataclasses
import math
import types as pytypes
import typing
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

import jax
import numpy as np

from gradxform import types
from gradxform._jax.versions import is_tracer
from gradxform._names.deferred import signature_of
from gradxform._names.signatures import ClassSignature
from gradxform.errors import must_be, name_of, require_range, shown
from gradxform.values.content import flaw_of
from gradxform.values.export_names import announce_named_tuples
from gradxform.values.field_kinds import check_mask, dtype_name, static_key
from gradxform.values.known_arguments import with_known_arguments
from gradxform.values.registry import check_name, register
from gradxform.values.value import (
    FrozenTree,
    Hole,
    Value,
    is_function,
    is_live,
    keeps_arrays,
    key_of,
    normal,
)

T = TypeVar("T")


# Where a class keeps the evaluated annotations of its fields.
_HINTS = "_hints"
# The alternative of `ZeroIsNone` that bears its mark.
_ZERO = typing.get_args(types.ZeroIsNone)[-1]


@overload
@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def value(cls: type[T], /) -> type[T]: ...
@overload
@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def value(*, name: str | None) -> Callable[[type[T]], type[T]]: ...
def value(cls: type[T] | None = None, /, *, name: str | None = None) -> Any:
    """Make a class a value: a frozen, normalized, registered dataclass.

    Args:
      cls: a subclass of `Transform`, `Schedule`, `Mask` or `Value`, with annotated fields. Its
        `__post_init__`, if any, sees normalized fields and checks their ranges.
      name: what configs call it. Classes of other packages give `"their:name"` here; without a
        name they work in every way but cannot be written to a config.
    """

    def made(cls: Any) -> Any:
        return made_value(cls, name)

    return made if cls is None else made(cls)


def made_value(cls: Any, name: str | None) -> Any:
    """Make a class a value that configs call `name`; None: of its own name, if it is ours.

    Configs do not have those of our classes that are private.
    """
    if not (isinstance(cls, type) and issubclass(cls, Value)):
        raise TypeError(
            f"value: {shown(cls)} is not a subclass of Transform, Schedule, Mask or Value."
        )
    is_ours = cls.__module__.split(".")[0] == "gradxform"
    if name is None and is_ours and not cls.__name__.startswith("_"):
        name = cls.__name__
    if name is not None:
        check_name(name, cls)
    announce_named_tuples(cls.__module__)
    check = cls.__dict__.get("__post_init__") or getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        for key, annotation in _annotations(type(self)).items():
            x = getattr(self, key)
            object.__setattr__(self, key, normalized_value(self, key, x, annotation))
            require_range(self, key, range_of(annotation))
        if check is not None:
            check(self)
        for key, annotation in _annotations(type(self)).items():
            flaw = flaw_of(getattr(self, key))
            if flaw is not None and not (annotation is types.Key and is_live(getattr(self, key))):
                raise TypeError(f"{name_of(self)}: {key} must be a value, got {flaw}")
        with contextlib.suppress(TypeError):  # a value that holds a live number cannot be a key
            key_of(self)
            object.__setattr__(self, "is_static", True)

    open_class: Any = cls  # what follows sets attributes that `type` does not declare
    open_class.__post_init__ = __post_init__
    variadic = getattr(cls, "variadic", None)
    new_class = _with_value_fields(cls)
    for key in ("name", "version"):
        if key in {f.name for f in dataclasses.fields(new_class)}:
            raise TypeError(
                f"{cls.__name__}: a field must not be called {key!r}, which is a key of its own in "
                "configs; choose another word."
            )
    if variadic is not None:
        new_class.__init__ = _init_of_variadic_field(new_class, variadic)
    new_class.__signature__ = ClassSignature()
    # An attribute of the class itself, never inherited: a subclass must be named by itself.
    new_class.registered_name = name
    if name is not None:
        register(name, new_class)
    return new_class


def _with_value_fields(cls: Any) -> Any:
    """Make a class a frozen dataclass, without compiling what `Value` defines.

    Otherwise Python compiles three functions for each class, and most are never used.
    """
    has_frozen_base = any(map(dataclasses.is_dataclass, cls.__mro__[1:]))  # then Python asks for it
    new_class = dataclasses.dataclass(init=False, frozen=has_frozen_base, eq=False, repr=False)(cls)
    new_class.__dataclass_params__.frozen = True
    own = cls.__dict__.get("__init__")
    new_class.__init__ = _Init(new_class) if own is None else with_known_arguments(own)
    return new_class


class _Init:
    """The `__init__` of a class of values, compiled at the first call of the class."""

    def __init__(self, cls: type) -> None:
        self._cls: Any = cls

    def __get__(self, instance: Any, owner: type) -> Any:
        cls = self._cls
        fields = []
        for f in dataclasses.fields(cls):
            options: dict[str, Any] = {"init": f.init, "kw_only": f.kw_only, "default": f.default}
            if f.default_factory is not dataclasses.MISSING:
                options["default_factory"] = f.default_factory
            fields.append((f.name, f.type, dataclasses.field(**options)))
        holder: Any = dataclasses.make_dataclass(
            cls.__name__,
            fields,
            namespace={"__post_init__": None},  # so that its `__init__` calls that of `self`
            frozen=True,
            eq=False,
            repr=False,
        )
        init = holder.__init__
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        init.__module__ = cls.__module__
        cls.__init__ = init = with_known_arguments(init)
        return init.__get__(instance, owner)


def _init_of_variadic_field(cls: type, variadic: str) -> Callable[..., None]:
    others = {f.name: f for f in dataclasses.fields(cls) if f.name != variadic}

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(others))
        if unknown:
            raise TypeError(
                f"{cls.__name__}: unexpected argument {unknown[0]!r}; its {variadic} are given one "
                f"by one, as {cls.__name__}(a, b)."
            )
        rest = {key: kwargs.get(key, f.default) for key, f in others.items()}
        set_fields(self, **{variadic: tuple(args)}, **rest)

    return __init__


def set_fields(part: Any, **fields: Any) -> None:
    """Set the fields of a value and check them, in an `__init__` that its class writes itself."""
    for key, x in fields.items():
        object.__setattr__(part, key, x)
    part.__post_init__()


def _annotations(cls: type) -> dict[str, Any]:
    annotations = cls.__dict__.get(_HINTS)
    if annotations is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        annotations = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
        setattr(cls, _HINTS, annotations)
    return annotations


def range_of(annotation: Any) -> types.Range | None:
    """Return the range that an annotation, or one of its alternatives, says."""
    args = typing.get_args(annotation)
    ranges = [x for x in getattr(annotation, "__metadata__", ()) if isinstance(x, types.Range)]
    if not ranges and typing.get_origin(annotation) in (typing.Union, pytypes.UnionType):
        ranges = [x for x in map(range_of, args) if x is not None]
    return ranges[0] if ranges else None


def range_words(cls: Any, field: str) -> str:
    """Return what a field of a class may hold, in words; "" where its annotation names no range."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return ""
    limits = range_of(_annotations(cls).get(field))
    return "" if limits is None else limits.words


def annotation_kinds(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation: `float | None` is float and NoneType."""
    if typing.get_origin(annotation) in (typing.Union, pytypes.UnionType):
        return [k for arg in typing.get_args(annotation) for k in annotation_kinds(arg)]
    if range_of(annotation) is not None:
        return annotation_kinds(typing.get_args(annotation)[0])
    return [annotation]


def normalized_value(part: Any, field: str, x: Any, annotation: Any) -> Any:
    """Return what a field, or an argument, holds for `x`, by its annotation."""
    kinds = annotation_kinds(annotation)
    # A number that is known only at run time cannot be checked here.
    if is_tracer(x) or isinstance(x, Hole) or (keeps_arrays() and is_live(x)):
        if types.Size in kinds:
            raise TypeError(
                f"{name_of(part)}: {field} decides shapes, so it must be a Python integer. With "
                "inject_hyperparams, name it in static_args."
            )
        return x
    kinds = [int if k == types.Size else k for k in kinds]
    if len(kinds) > 1:  # alone it is left to its own check
        plain = {types.Choice: str, _ZERO: float, types.FixedNumber: float}
        kinds = [plain.get(k, k) if k in plain else k for k in kinds]
    if types.DType in kinds:
        return None if x is None else dtype_name(part, field, x)
    if types.Key in kinds:
        is_none = x is None and type(None) in kinds
        return None if is_none else static_key(part, field, x)
    if types.StaticMask in kinds and not (isinstance(x, str) and str in kinds):
        is_none = x is None and type(None) in kinds
        x = None if is_none else _static(part, field, normal(x))
        if not is_none:
            check_mask(part, x, field)
        return x
    if types.StaticTree in kinds:
        return _static(part, field, x)
    if any(k is Any or typing.get_origin(k) is typing.Annotated for k in kinds):
        return _refuse_arrays(part, field, normal(x), "a value without arrays")
    x = _refuse_arrays(part, field, normal(x), _rule(kinds))
    if isinstance(x, bool):  # first, because Python takes a bool for an int
        ok = bool in kinds
    elif x is None:
        ok = type(None) in kinds
    elif isinstance(x, int):
        ok = int in kinds or float in kinds
        x = _number(part, field, x, kinds) if ok else x
    elif isinstance(x, float):
        ok = float in kinds
        if ok and math.isnan(x):
            raise ValueError(f"{name_of(part)}: {field} must be {_rule(kinds)}, got nan.")
    elif isinstance(x, str):
        ok = str in kinds
    else:
        return _field_of_other_kind(part, field, x, kinds)
    if not ok:
        raise TypeError(f"{name_of(part)}: {field} must be {_rule(kinds)}, got {shown(x)}.")
    return x


def _static(part: Any, field: str, x: Any) -> Any:
    """Return a tree as a FrozenTree; a value or a function as it is."""
    if isinstance(x, Value) or is_function(x):
        return _refuse_arrays(part, field, normal(x), "a value without arrays")
    _refuse_arrays(part, field, x, "a tree of Python values")
    return x if isinstance(x, FrozenTree | bool) or x is None else FrozenTree(x)


def _field_of_other_kind(part: Any, field: str, x: Any, kinds: list[Any]) -> Any:
    """Return an `x` that is not a scalar: a value of a class in the annotation, or a function."""
    for k in kinds:
        origin = typing.get_origin(k) or k
        if origin is collections.abc.Callable:
            schedule = k == types.Schedule or float in kinds or int in kinds
            if callable(x) and not (schedule and _field_is_never_schedule(x)):
                if schedule:
                    check_schedule(part, field, x)
                return x
        elif origin is tuple and isinstance(x, tuple | list):
            entries = normal(tuple(x)) if isinstance(x, list) else x
            element = (typing.get_args(k) or (Any,))[0]
            for v in entries if element in (int, float) else ():
                if type(v) in (int, element):
                    normalized_value(part, f"an entry of {field}", v, element)
            if element not in (int, str) or all(type(v) is element for v in entries):
                return entries
        elif isinstance(origin, type) and origin is not jax.Array:
            if isinstance(x, origin):
                return x
    remedy = _STATEFUL if _is_stateful_field(x) and (float in kinds or int in kinds) else ""
    raise TypeError(f"{name_of(part)}: {field} must be {_rule(kinds)}, got {shown(x)}.{remedy}")


def check_schedule(part: Any, field: str, x: Any) -> None:
    """Require `x` to take one argument, the count, as far as its signature tells.

    Raises:
      TypeError: if it takes another number of them.
    """
    try:
        signature = signature_of(x)
    except (TypeError, ValueError):  # a function of C may have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"{name_of(part)}: {field} must be a schedule, a function of one argument, the count; "
            f"{shown(x)} has the arguments {signature}: {error}."
        ) from None


_STATEFUL = " A schedule with a state needs inject_hyperparams, which keeps its state."


def _is_stateful_field(x: Any) -> bool:
    return isinstance(x, types.StatefulSchedule) and not isinstance(x, type)


def _field_is_never_schedule(x: Any) -> bool:
    is_other = isinstance(x, Value) and x.never_schedule
    return isinstance(x, type) or is_other or _is_stateful_field(x)


def _refuse_arrays(part: Value, field: str, x: Any, rule: str) -> Any:
    if isinstance(x, np.ndarray | jax.Array) and x.ndim > 0:
        raise TypeError(
            f"{name_of(part)}: {field} must be {rule}, got {shown(x)}. "
            "Arrays belong in the state or in the parameters, not in a transform."
        )
    if isinstance(x, complex):
        raise TypeError(f"{name_of(part)}: {field} must be {rule}, got {x!r}.")
    return x


def _number(part: Any, field: str, x: int, kinds: list[Any]) -> float:
    """Return an integer as the field holds it."""
    fits = -(2**31) <= x < 2**31  # what counts steps or entries is an int32
    if int in kinds and fits:
        return x
    if float not in kinds:
        raise ValueError(must_be(part, field, "an integer of 32 bits, at most 2**31 - 1", x))
    try:
        return float(x)
    except OverflowError:
        raise ValueError(must_be(part, field, "in the range of a float", x)) from None


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

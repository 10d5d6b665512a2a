"""Signatures that print readably: `b1: Decay`, not what that name stands for.

Annotations remain the objects that config loaders read, also in what `inspect.signature` returns.
Only where a signature is printed, as by `help`, an `Alias` stands in their place.
"""

import dataclasses
import functools
import inspect
import types as pytypes
import typing
from collections.abc import Callable
from typing import Any

from gradxform import types
from gradxform._names.deferred import annotations_of, signature_of

_UNIONS = (typing.Union, pytypes.UnionType)
# What `types` calls annotations that are not classes.
_NAMES = {x: name for name, x in vars(types).items() if typing.get_origin(x) is not None}


class Alias:
    """Stands for an annotation, and prints as its name."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


class _ReadableParameter(inspect.Parameter):
    """A parameter that prints with the names of annotations."""

    def __str__(self) -> str:
        return str(_printed_parameter(self))


class _Readable(inspect.Signature):
    """A signature that prints with the names of annotations."""

    def __str__(self) -> str:
        return str(self._printed())

    def format(self, **options: Any) -> str:
        """Return the text; of Python 3.13 and later, which has a width among its options."""
        printed: Any = self._printed()
        return printed.format(**options)

    def _printed(self) -> inspect.Signature:
        # Not left to their `__str__`, which Python 3.14 does not ask for.
        parameters = list(map(_printed_parameter, self.parameters.values()))
        annotation = _alias(self.return_annotation)
        return inspect.Signature(parameters, return_annotation=annotation)


class _Function(_Readable):
    """The `__signature__` of a function, computed when somebody asks for it."""

    def __init__(self, function: pytypes.FunctionType) -> None:
        self._function = function

    @functools.cached_property
    def _full(self) -> inspect.Signature:
        function = self._function
        # A copy without `__signature__`: `inspect` would return that, which is this object.
        plain = pytypes.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        plain.__dict__.update({k: x for k, x in vars(function).items() if k != "__signature__"})
        plain.__kwdefaults__ = function.__kwdefaults__
        plain.__annotations__ = annotations_of(function)
        return readable_signature(signature_of(plain))

    @property
    def parameters(self) -> pytypes.MappingProxyType[str, inspect.Parameter]:
        """The parameters by name."""
        return self._full.parameters

    @property
    def return_annotation(self) -> Any:
        """The annotation of what the function returns."""
        return self._full.return_annotation

    def replace(self, **changes: Any) -> inspect.Signature:
        """Return a signature with other parameters or another annotation."""
        return self._full.replace(**changes)

    def __reduce__(self) -> Any:
        return self._full.__reduce_ex__(2)


class ClassSignature:
    """The `__signature__` of a class, computed when somebody asks for it."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None:  # the signature of a schedule is that of its call
            raise AttributeError("__signature__")
        if getattr(owner, "variadic", None) is not None and dataclasses.is_dataclass(owner):
            return readable_signature(inspect.Signature(_variadic_parameters(owner)))
        for name in ("__init__", "__new__"):
            if getattr(owner, name) is not getattr(object, name):
                _, *parameters = signature_of(getattr(owner, name)).parameters.values()
                return readable_signature(inspect.Signature(parameters))
        return inspect.Signature()


def _variadic_parameters(cls: Any) -> list[inspect.Parameter]:
    """Return the parameters of a class such as `chain(*transforms)`: other fields go by name."""
    first = inspect.Parameter(cls.variadic, inspect.Parameter.VAR_POSITIONAL)
    others = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is dataclasses.MISSING else f.default,
            annotation=f.type,
        )
        for f in dataclasses.fields(cls)
        if f.name != cls.variadic
    ]
    return [first, *others]


def sign(part: Any) -> None:
    """Give a function or a class a signature that prints readably; pass over everything else."""
    if isinstance(part, pytypes.FunctionType):
        signed: Any = part
        if not isinstance(signed.__dict__.get("__signature__"), _Function):
            signed.__signature__ = _Function(part)
    elif isinstance(part, type) and typing.Protocol not in part.__bases__:
        part.__signature__ = ClassSignature()


def readable_signature(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that prints with the names of annotations."""
    parameters = [
        _ReadableParameter(p.name, p.kind, default=p.default, annotation=p.annotation)
        for p in signature.parameters.values()
    ]
    return _Readable(parameters, return_annotation=signature.return_annotation)


def _printed_parameter(p: inspect.Parameter) -> inspect.Parameter:
    return inspect.Parameter(p.name, p.kind, default=p.default, annotation=_alias(p.annotation))


def _alias(annotation: Any) -> Any:
    if annotation is inspect.Signature.empty:
        return annotation
    name = spelled_annotation(annotation)
    return annotation if name == inspect.formatannotation(annotation) else Alias(name)


def spelled_annotation(annotation: Any) -> str:
    """Return an annotation as one would write it, by the names of `types`."""
    args, origin = typing.get_args(annotation), typing.get_origin(annotation)
    if origin is Callable:  # not every function of one argument is a schedule
        named = [name for x, name in _NAMES.items() if x is annotation]
        return named[0] if named else "Callable"
    if annotation in _NAMES:
        return _NAMES[annotation]
    if origin is typing.Annotated:
        return spelled_annotation(args[0])
    if origin in _UNIONS:
        return " | ".join(_spelled_union(args))
    if origin is not None and origin is not typing.Literal:
        return f"{spelled_annotation(origin)}[{', '.join(map(spelled_annotation, args))}]"
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is ...:
        return "..."
    if isinstance(annotation, str):
        return annotation
    if origin is typing.Literal:
        return f"Literal{list(args)}"
    name = getattr(annotation, "__qualname__", None) or getattr(annotation, "__name__", None)
    return name.rpartition(".")[2] if name else str(annotation).replace("typing.", "")


def _spelled_union(args: tuple[Any, ...]) -> list[str]:
    """Spell the members of a union, those of the largest alias among them by its name."""
    unions = [x for x in _NAMES if typing.get_origin(x) in _UNIONS]
    unions = [x for x in unions if set(typing.get_args(x)) <= set(args)]
    largest = max(unions, key=lambda x: len(typing.get_args(x)), default=None)
    members = typing.get_args(largest)
    return list(
        dict.fromkeys(_NAMES[largest] if x in members else spelled_annotation(x) for x in args)
    )

"""Which arguments of a factory `inject_hyperparams` can keep in the state."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import jax

from gradxform.base import GradientTransformation
from gradxform.leaves import masks
from gradxform.types import (
    AliasOf,
    DType,
    Fixed,
    FixedNumber,
    Key,
    Size,
    StaticMask,
    StaticTree,
    ZeroIsNone,
)
from gradxform.values import key_of
from gradxform.values.fields import annotation_kinds
from gradxform.wrappers.hyperparams.schedule_states import is_stateful

# Annotations of what is known before any run.
_STATIC = (Size, Key, DType, StaticTree, StaticMask, Fixed, FixedNumber)
# The alternative of `ZeroIsNone` that bears its mark.
_ZERO = annotation_kinds(ZeroIsNone)[-1]


def is_default(x: Any, default: Any) -> bool:
    """Whether an argument is its default."""
    try:
        return x is default or key_of(x) == key_of(default)
    except TypeError:  # a live number, or something that does not hash
        return False


def annotations_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the arguments of a factory, without those that are strings."""
    try:
        target = factory.__init__ if isinstance(factory, type) else factory
        hints = typing.get_type_hints(target, include_extras=True)
        return hints or typing.get_type_hints(factory, include_extras=True)
    except (NameError, TypeError, AttributeError):  # annotations of another package, as strings
        return {}


def split_arguments(
    factory: Callable[..., Any], arguments: tuple[Any, ...], static: tuple[str, ...] | str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the numbers, the schedules, and all other arguments of a factory.

    Args:
      factory: the factory.
      arguments: pairs of name and value.
      static: the names of arguments that are neither numbers nor schedules.
    """
    numbers, schedules, others = {}, {}, {}
    annotations = annotations_of(factory)
    for name, x in arguments:
        annotation = annotations.get(name, inspect.Parameter.empty)
        if name in static or isinstance(x, bool) or _is_static_argument(annotation, x):
            others[name] = x
        elif isinstance(x, int | float | jax.Array):
            numbers[name] = x
        elif is_stateful(x) or _is_schedule_argument(x, annotation):
            schedules[name] = x
        else:
            others[name] = x
    return numbers, schedules, others


def _is_static_argument(annotation: Any, x: Any) -> bool:
    """Whether an argument cannot be traced: it decides the structure, or is not a number."""
    kinds = annotation_kinds(annotation)
    if isinstance(x, int | float) and not x and _ZERO in kinds:
        return True
    return any(kind in _STATIC for kind in kinds)


def without_aliases(annotations: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a factory, with the values of aliases under the names they stand for.

    Args:
      annotations: the annotations of the arguments, by name.
      arguments: the arguments, by name.
    """
    plain = dict(arguments)
    for name, annotation in annotations.items():
        for mark in getattr(annotation, "__metadata__", ()):
            if isinstance(mark, AliasOf) and plain.get(name) is not None:
                plain[mark.name], plain[name] = plain[name], None
    return plain


def _is_schedule_argument(x: Any, annotation: Any) -> bool:
    """Whether a callable argument is a schedule: its annotation allows a number, or is missing.

    Masks, transforms and functions of the parameters can be called too, but are not schedules.
    """
    if not callable(x) or isinstance(x, masks.Mask | GradientTransformation | type):
        return False
    if annotation is inspect.Parameter.empty:
        return True
    kinds = annotation_kinds(annotation)
    return float in kinds or int in kinds or complex in kinds

"""Arguments of functions, checked by their annotations as fields are."""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from gradxform.fields import normalized


@functools.cache
def _arguments_of(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    hints = typing.get_type_hints(function, include_extras=True)
    return inspect.signature(function), hints


def check_call(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Check the arguments of a call by their annotations, as fields are checked.

    Raises:
      TypeError: if one has another type than its annotation.
      ValueError: for a NaN.
    """
    signature, hints = _arguments_of(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python's own message names the function
        return
    for name, x in given.items():
        parameter = signature.parameters[name]
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        # What may be anything, such as an array of bounds, is the function's own to check.
        if is_one and hints.get(name, Any) is not Any and x is not parameter.default:
            normalized(function.__name__, name, x, hints[name])

"""Arguments of functions, checked by their annotations as fields are."""

import functools
import inspect
import re
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from gradxform._names.deferred import signature_of
from gradxform.errors import require_in, shown
from gradxform.values.called import number_or_called
from gradxform.values.fields import normalized_value, range_of
from gradxform.values.known_arguments import known_arguments

P = ParamSpec("P")
T = TypeVar("T")


def with_checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of every call of a function, also those that it leaves unused.

    What the function refuses itself is said in its own words, as long as these name the argument.
    """

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        return checked_call(function, args, kwargs)

    return made


def checked_call(
    function: Callable[..., T],
    args: Any,
    kwargs: Any,
    signature: inspect.Signature | None = None,
    name: str | None = None,
) -> T:
    """Return what a call returns, its arguments checked as `with_checked_arguments` does.

    Args:
      function: the function.
      args: its arguments by position.
      kwargs: its arguments by name.
      signature: the arguments that are checked, with their annotations; by default the function's.
      name: what messages call the function; by default its name.
    """
    name = function.__name__ if name is None else name
    try:
        result = function(*args, **kwargs)
    except Exception as error:  # wrong arguments may raise anything; others are raised again
        if isinstance(error, TypeError):
            takes = signature_of(function) if signature is None else signature
            known = known_arguments(name, takes.parameters, kwargs)
            if known is not kwargs:
                return checked_call(function, args, known, signature, name)
        for argument, x, refusal in _refused_args(function, args, kwargs, signature, name):
            # A part that calls the argument otherwise would leave the caller to guess which it is,
            # and so would one that got another value, computed from it.
            is_told = isinstance(error, TypeError | ValueError)
            if not (is_told and _blames(error, argument, x)):
                raise refusal from None
            raise
        if isinstance(error, TypeError | ValueError):
            blamed = _blamed(function, args, kwargs, signature, error)
            if blamed is not None:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"{name}: {blamed}: {error}") from None
        raise
    # What no part has checked.
    for *_, refusal in _refused_args(function, args, kwargs, signature, name):
        raise refusal
    return result


def _blamed(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    signature: inspect.Signature | None,
    error: Exception,
) -> str | None:
    """Return the argument without which a call succeeds; None if the error names one itself."""
    signature = signature_of(function) if signature is None else signature
    parameters = signature.parameters
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python's own message says it
        return None
    set_here = {k: x for k, x in arguments.items() if x is not parameters[k].default}
    named = [argument for argument in set_here if _mentions(error, argument)]
    # A part may call another argument by the name of this one, which then has another value.
    if any(_blames(error, argument, set_here[argument]) for argument in named):
        return None
    for argument in set_here:
        if parameters[argument].default is not inspect.Parameter.empty:
            rest = OrderedDict((k, x) for k, x in arguments.items() if k != argument)
            others = inspect.BoundArguments(signature, rest)
            others.apply_defaults()
            try:
                function(*others.args, **others.kwargs)
            except (TypeError, ValueError):
                continue
            return None if argument in named else argument
    shows = [k for k, x in set_here.items() if _shows(error, x)]
    return shows[0] if len(shows) == 1 else None


def _shows(error: Exception, x: Any) -> bool:
    # A field of floats holds an integer as a float, and says so; some are too large for one.
    texts = {shown(x), repr(float(x)) if isinstance(x, int) and abs(x) < 2**1023 else shown(x)}
    return any(f"got {text}{end}" in str(error) for text in texts for end in ".;,")


def _blames(error: Exception, argument: str, x: Any) -> bool:
    """Whether an error names an argument, and does not show a value that is not its own."""
    return _mentions(error, argument) and (
        ", got " not in str(error) or f"{argument}[" in str(error) or _shows(error, x)
    )


def _mentions(error: Exception, argument: str) -> bool:
    return re.search(rf"\b{argument}\b", str(error)) is not None


@functools.cache
def _annotated(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    hints = typing.get_type_hints(function, include_extras=True)
    return signature_of(function), hints


def _refused_args(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    signature: inspect.Signature | None,
    name: str,
) -> Iterator[tuple[str, Any, Exception]]:
    """Yield the arguments that their annotations do not allow: name, value and the error."""
    if signature is None:
        signature, hints = _annotated(function)
    else:
        hints = {p.name: p.annotation for p in signature.parameters.values()}
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python's own message names the function
        return
    for argument, x in arguments.items():
        parameter = signature.parameters[argument]
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        hint = hints.get(argument, Any)
        # What may be anything, such as an array of bounds, is the function's own to check.
        if is_one and hint not in (Any, parameter.empty) and x is not parameter.default:
            try:
                number = normalized_value(name, argument, number_or_called(x), hint)
                require_in(name, argument, number, range_of(hint))
            except (TypeError, ValueError) as refusal:
                yield argument, x, refusal

"""Extra arguments of `update`: which ones a transform takes, and which ones are misspelled."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gradxform._names.deferred import signature_of
from gradxform.errors import did_you_mean, name_of
from gradxform.values.value import Value

# The extra arguments that are functions of the parameters; the last returns gradients.
OF_PARAMS = ("value_fn", "obj_fn", "grad_fn")
# What a loop that steps any transform gives to each of them.
OF_LOSS = frozenset({"value", "grad", *OF_PARAMS})


# Where a function of the parameters keeps the ways in which it has been wrapped, in order.
_WRAPS = "_gradxform_wraps"


def wrapped_function(function: Callable[..., Any], wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Return `wrap(function)`, a function of other parameters; `wrapped_like` knows how."""
    new = wrap(function)
    setattr(new, _WRAPS, (*getattr(function, _WRAPS, ()), wrap))
    return new


def wrapped_like(like: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of all parameters as one of the parameters that `like` takes here.

    Wrappers that show a transform a part of the parameters, or show them in another way, wrap the
    functions among its extra arguments. A function in a field of the transform needs the same.

    Args:
      like: such an extra argument, a function of the parameters.
      function: another function of all parameters.
    """
    for wrap in getattr(like, _WRAPS, ()):
        function = wrap(function)
    return function


class Accepted(NamedTuple):
    """The extra arguments that a function takes."""

    anything: bool  # whether it takes any name
    named: frozenset[str]
    needed: frozenset[str]  # those of `named` without a default


def accepted_extra(part: Any, function: Callable[..., Any]) -> Accepted:
    """Return the extra arguments that `function`, the `update` of `part`, takes."""
    return (
        accepted_by(type(part), "update")
        if isinstance(part, Value)
        else accepted_after(function, 3)
    )


@functools.cache
def accepted_by(cls: type, name: str) -> Accepted:
    """Return the extra arguments that the method `name` of a class of values takes."""
    return accepted_after(getattr(cls, name), 4)  # one more, for `self`


def accepted_after(function: Callable[..., Any], positional: int) -> Accepted:
    """Return the arguments of a function after the first `positional` ones."""
    parameters = signature_of(function).parameters.values()
    extra = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][positional:]
    extra += [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    return Accepted(
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        frozenset(p.name for p in extra),
        frozenset(p.name for p in extra if p.default is p.empty),
    )


def routed_extra(part: Any, accepts: Accepted, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the extra arguments that a function of `part` accepts.

    Raises:
      TypeError: if a required one is missing.
    """
    anything, named, needed = accepts
    missing = sorted(needed - extra.keys())
    if missing:
        raise TypeError(
            f"{name_of(part)}: needs the extra argument {missing[0]!r}; "
            f"call update(updates, state, params, {missing[0]}=...)."
        )
    return extra if anything else {k: v for k, v in extra.items() if k in named}


def check_arguments_of_loss(part: Any, names: frozenset[str], extra: dict[str, Any]) -> None:
    """Refuse an extra argument that neither a part takes nor `value_fn`, which line searches call.

    What other transforms ask of the loss may be given to all: its value, gradients and functions.

    Args:
      part: the outermost transform, for messages.
      names: those that its parts take.
      extra: the extra arguments, among them `value_fn`.

    Raises:
      TypeError: with the closest name.
    """
    try:
        parameters = signature_of(extra["value_fn"]).parameters.values()
    except (TypeError, ValueError):  # not a function, or one of C
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    named = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    for name in extra.keys() - names - named - OF_LOSS:
        hint = did_you_mean(name, named - extra.keys(), cutoff=0.75)
        hint = hint or f" No part of {name_of(part)} takes it either; leave it out."
        raise TypeError(f"{name_of(part)}: value_fn has no argument {name!r}.{hint}")


def refuse_untaken(part: Any, names: frozenset[str], keywords: Iterable[str]) -> None:
    """Refuse an extra argument that no part takes, but for what loops give to all.

    Replicas would step together on something else than what was meant, such as a mean without the
    weights.

    Args:
      part: the outermost transform, for messages.
      names: those that its parts take.
      keywords: the names in the call.

    Raises:
      TypeError: with the names that there are.
    """
    for name in keywords:
        if name not in names | OF_LOSS:
            theirs = sorted(names - {"updates", "state", "params"})
            takes = f"it takes {', '.join(map(repr, theirs))}" if theirs else "it takes none"
            raise TypeError(
                f"{name_of(part)}: no part takes the extra argument {name!r}; {takes}. Leave it "
                "out."
            )


def given_what_it_names(
    part: Any, field: str, function: Callable[..., Any], extra: dict[str, Any]
) -> Callable[..., Any]:
    """Return a function of its first argument alone, with the extra arguments that it names.

    Args:
      part: who calls it, for messages.
      field: what the function is called there.
      function: takes its first argument by position, and others by name.
      extra: the extra arguments.

    Raises:
      TypeError: if it needs an extra argument that is not given, with the closest name.
    """
    parameters = list(signature_of(function).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return lambda x: function(x, **extra)
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = {p.name for p in by_name}
    absent = named - extra.keys()
    for name in extra.keys() - named:
        hint = did_you_mean(name, absent, cutoff=0.75)
        if hint:
            raise TypeError(f"{name_of(part)}: {field} has no argument {name!r}.{hint}")
    needed = [p.name for p in by_name if p is not parameters[0] and p.default is p.empty]
    missing = next((name for name in needed if name not in extra), None)
    if missing is not None:
        raise TypeError(
            f"{name_of(part)}: {field} needs the extra argument {missing!r}; give it by name, as "
            f"{missing}=..."
        )
    given = {name: x for name, x in extra.items() if name in named}
    return lambda x: function(x, **given)


def check_names(part: Any, names: frozenset[str], keywords: Iterable[str]) -> None:
    """Refuse an extra argument with a name close to one that a part takes.

    Args:
      part: the outermost transform, for messages.
      names: those that its parts take.
      keywords: the names in the call.

    Raises:
      TypeError: with the closest name. Other names pass, since they may be for other transforms.
    """
    keywords = list(keywords)
    for name in keywords:
        absent = [k for k in names if k not in keywords]
        hint = "" if name in names else did_you_mean(name, absent, cutoff=0.75)
        if hint:
            raise TypeError(f"{name_of(part)}: no part takes the extra argument {name!r}.{hint}")

"""Arguments by the names that a function has, and those of other libraries told apart."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gradxform._names.deferred import signature_of
from gradxform._names.guesses import unknown_argument
from gradxform.errors import name_of


def own_name(argument: str, names: Collection[str]) -> str:
    """Return what something with these arguments calls an argument.

    Optax calls the mask of a weight decay by two names, and so do its users: whatever has a
    `weight_decay` takes both, as does `adafactor`, which calls that its `weight_decay_rate`.
    """
    other = {"mask": "weight_decay_mask", "weight_decay_mask": "mask"}.get(argument)
    decays = "weight_decay" in names or "weight_decay_rate" in names
    renames = other in names and argument not in names and decays
    return other if other is not None and renames else argument


def known_arguments(
    owner: str, parameters: Mapping[str, inspect.Parameter], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by their own names; `kwargs` itself if they have these.

    Raises:
      TypeError: for one that is not among the parameters, with the one that may be meant.
    """
    unknown = [k for k in kwargs if k not in parameters]
    if not unknown or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return kwargs
    names = [k for k, p in parameters.items() if p.kind is not p.VAR_POSITIONAL and k != "self"]
    for k in unknown:
        own = own_name(k, names)
        if own == k:
            raise TypeError(unknown_argument(owner, k, names)) from None
        if own in kwargs:
            raise TypeError(f"{owner}: {k} is another name of {own}; give one.") from None
    return {own_name(k, names): x for k, x in kwargs.items()}


def with_known_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Let the `__init__` of a class say which argument is meant by one that it does not have."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            known = known_arguments(name_of(self), signature_of(init).parameters, kwargs)
            if known is kwargs:
                raise
            init(self, *args, **known)

    return __init__

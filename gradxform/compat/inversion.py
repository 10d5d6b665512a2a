"""The arguments with which a factory has made a value, read off the value."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gradxform.values import FrozenTree, Value, fields_of


class Unknown(NamedTuple):
    """In the place of an argument: a number or schedule that nothing else holds.

    A value may hold another number than the argument; `back` makes the argument of it.
    """

    sample: Any
    back: Callable[[Any], Any] = lambda x: x

    def may_be(self, x: Any) -> bool:
        """Whether the argument may be `x`: a number for a number, else something to call."""
        if isinstance(self.sample, int | float):
            return isinstance(x, int | float) and not isinstance(x, bool)
        return callable(x)


def arguments_of(
    factory: Callable[..., Any], x: Any, arguments: Mapping[str, Sequence[Any]]
) -> dict[str, Any] | None:
    """Return arguments with which `factory` returns a value equal to `x`; None if none do.

    The factory is called with samples in the place of the numbers. What `x` holds where the result
    holds a sample is the argument; it counts if the factory returns `x` for all of them.

    Args:
      factory: a function that puts its arguments into the fields of a value.
      x: a value.
      arguments: what each argument may be, in the order of preference: an `Unknown`, or a constant.
    """
    for choice in itertools.product(*arguments.values()):
        chosen = dict(zip(arguments, choice, strict=True))
        samples = {k: v.back(v.sample) if isinstance(v, Unknown) else v for k, v in chosen.items()}
        unknown = {k: v for k, v in chosen.items() if isinstance(v, Unknown)}
        try:
            bound = dict(_bindings_of_unknowns(factory(**samples), x, unknown))
            read = {k: bound.get(k, v) for k, v in samples.items()}
            if factory(**read) == x:
                return read
        except (TypeError, ValueError):  # these do not go together, or `x` does not fit
            continue
    return None


def _bindings_of_unknowns(
    template: Any, x: Any, unknown: Mapping[str, Unknown]
) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of every unknown in the template.

    Raises:
      ValueError: if `x` is not like the template.
    """
    for name, one in unknown.items():
        if type(template) is type(one.sample) and template == one.sample and one.may_be(x):
            yield name, one.back(x)
            return
    if type(template) is not type(x):
        if template != x or bool in (type(template), type(x)):
            raise ValueError
    elif isinstance(x, Value):
        for ours, theirs in zip(fields_of(template).values(), fields_of(x).values(), strict=True):
            yield from _bindings_of_unknowns(ours, theirs, unknown)
    elif type(x) is tuple:
        for ours, theirs in zip(template, x, strict=True):
            yield from _bindings_of_unknowns(ours, theirs, unknown)
    elif isinstance(x, FrozenTree):
        for ours, theirs in zip(template.leaves, x.leaves, strict=True):
            yield from _bindings_of_unknowns(ours, theirs, unknown)
    elif template != x:
        raise ValueError

"""The state before the first update, as the annotations of its class say."""

import dataclasses
import functools
from typing import Any

from gradxform.errors import shown
from gradxform.leaves.states import hints_of
from gradxform.slots import real_zeros_like, zero_count, zeros_like
from gradxform.types import Array, NonNegativeSlot, Params, Slot


def first_state_of(rule: Any, params: Params, **given: Any) -> Any:
    """Return the first state of a rule, of the class that it calls `State`.

    Args:
      rule: the rule.
      params: the parameters.
      **given: the fields that do not start as their annotations say, by name.
    """
    kind = rule.State
    given = dict.fromkeys(rule.unused_slots) | given
    starts = starts_of(type(rule), kind, frozenset(given))
    return kind(**given, **{k: _slot(rule, params, *how) for k, how in starts.items()})


def slots_with(**options: str) -> Any:
    """Return the property `unused_slots` of a rule that keeps slots with an option only.

    Args:
      **options: for each such field of the state the rule's field, which is False or None where the
        slot is not kept.
    """

    def unused_slots(self: Any) -> tuple[str, ...]:
        """The names of the slots that are None, which follow from options."""
        values = {slot: getattr(self, option) for slot, option in options.items()}
        return tuple(slot for slot, x in values.items() if x is None or x is False)

    return property(unused_slots)


def state_with(option: str, plain: type, more: type) -> Any:
    """Return the property `State` of a rule whose state has further fields with an option.

    Args:
      option: the name of the rule's field.
      plain: the class of the state if that field is false.
      more: the class of the state if it is true.
    """

    def State(self: Any) -> type:
        """The class of the state, which follows from an option."""
        return more if getattr(self, option) else plain

    return property(State)


@functools.cache
def starts_of(
    cls: type, kind: Any, given: frozenset[str] = frozenset()
) -> dict[str, tuple[Any, str | None]]:
    """Return for each field of a state its kind, and the field of the rule with its dtype.

    Args:
      cls: the class of the rule.
      kind: the class of the state.
      given: the fields to leave out.

    Raises:
      TypeError: if the annotation of a field does not say how it starts.
    """
    if not hasattr(kind, "_fields"):
        raise TypeError(
            f"{cls.__name__}: State must be the class of a NamedTuple, got {shown(kind)}."
        )
    rule_fields, hints = {x.name for x in dataclasses.fields(cls)}, hints_of(kind)
    starts: dict[str, tuple[Any, str | None]] = {}
    for field in (k for k in kind._fields if k not in given):
        # `Array` is not defined at run time where it is imported for type checkers only.
        counts = field == "count" or field in cls.step_fields
        hint = hints.get(field, Array if counts else None)
        if hint not in (Slot, NonNegativeSlot) and not (counts and hint is Array):
            raise TypeError(
                f"{cls.__name__}: define init, or annotate the field {field!r} of "
                f"{kind.__name__}. The default init starts fields annotated Slot or "
                "NonNegativeSlot with zeros, and `count: Array` with 0; it does not know others."
            )
        dtype_field = f"{field}_dtype"
        starts[field] = hint, dtype_field if dtype_field in rule_fields else None
    return starts


def _slot(rule: Any, params: Params, hint: Any, dtype_field: str | None) -> Any:
    dtype = None if dtype_field is None else getattr(rule, dtype_field)
    if hint is Array:
        return zero_count()
    start = real_zeros_like if hint == NonNegativeSlot else zeros_like
    return start(params, dtype)

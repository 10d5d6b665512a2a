"""The state before the first update, as the annotations of its class say."""

import dataclasses
import functools
from typing import Any

from gradxform.errors import shown
from gradxform.leaves.states import hints_of
from gradxform.slots import real_zeros_like, zero_count, zeros_like
from gradxform.types import Array, NonNegativeSlot, Params, Slot


def first_state(rule: Any, params: Params) -> Any:
    """Return the first state of a rule, of the class that it calls `State`."""
    kind = rule.State
    starts = starts_of(type(rule), kind)
    return kind(**{k: _first_slot(rule, params, *how) for k, how in starts.items()})


@functools.cache
def starts_of(cls: type, kind: Any) -> dict[str, tuple[Any, str | None]]:
    """Return for each field of a state its kind, and the field of the rule with its dtype.

    Raises:
      TypeError: if the annotation of a field does not say how it starts.
    """
    if not hasattr(kind, "_fields"):
        raise TypeError(
            f"{cls.__name__}: State must be the class of a NamedTuple, got {shown(kind)}."
        )
    rule_fields, hints = {x.name for x in dataclasses.fields(cls)}, hints_of(kind)
    starts: dict[str, tuple[Any, str | None]] = {}
    for field in kind._fields:
        # `Array` is not defined at run time where it is imported for type checkers only.
        hint = hints.get(field, Array if field == "count" else None)
        if hint not in (Slot, NonNegativeSlot) and (field, hint) != ("count", Array):
            raise TypeError(
                f"{cls.__name__}: define init, or annotate the field {field!r} of "
                f"{kind.__name__}. The default init starts fields annotated Slot or "
                "NonNegativeSlot with zeros, and `count: Array` with 0; it does not know others."
            )
        dtype_field = f"{field}_dtype"
        starts[field] = hint, dtype_field if dtype_field in rule_fields else None
    return starts


def _first_slot(rule: Any, params: Params, hint: Any, dtype_field: str | None) -> Any:
    dtype = None if dtype_field is None else getattr(rule, dtype_field)
    if hint is Array:
        return zero_count()
    start = real_zeros_like if hint == NonNegativeSlot else zeros_like
    return start(params, dtype)

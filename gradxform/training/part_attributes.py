"""The numbers and clips of any optimizer by Keras's names, found in its parts."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gradxform.base import GradientTransformation
from gradxform.compat.called_numbers import called_numbers
from gradxform.compat.keras.configs import CLIPS
from gradxform.errors import name_of
from gradxform.training.numbers import Place, put_at
from gradxform.values import FrozenTree, fields_of, replace
from gradxform.values.called import Called, number_or_called
from gradxform.values.content import parts_of
from gradxform.wrappers.compose import chain
from gradxform.wrappers.hyperparams.inject import injected

_OLD_NAMES = {"lr": "learning_rate"}
# What the fields of parts are called that have Keras's name, or are what Keras calls so.
_FIELDS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("learning_rate",),
    "weight_decay": ("weight_decay",),
    "beta_1": ("b1",),
    "beta_2": ("b2",),
    "epsilon": ("eps", "epsilon"),
    "rho": ("rho", "scale_by_rms.decay", "scale_by_stddev.decay"),
    "momentum": ("momentum", "trace.decay"),
    "nesterov": ("nesterov",),
}


def todays_name(name: str, stacklevel: int) -> str:
    """Return the name that an argument has today; warn if it is an old one."""
    if name not in _OLD_NAMES:
        return name
    new = _OLD_NAMES[name]
    message = f"The `{name}` argument is deprecated, use `{new}` instead."
    warnings.warn(message, stacklevel=stacklevel + 1)
    return new


def fields_called(name: str) -> list[str]:
    """Return what the fields of parts are called that Keras calls so, whatever the part."""
    return [field for field in _FIELDS.get(_OLD_NAMES.get(name, name), ()) if "." not in field]


def names_in_parts(tx: Any) -> list[str]:
    """Return the names of Keras by which something in an optimizer is read and set."""
    tx = tx.with_plain_numbers() if isinstance(tx, called_numbers) else tx
    return [*(name for name in _FIELDS if list(_fields_named(tx, name))), *CLIPS]


def read_from_parts(tx: Any, name: str) -> Any:
    """Return what Keras calls so in the parts of an optimizer; None for a clip that is off.

    Raises:
      AttributeError: if nothing in it has the name, or several parts have other values.
    """
    if isinstance(tx, called_numbers):
        tx = tx.with_plain_numbers()
    if name in CLIPS:
        return next((_bound_of(x) for x in _leading_clips(tx) if type(x) is CLIPS[name]), None)
    value = _one_value(name, _fields_named(tx, name))
    return float(value(0)) if isinstance(value, Called) else value


def with_part_attribute(tx: Any, name: str, value: Any) -> Any:
    """Return an optimizer with another value for what Keras calls so.

    A clip comes before everything else in it; None takes it away.

    Raises:
      AttributeError: if nothing in it has the name, or several parts have other values.
      TypeError, ValueError: as the part's own for this value.
    """
    if name in CLIPS:
        clips = _leading_clips(tx)
        kept = [x for x in clips if type(x) is not CLIPS[name]]
        new = [] if value is None else [CLIPS[name](value)]
        parts = tx.transforms[len(clips) :] if isinstance(tx, chain) else (tx,)
        return chain(*new, *kept, *parts)
    found = list(_fields_named(tx, name))
    _one_value(name, found)
    value = number_or_called(value)
    for field in found:
        new = replace(field.owner, **{field.name: value})
        tx = put_at(tx, field.place, getattr(new, field.name))
    return tx


class _Field(NamedTuple):
    """A field of a part, where it is, and what it holds."""

    owner: Any
    name: str
    place: Place
    value: Any


def _fields_named(tx: Any, name: str, place: Place = ()) -> Iterator[_Field]:
    """Yield the fields of all parts that are what Keras calls so."""
    if isinstance(tx, injected):  # its numbers are in its state
        return
    if isinstance(tx, GradientTransformation):
        wanted = _FIELDS.get(name, ())
        for i, (field, value) in enumerate(fields_of(tx).items()):
            is_wanted = field in wanted or f"{name_of(tx)}.{field}" in wanted
            if is_wanted and value is not None and not isinstance(value, GradientTransformation):
                yield _Field(tx, field, (*place, i), value)
            else:
                yield from _fields_named(value, name, (*place, i))
    elif type(tx) is tuple or isinstance(tx, FrozenTree):
        for i, part in enumerate(parts_of(tx) or ()):
            yield from _fields_named(part, name, (*place, i))


def _one_value(name: str, fields: Iterator[_Field] | Sequence[_Field]) -> Any:
    values = list(dict.fromkeys(field.value for field in fields))
    if len(values) == 1:
        return values[0]
    if not values:
        raise AttributeError(f"Optimizer: has no attribute {name!r}.")
    raise AttributeError(
        f"Optimizer: several parts have a {name}, {', '.join(map(repr, values))}; "
        "hyperparams names each of them."
    )


def _leading_clips(tx: Any) -> list[Any]:
    """Return the clips with which a chain begins."""
    parts = tx.transforms if isinstance(tx, chain) else (tx,)
    n = next((i for i, x in enumerate(parts) if type(x) not in CLIPS.values()), len(parts))
    return list(parts[:n])


def _bound_of(clip: Any) -> float:
    return next(iter(fields_of(clip).values()))

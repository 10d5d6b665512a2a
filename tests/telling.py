"""Rows of the catalogue for tests of structure: those that tell what no earlier row has told."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from gradxform.values import Value, fields_of
from tests.catalogue import Case


def with_new_parts(rows: Mapping[str, Case]) -> dict[str, Case]:
    """Return the rows that have a part, or kinds of its arguments, for the first time.

    Structure follows the kinds of arguments and never their values. Therefore a row that differs
    from others in numbers alone has a state of the same structure, and so has a recipe whose parts
    stand in other rows. A row with parameters of its own tells something if its arrays are others.
    """
    seen, out = set(), {}
    for name, case in rows.items():
        parts = {*_parts(case.tx), _arrays(case)}
        if not parts <= seen:
            seen |= parts
            out[name] = case
    return out


def _parts(x: Any) -> Iterator[Any]:
    """Yield every value that is in another, with the kinds of its fields, and every function."""
    if isinstance(x, Value):
        fields = fields_of(x)
        yield type(x), *((name, _kind(field)) for name, field in fields.items())
        x = tuple(fields.values())
    if isinstance(x, tuple | list):
        for part in x:
            yield from _parts(part)
    elif isinstance(x, Mapping):
        yield from _parts(tuple(x.values()))
    else:
        yield _kind(x)


def _kind(x: Any) -> Any:
    """What structure can depend on: a choice or a function itself, else the type alone."""
    is_choice = x is None or isinstance(x, bool | str)
    return x if is_choice or (callable(x) and not isinstance(x, Value)) else type(x)


def _arrays(case: Case) -> Any:
    """The kinds of arrays that a row has as parameters, with the rule that meets them."""
    if case.tree is None:
        return None
    leaves, structure = jax.tree.flatten(case.tree)
    return type(case.tx), structure, *((np.ndim(x), np.asarray(x).dtype) for x in leaves)

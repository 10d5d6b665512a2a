"""Tell `flax.serialization` about arrays that a state keeps in a form of their own.

It writes containers that it knows, and takes all else for arrays.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from gradxform.values.arrivals import when_imported


def announce_to_flax(
    cls: type, to_dict: Callable[[Any], dict[str, Any]], from_dict: Callable[[Any, Any], Any]
) -> None:
    """Tell Flax of a class, now or when it comes.

    Args:
      cls: the class.
      to_dict: the function from an object to a dict of arrays.
      from_dict: the one from an object of the same form and such a dict to the object.
    """

    def register(flax: Any) -> None:
        with contextlib.suppress(ValueError):  # somebody else has told it
            flax.register_serialization_state(cls, to_dict, from_dict)

    when_imported("flax.serialization", register)


def _announce_dicts_in_order(flax: Any) -> None:
    """Tell Flax of OrderedDict, the state of transforms by name."""

    def by_name(x: OrderedDict[str, Any]) -> dict[str, Any]:
        return {str(k): flax.to_state_dict(v) for k, v in x.items()}

    def with_states(like: OrderedDict[str, Any], states: Any) -> OrderedDict[str, Any]:
        return OrderedDict((k, flax.from_state_dict(v, states[str(k)])) for k, v in like.items())

    with contextlib.suppress(ValueError):
        flax.register_serialization_state(OrderedDict, by_name, with_states)


when_imported("flax.serialization", _announce_dicts_in_order)

"""Tell `flax.serialization` about arrays that a state keeps in a form of their own.

It writes containers that it knows, and takes all else for arrays. Flax may be imported at any time,
or never; so whoever makes such an array tells it, once it is there.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


def _flax_states_by_name(x: OrderedDict[str, Any]) -> dict[str, Any]:
    flax: Any = sys.modules["flax.serialization"]
    return {str(k): flax.to_state_dict(v) for k, v in x.items()}


def _with_flax_states(like: OrderedDict[str, Any], states: Any) -> OrderedDict[str, Any]:
    flax: Any = sys.modules["flax.serialization"]
    return OrderedDict((k, flax.from_state_dict(v, states[str(k)])) for k, v in like.items())


# Classes that Flax does not know yet: for each the function from an object to a dict of arrays,
# and the one from an object of the same form and such a dict to the object. An OrderedDict is the
# state of transforms by name.
_UNTOLD: dict[type, tuple[Callable[[Any], dict[str, Any]], Callable[[Any, Any], Any]]] = {
    OrderedDict: (_flax_states_by_name, _with_flax_states)
}


def announce_to_flax(
    cls: type, to_dict: Callable[[Any], dict[str, Any]], from_dict: Callable[[Any, Any], Any]
) -> None:
    """Have Flax told of a class when an object of it is made."""
    _UNTOLD[cls] = to_dict, from_dict


def tell_flax() -> None:
    """Tell `flax.serialization`, if it is imported, of the classes that were announced."""
    if not _UNTOLD or "flax.serialization" not in sys.modules:
        return
    register: Any = sys.modules["flax.serialization"].register_serialization_state
    while _UNTOLD:
        cls, (to_dict, from_dict) = _UNTOLD.popitem()
        try:
            register(cls, to_dict, from_dict)
        except ValueError:  # somebody else has told it
            continue

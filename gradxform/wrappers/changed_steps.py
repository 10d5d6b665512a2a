"""Steps that a wrapper changes after the inner transform has taken them."""

import operator
from typing import Any

from gradxform.apply import apply_updates
from gradxform.base import tell_moved
from gradxform.leaves import leaves_of
from gradxform.types import OptState, Params, Updates
from gradxform.wrappers.parts import keeps_copies


def told(
    tx: Any, state: OptState, params: Params | None, own: Updates, changed: Updates
) -> OptState:
    """Return the state of `tx`, told that `changed` is applied in place of its `own` updates.

    A part that keeps a copy of the parameters would otherwise undo the change in its next step.
    """
    if params is None or not keeps_copies(tx):
        return state
    is_same = map(operator.is_, leaves_of(own), leaves_of(changed))
    if all(is_same):
        return state
    return tell_moved(tx, state, apply_updates(params, own), apply_updates(params, changed))

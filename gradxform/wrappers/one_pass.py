"""The parameters after an update, in one pass over memory where a transform can."""

from typing import Any

from gradxform.base import Transform, call_update, unwrapped
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, SupportsTransform, Updates

__all__ = []


def call_update_params(
    tx: SupportsTransform,
    updates: Updates,
    state: OptState,
    params: Params,
    extra: dict[str, Any],
) -> tuple[Params, OptState]:
    """Return the parameters after an update by any accepted object, and its new state."""
    part: Any = unwrapped(tx)
    if isinstance(part, Transform) and part.update_params is not None:
        return part.update_params.call(updates, state, params, **extra)
    updates, state = call_update(tx, updates, state, params, extra)
    return apply_updates(params, updates), state


def is_one_run(tx: SupportsTransform) -> bool:
    """Whether a transform is all rules that run over the leaves together."""
    part: Any = unwrapped(tx)
    return isinstance(part, Transform) and part.is_one_run

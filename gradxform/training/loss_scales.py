"""Losses that a step scales by itself, because its optimizer has a `loss_scale`."""

from typing import Any

from gradxform.base import unwrapped
from gradxform.distributed.averaging.exchange import Exchanging
from gradxform.distributed.averaging.synchronous import sync_replicas
from gradxform.distributed.averaging.tower import tower
from gradxform.errors import name_of
from gradxform.types import Array, OptState
from gradxform.wrappers.average import Averager
from gradxform.wrappers.compose import chain, named_chain
from gradxform.wrappers.decay import decoupled_weight_decay
from gradxform.wrappers.external_step import external_step
from gradxform.wrappers.flatten import flatten
from gradxform.wrappers.hyperparams.inject import injected
from gradxform.wrappers.loss_scale import has_scale, loss_scale, scale_in
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.narrow.assigned_params import NarrowParams
from gradxform.wrappers.parts import StatelessWrapper
from gradxform.wrappers.stored.storage import quantize_state, state_dtype
from gradxform.wrappers.variable_names import variable_names

# Wrappers that hand all gradients on, or linear combinations of them, without looking at them.
_HANDS_ON = (
    Averager,
    Exchanging,
    NarrowParams,
    decoupled_weight_decay,
    external_step,
    flatten,
    quantize_state,
    state_dtype,
    sync_replicas,
    tower,
    variable_names,
)


def scale_of_loss(part: Any, tx: Any, state: OptState) -> Array | None:
    """Return the scale by which a step multiplies its loss; None if the optimizer has none.

    Args:
      part: what takes the step, for messages.
      tx: the optimizer.
      state: its state.

    Raises:
      ValueError: if some part would see gradients of the scaled loss as if they were of the loss.
    """
    if not has_scale(state):
        return None
    scale = scale_in(part, state)
    _check_first(part, tx, state)
    return scale


def refuse_scale(part: Any, state: OptState, remedy: str) -> None:
    """Require a state without a scale, where the loss is not multiplied by it.

    Raises:
      ValueError: if it has one.
    """
    if has_scale(state):
        raise ValueError(
            f"{name_of(part)}: the loss is not scaled here, as loss_scale needs it; {remedy}"
        )


def _check_first(part: Any, tx: Any, state: OptState) -> None:
    """Require every gradient to come to the loss scale first."""
    tx = unwrapped(tx)
    if isinstance(tx, loss_scale):
        return
    if isinstance(tx, injected):
        return _check_first(part, tx.at_next(state), state.inner_state)
    if isinstance(tx, chain | named_chain):
        for one, its_state in zip(map(unwrapped, tx.inner()), tx.split_state(state), strict=True):
            if has_scale(its_state):
                return _check_first(part, one, its_state)
            if not getattr(one, "keeps_updates", False):
                _refuse_outside_loss_scale(part, one)
    skips = isinstance(tx, MultiSteps) and tx.should_skip_update_fn is not None
    if skips or not isinstance(tx, (*_HANDS_ON, MultiSteps)):
        _refuse_outside_loss_scale(part, tx)
    if isinstance(tx, StatelessWrapper):
        return _check_first(part, tx.inner, state)
    field, inner_state = next(iter(tx.holds), ("inner", "inner_state"))
    return _check_first(part, getattr(tx, field), getattr(state, inner_state))


def _refuse_outside_loss_scale(part: Any, tx: Any) -> None:
    raise ValueError(
        f"{name_of(part)}: {name_of(tx)} would get gradients of the scaled loss, because it is not "
        f"inside loss_scale. Put it there: loss_scale({name_of(tx)}(...), ...)."
    )

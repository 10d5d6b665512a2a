"""Steps that a wrapper changes after the inner transform has taken them."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from gradxform.base import ArrayRule, GradientTransformation, tell_moved, unwrapped
from gradxform.errors import name_of
from gradxform.leaves import leaves_of
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, Updates
from gradxform.wrappers.parts import (
    OF_FUNCTIONS,
    all_parts,
    inner_parts,
    keeps_copies,
    starting_elsewhere,
)


def told_change(
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


def told_start(tx: Any, state: OptState, params: Params | None, start: Params) -> OptState:
    """Return the state of `tx`, told that its next step begins at `start` in place of `params`.

    Copies of the parameters go there. Averages do not: that step leads on before they are taken.
    """
    if params is None or not keeps_copies(tx):
        return state
    with starting_elsewhere():
        return tell_moved(tx, state, params, start)


def check_changeable(changer: Any, tx: Any) -> None:
    """Require that `changer` may change the updates of `tx`, which it holds.

    Raises:
      ValueError: if a part of `tx` sets the parameters to where they must be.
    """
    for part in _parts_setting_params(tx):
        raise ValueError(
            f"{name_of(changer)}: it changes the updates of {name_of(part)} in it, which then do "
            f"not lead to where {name_of(part)} sets the parameters; put {name_of(changer)} inside "
            f"{name_of(part)}."
        )


def check_order(chained: Any, parts: Sequence[Any]) -> None:
    """Require that no part of a chain changes what an earlier or a later one relies on.

    That is where the parameters are set to, and gradients that are not finite. Only parts of this
    library and rules say what they do. A later part that sets the parameters, too, is taken to know
    where they are.

    Raises:
      ValueError: if one does.
    """
    setter, hider = None, None
    for tx in parts:
        if hider is not None:
            check_overflows_reach(hider, tx)
        elif not getattr(unwrapped(tx), "keeps_updates", False):
            hider = tx
        setting = next(_parts_setting_params(tx), None)
        changing = (
            None if setter is None or setting is not None else next(_parts_changing_steps(tx), None)
        )
        if changing is not None:
            raise ValueError(
                f"{name_of(chained)}: {name_of(changing)} changes the updates of {name_of(setter)} "
                f"before it, which then do not lead to where {name_of(setter)} sets the "
                f"parameters; put it before {name_of(setter)}, or inside."
            )
        setter = setter if setting is None else setting


def check_overflows_reach(hider: Any, tx: Any) -> None:
    """Require that `tx` can do without gradients that are not finite, which `hider` keeps from it.

    Raises:
      ValueError: if a part of `tx` adapts to them: it would skip every step, and never adapt.
    """
    for part in all_parts(tx):
        if getattr(part, "needs_overflows", False):
            raise ValueError(
                f"{name_of(hider)}: {name_of(part)} in it or after it adapts to gradients that are "
                f"not finite, and may not get them; put {name_of(hider)} inside "
                f"{name_of(part)}: {name_of(part)}({name_of(hider)}(...), ...)."
            )


def _parts_setting_params(tx: Any) -> Iterator[Any]:
    """Yield the parts of a transform that set the parameters."""
    for part in all_parts(tx):
        if isinstance(part, GradientTransformation) and part.sets_params:
            yield part


def _parts_changing_steps(tx: Any) -> Iterator[Any]:
    """Yield the innermost parts that are known to change updates."""
    tx = unwrapped(tx)
    if not isinstance(tx, GradientTransformation) or tx.keeps_updates:
        return
    inner = inner_parts(tx)
    ours = type(tx).__module__.split(".")[0] == "gradxform" and type(tx) not in OF_FUNCTIONS
    if not inner and (ours or isinstance(tx, ArrayRule)):
        yield tx
    for part in inner:
        yield from _parts_changing_steps(part)

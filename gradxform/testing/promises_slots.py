"""Promises about the parts of a state: whose they are, and under which names they are found."""

import dataclasses
from typing import Any

import jax
import numpy as np

from gradxform.base import ArrayRule, GradientTransformation, unwrapped
from gradxform.errors import name_of
from gradxform.leaves import is_hole, path_str, with_paths
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.states import node_at, slot_fields
from gradxform.run_states.migration.layout import init_with_owners
from gradxform.run_states.slot_names.access import get_slots, set_slots
from gradxform.run_states.slot_names.owners import owned_states
from gradxform.testing.case import Case, transforms_by_field
from gradxform.testing.promise import (
    Broken,
    Skipped,
    as_numpy,
    check_close,
    promise,
    run,
    transform_of,
)
from gradxform.transforms.adaptive import scale_by_rms
from gradxform.transforms.matrices.rule import MatrixRule
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import OptState
from gradxform.values import replace
from gradxform.wrappers.compose import chain


@promise('A slot that begins as a copy of the parameters is named: copies = ("slot",), or follows.')
def says_which_slots_are_copies(case: Case) -> None:
    """A rule names its slots that begin as the parameters, which no storage may round."""
    tx, p = transform_of(case), case.params()
    if not isinstance(tx, ArrayRule | MatrixRule):
        raise Skipped("a wrapper computes with its own slots itself, and says what it holds")
    state = tx.init(p)
    begin = {k for k in slot_fields(type(state)) if _are_params(getattr(state, k), p)}
    both = begin - {*tx.follows, *tx.copies}
    if both or not begin >= {*tx.copies}:
        raise Broken(f"copies = {tx.copies}", expected=f"{tuple(sorted(begin - {*tx.follows}))}")


def _are_params(slot: Any, params: Any) -> bool:
    """Whether every array of a slot equals the parameter in its place."""
    old = {path: as_numpy(x) for path, x in with_paths(params) if not is_hole(x)}
    pairs = [(as_numpy(x), old.get(path)) for path, x in with_paths(slot) if not is_hole(x)]
    return bool(pairs) and all(y is not None and np.array_equal(x, y) for x, y in pairs)


@promise(
    "A wrapper says where the states of what it holds are: "
    'holds = (("inner", "inner_state"),), or a method `inner_states`.'
)
def says_whose_its_states_are(case: Case) -> None:
    """Each part of a state is found with the transform that made it, and slots by their names."""
    tx, p = transform_of(case), case.params()
    state, makers = init_with_owners(tx, p)
    owners = {owned.path: owned.rule for owned in owned_states(tx, state)}
    for path, maker in makers.items():
        node = node_at(state, path)
        if maker is None or isinstance(node, MaskedState):
            continue
        owner, expected = owners.get(path), _without_wrappers(maker, node)
        if owner is None or name_of(owner) != name_of(expected):
            raise Broken(
                "nobody" if owner is None else name_of(owner),
                expected=name_of(expected),
                leaf=f"the owner of the state at {path_str(path)}",
            )
    *_, state = run(case.bound, p, case.gradients(p, 2))
    again = set_slots(tx, tx.init(p), get_slots(tx, state))
    check_close("state", again, state, 0.0, what=", as the slots were read")
    _check_signs(case)


def _without_wrappers(tx: Any, state: OptState) -> Any:
    """Return the transform inside the wrappers that do not have a state of their own."""
    tx = unwrapped(tx)
    inner = tx.inner_states(state) if isinstance(tx, GradientTransformation) else []
    return next((_without_wrappers(part, state) for at, part in inner if not at), tx)


def _check_signs(case: Case) -> None:
    """Require the momentum of an RMSProp inside to have the sign that Keras gives it."""
    inner_transforms = transforms_by_field(transform_of(case))
    if len(inner_transforms) != 1 or not case.holds_optimizer:
        return
    ((field, _),) = inner_transforms.items()
    rmsprop = chain(scale_by_rms(0.9), scale_by_learning_rate(0.1), trace(0.9))
    try:
        tx: Any = replace(case.tx, **{field: rmsprop})
        holding = dataclasses.replace(case, tx=tx)
        p = case.params()
        *_, state = run(holding.bound, p, case.gradients(p, 2))
    except (TypeError, ValueError):  # it refuses this optimizer
        return
    (ours,) = _momenta(get_slots(tx, state), "trace")
    (keras,) = _momenta(get_slots(tx, state, "keras"), "momentum")
    check_close(
        "momentum", keras, jax.tree.map(lambda x: -x, ours), 0.0, what=", uphill as Keras's"
    )


def _momenta(slots: dict[str, Any], name: str) -> list[Any]:
    return [x for k, x in slots.items() if k.rpartition(".")[2] == name]

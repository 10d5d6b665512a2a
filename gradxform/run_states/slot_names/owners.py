"""Which transform each state belongs to, for any transform and its state, without parameters."""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax

from gradxform.base import GradientTransformation, unwrapped
from gradxform.errors import name_of
from gradxform.leaves import Path, entry_name
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.states import (
    check_state,
    children_of,
    holds_states,
    kinds_of_params,
    node_at,
    slot_fields,
)
from gradxform.wrappers.external_step import external_step


class Owned(NamedTuple):
    """A state, without the states inside it, and whose it is.

    Attributes:
      path: the names of the fields, keys and indices that lead to it.
      state: the NamedTuple.
      fields: its fields that are not states.
      rule: the transform of the state; None if that is unknown.
      before: the transforms that come before it in its chain.
      clock: the `external_step` that sets its count, if any.
    """

    path: Path
    state: Any
    fields: tuple[str, ...]
    rule: Any
    before: tuple[Any, ...]
    clock: external_step | None


class _Walk(NamedTuple):
    """A walk through a state: the states that it meets, and the classes that are not states."""

    owned: list[Owned]
    of_params: frozenset[type]  # the NamedTuples of the parameters, which are not states


def owned_states(tx: Any, state: Any) -> list[Owned]:
    """Return the states that have arrays of their own, outer ones and earlier ones first.

    Raises:
      TypeError: if a state is of another kind than its transform's.
      ValueError: if a chain has another number of states.
    """
    walk = _Walk([], kinds_of_params(state))
    _walk_owned_states(walk, tx, state, (), (), None)
    return walk.owned


def with_child(node: Any, path: Path, child: Any) -> Any:
    """Return a state with another node at a path."""
    if not path:
        return child
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    children = [
        with_child(x, path[1:], child) if entry_name(key[-1]) == path[0] else x for key, x in flat
    ]
    return jax.tree.unflatten(treedef, children)


def _walk_owned_states(
    walk: _Walk,
    tx: Any,
    state: Any,
    path: Path,
    before: tuple[Any, ...],
    clock: external_step | None,
) -> tuple[Any, ...]:
    """Add the states of a transform to `walk`; return `before` with the transforms in it."""
    tx = unwrapped(tx)
    inner = tx.inner_states(state) if isinstance(tx, GradientTransformation) else []
    clock = tx if isinstance(tx, external_step) else clock
    if not inner and type(state).__name__ == MaskedState.__name__:  # of a rule with a mask
        state, path = state.inner_state, (*path, "inner_state")
    elif all(at for at, _ in inner):  # it has a state of its own
        _check_kind_of_owned_state(tx, state)
    _add_owned_states(walk, tx, state, path, before, clock, {at for at, _ in inner})
    for at, part in inner:
        before = _walk_owned_states(walk, part, node_at(state, at), (*path, *at), before, clock)
    return before if inner else (*before, tx)


def _add_owned_states(
    walk: _Walk,
    tx: Any,
    node: Any,
    path: Path,
    before: tuple[Any, ...],
    clock: external_step | None,
    others: Collection[Path],
) -> None:
    """Add the states in `node`, but not those at the paths `others`, which have other owners."""
    if () in others:
        return
    slots = slot_fields(type(node)) if hasattr(node, "_fields") else ()
    inside = {
        k: x
        for k, x in (children_of(node) or {}).items()
        # The states of the schedules of `inject_hyperparams` are a field like others.
        if k not in (*slots, "hyperparams_states") and holds_states(x, walk.of_params)
    }
    if hasattr(node, "_fields"):
        fields = tuple(k for k in node._fields if k not in inside)
        walk.owned.append(Owned(path, node, fields, tx, before, clock))
    for k, x in inside.items():  # whose they are is not known
        _add_owned_states(
            walk, None, x, (*path, k), before, clock, {at[1:] for at in others if at[0] == k}
        )


def _check_kind_of_owned_state(tx: Any, state: Any) -> None:
    """Require the state of a rule to be of the rule's kind."""
    kind = getattr(tx, "State", None)
    if isinstance(kind, type):
        check_state(tx, state, kind)


def rule_name(owned: Owned) -> str:
    """Return the name of the transform of a state; an empty string if it is unknown."""
    return "" if owned.rule is None else name_of(owned.rule)

"""Which transform each state belongs to, for any transform and its state, without parameters."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from gradxform.base import GradientTransformation, unwrapped
from gradxform.errors import name_of
from gradxform.leaves import Path, entry_name
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.states import check_state, holds_states, kinds_of_params, slot_fields
from gradxform.wrappers.compose import chain, named_chain, sum_of
from gradxform.wrappers.external_step import external_step
from gradxform.wrappers.hyperparams.inject import injected
from gradxform.wrappers.parts import StatelessWrapper, inner_parts
from gradxform.wrappers.select import masked


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
    _walk(walk, tx, state, (), (), None)
    return walk.owned


def children_of(node: Any) -> dict[str, Any] | None:
    """Return the children of a node by name; None for an array."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if treedef == jax.tree.structure(0):
        return None
    return {entry_name(path[-1]): child for path, child in flat}


def with_child(node: Any, path: Path, child: Any) -> Any:
    """Return a state with another node at a path."""
    if not path:
        return child
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    children = [
        with_child(x, path[1:], child) if entry_name(key[-1]) == path[0] else x for key, x in flat
    ]
    return jax.tree.unflatten(treedef, children)


def _walk(
    walk: _Walk,
    tx: Any,
    state: Any,
    path: Path,
    before: tuple[Any, ...],
    clock: external_step | None,
) -> tuple[Any, ...]:
    """Add the states of a transform to `walk`; return `before` with the transforms in it."""
    tx = unwrapped(tx)
    if isinstance(tx, StatelessWrapper):
        clock = tx if isinstance(tx, external_step) else clock
        return _walk(walk, tx.inner, state, path, before, clock)
    if type(state).__name__ == MaskedState.__name__ and hasattr(state, "inner_state"):
        # The state of a group, and then `tx` is the transform of the group; or that of `masked`.
        inner = tx.inner if isinstance(tx, masked) else tx
        return _walk(walk, inner, state.inner_state, (*path, "inner_state"), before, clock)
    children = children_of(state) or {}
    if isinstance(tx, chain | named_chain | sum_of):
        transforms = tx.transforms if isinstance(tx, sum_of) else tx.inner()
        states = state if isinstance(tx, sum_of) else tx.split_state(state)
        names = [name for name, _ in tx.transforms] if isinstance(tx, named_chain) else None
        for i, (part, its_state) in enumerate(zip(transforms, states, strict=True)):
            at = (*path, str(i) if names is None else names[i])
            before = _walk(walk, part, its_state, at, before, clock)
        return before
    slots = slot_fields(type(state)) if hasattr(state, "_fields") else ()
    inside = {
        k: x for k, x in children.items() if k not in slots and holds_states(x, walk.of_params)
    }
    if hasattr(state, "_fields"):
        _check_kind(tx, state)
        fields = tuple(k for k in state._fields if k not in inside)
        walk.owned.append(Owned(path, state, fields, tx, before, clock))
    for at, part in _transforms_of(tx, state, inside):
        before = _walk(walk, part, node_at(state, at), (*path, *at), before, clock)
    return before if inside else (*before, tx)


def _check_kind(tx: Any, state: Any) -> None:
    """Require the state of a rule to be of the rule's kind."""
    kind = getattr(tx, "State", None)
    if isinstance(kind, type):
        check_state(tx, state, kind)


def node_at(node: Any, path: Path) -> Any:
    """Return the node of a state at a path."""
    for name in path:
        node = (children_of(node) or {})[name]
    return node


def _transforms_of(tx: Any, state: Any, inside: dict[str, Any]) -> Sequence[tuple[Path, Any]]:
    """Return the path of each state inside another, with the transform that it belongs to."""
    if isinstance(tx, injected):
        hyperparams = {k: state.hyperparams[k] for k in state.hyperparams}
        return [(("inner_state",), tx.inner_with(hyperparams))]
    holds = {its_state: field for field, its_state in getattr(tx, "holds", ())}
    if holds and set(inside) <= set(holds):
        return [((k,), getattr(tx, holds[k])) for k in inside]
    inner = inner_parts(tx) if isinstance(tx, GradientTransformation) else []
    places: list[tuple[Path, Any]] = [((k,), x) for k, x in inside.items()]
    while len(places) == 1 and len(inner) > 1 and not hasattr(places[0][1], "_fields"):
        (at, node) = places[0]
        places = [((*at, k), x) for k, x in (children_of(node) or {}).items()]
    if len(places) != len(inner):  # of another library, or of a shape of its own
        return [(at, None) for at, _ in places]
    return [(at, part) for (at, _), part in zip(places, inner, strict=True)]


def rule_name(owned: Owned) -> str:
    """Return the name of the transform of a state; an empty string if it is unknown."""
    return "" if owned.rule is None else name_of(owned.rule)

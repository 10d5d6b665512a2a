"""The states of transforms: their classes, and which of their fields are slots."""

import functools
import sys
import typing
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradxform._names.deferred import annotations_of
from gradxform.errors import name_of
from gradxform.leaves.trees import Path, entry_name, is_hole, like_params
from gradxform.types import NonNegativeSlot, PyTree, Slot

_SLOTS = {"Slot": Slot, "NonNegativeSlot": NonNegativeSlot}


@functools.cache
def marked_fields(cls: type, mark: Any) -> tuple[str, ...]:
    """Return the names of the fields of a state with that annotation."""
    return tuple(k for k, annotation in hints_of(cls).items() if annotation == mark)


def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a state's fields, resolved one by one.

    An annotation with a name that cannot be resolved at run time is left out, unless the name is
    a kind of slot: an unresolved name in one field must not hide the slots of the others.
    """
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # evaluating an annotation may raise anything
        pass
    hints = {}
    names = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    for field, annotation in annotations_of(cls).items():
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            hints[field] = annotation
        elif annotation.rpartition(".")[2] in _SLOTS:
            hints[field] = _SLOTS[annotation.rpartition(".")[2]]
        elif annotation in names:
            hints[field] = names[annotation]
    return hints


@functools.cache
def slot_fields(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a state that hold one array per parameter."""
    return tuple(k for k, kind in hints_of(cls).items() if kind in (Slot, NonNegativeSlot))


@functools.cache
def non_negative_fields(cls: type) -> tuple[str, ...]:
    """Return the names of the slots without negative entries."""
    return marked_fields(cls, NonNegativeSlot)


def _states_in_tree(tree: PyTree) -> list[Any]:
    nodes: list[Any] = []
    jax.tree.flatten(tree, is_leaf=lambda node: bool(nodes.append(node)))
    return [x for x in nodes if hasattr(type(x), "_fields") and not is_hole(x)]


def named_tuples_in(tree: PyTree) -> set[type]:
    """Return the classes of the NamedTuples in a tree, except for those of holes."""
    return {type(x) for x in _states_in_tree(tree)}


def kinds_of_params(tree: PyTree) -> frozenset[type]:
    """Return the NamedTuples in the slots of the states in a tree, which are not states.

    A slot is like the parameters, which may be a NamedTuple or have some.
    """
    slots = [getattr(x, k) for x in _states_in_tree(tree) for k in slot_fields(type(x))]
    return frozenset(kind for slot in slots for kind in named_tuples_in(slot))


def holds_states(x: PyTree, of_params: Collection[type] = ()) -> bool:
    """Whether a tree contains a state: a NamedTuple that is none of those of the parameters."""
    return not named_tuples_in(x) <= set(of_params)


def children_of(node: Any) -> dict[str, Any] | None:
    """Return the children of a node by name; None for an array."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if treedef == jax.tree.structure(0):
        return None
    return {entry_name(path[-1]): child for path, child in flat}


def node_at(node: Any, path: Path) -> Any:
    """Return the node of a state at a path."""
    for name in path:
        node = (children_of(node) or {})[name]
    return node


def state_kind(rule: Any, tree: PyTree) -> type:
    """Return the class of the state that a rule's `init` returns for parameters like `tree`.

    That is `State`; if the rule does not set it, `init` is traced.
    """
    kind = rule.__dict__.get("_state_kind") or rule.State
    if kind is None:  # the state is from a checkpoint, `init` was not called
        kind = type(jax.eval_shape(rule.init, like_params(tree)))
        object.__setattr__(rule, "_state_kind", kind)
    return kind


def check_state(part: Any, state: Any, kind: type) -> Any:
    """Return `state` as a state of that kind; one of another library with the same fields is too.

    If the kind does not have fields, any state is accepted. Fields that are missing in another
    library's state of the same name get their default. A state keeps its class, so that a loop can
    carry it.

    Raises:
      TypeError: if the state is of another kind.
    """
    fields = getattr(kind, "_fields", ())
    theirs = getattr(state, "_fields", None)
    if not fields:
        return state if theirs == () and type(state).__name__ == kind.__name__ else kind()
    if type(state) is kind or theirs == fields:
        return state
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})
    if type(state).__name__ == kind.__name__ and theirs is not None:
        if set(theirs) <= set(fields) <= set(theirs) | set(defaults):
            return kind(**state._asdict())
    raise TypeError(
        f"{name_of(part)}: the state must be of kind {kind.__name__}, got "
        f"{type(state).__name__}. Was this state made by another transform's init?"
    )


def used_slots(part: Any, state: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the names of a state's slots that a rule does not do without.

    Raises:
      ValueError: if the state has arrays in a field that the rule does without, or None in one that
        it needs.
    """
    unused = part.unused_slots
    for name, default in getattr(part.State, "_field_defaults", {}).items():
        if default is None and name not in unused and getattr(state, name) is None:
            raise ValueError(
                f"{name_of(part)}: the state does not have {name}, which this transform keeps. "
                "Was this state made by the same call?"
            )
    for name in unused:
        if any(map(jnp.size, jax.tree.leaves(getattr(state, name)))):
            raise ValueError(
                f"{name_of(part)}: the state has arrays in {name}, which this transform does not "
                "keep. Was this state made by the same call?"
            )
    return tuple(k for k in names if k not in unused) if unused else tuple(names)


def laid_like(tree: PyTree, like: PyTree) -> PyTree:
    """Return the leaves of `tree` in the structure of `like`, which has as many leaves.

    The state that another library's init returns may have other classes than ours after an update.
    """
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(tree))

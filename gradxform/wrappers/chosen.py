"""A transform on some of the leaves: trees with holes for the others, and a state for them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from gradxform.base import call_update, tell_moved
from gradxform.errors import name_of
from gradxform.leaves import (
    Path,
    flatten_updates,
    flatten_with_names,
    is_hole,
    is_update_leaf,
    leaves_of,
    masks,
    path_str,
    structure_of,
)
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.no_gradient import seen_whole
from gradxform.types import MaskedNode, Params, PyTree
from gradxform.values.memory import Memory
from gradxform.wrappers.one_pass import call_update_params

__all__ = []

_HOLE = MaskedNode()

Key = tuple[bool, Any]


def keys_of(labels: Iterable[Any]) -> tuple[Key, ...]:
    """Return keys of labels, by which True and 1, which are equal in Python, are different."""
    return tuple([(isinstance(label, bool), label) for label in labels])


class Chosen:
    """The parameters that a transform gets.

    Args:
      leaves: for each parameter, by path, the key of its label.
      branches: the same for branches that one entry of a mask tree labels.
      key: the key of the label of those that are chosen.
    """

    def __init__(self, leaves: Mapping[Path, Key], branches: Mapping[Path, Key], key: Key) -> None:
        self._leaves, self._key = leaves, key
        self._left_out = {path for path, its_key in branches.items() if its_key != key}
        # The paths of the parameters in the branches that are left out.
        self.hidden = [
            path
            for path in leaves
            if self._left_out and any(path[:n] in self._left_out for n in range(len(path) + 1))
        ]
        # For the structure of a tree: which of its leaves are chosen, and the structure of those.
        self._places: Memory[Any, tuple[list[int], Any]] = Memory()

    def of(self, part: Any, tree: PyTree, what: str) -> PyTree:
        """Return `tree` with a MaskedNode for each leaf, and each branch, that is not chosen."""
        leaves, treedef = flatten_updates(tree)
        places = self._places.get(treedef)
        if places is None:
            places = self._places_in(part, tree, what)
            self._places.keep(treedef, places)
        indices, inside = places
        return inside.unflatten([leaves[i] for i in indices])

    def _places_in(self, part: Any, tree: PyTree, what: str) -> tuple[list[int], Any]:
        """Return which leaves of a tree are chosen, and the structure of those among holes."""
        named, treedef = flatten_with_names(tree, is_update_leaf, self._left_out)
        indices, kept, count = [], [], 0
        for path, leaf in named:
            is_in = path not in self._left_out
            if is_in and not is_hole(leaf):
                if path not in self._leaves:
                    raise ValueError(
                        f"{name_of(part)}: {what} a leaf {path_str(path)} for which the mask does "
                        "not have an entry."
                    )
                is_in = self._leaves[path] == self._key
                indices += [count] * is_in
            kept.append(leaf if is_in or is_hole(leaf) else _HOLE)
            count += len(leaves_of(leaf))
        return indices, structure_of(treedef.unflatten(kept))

    def put(self, new: PyTree, old: PyTree) -> PyTree:
        """Return the leaves of `new`, and those of `old` where `new` has a hole."""
        leaves, treedef = flatten_updates(old)
        news, inside = flatten_updates(new)
        places = self._places.get(treedef)
        if places is not None and places[1] == inside:
            for i, x in zip(places[0], news, strict=True):
                leaves[i] = x
            return treedef.unflatten(leaves)
        # Some leaf was chosen and is a hole now, or the other way round.
        named, treedef = flatten_with_names(old, is_update_leaf, self._left_out)
        pairs = zip(named, jax.tree.leaves(new, is_leaf=is_update_leaf), strict=True)
        return treedef.unflatten([x if is_hole(leaf) else leaf for (_, x), leaf in pairs])


def chosen_by_label(
    entries: masks.Entries, keys: tuple[Key, ...], refuse: Callable[[Path, Any], None]
) -> list[Chosen]:
    """Return the parameters that have each of some labels.

    Args:
      entries: the labels of all.
      keys: the keys of those labels.
      refuse: raises an error for a parameter with another label.
    """
    chosen = entries.made.get(keys)
    if chosen is None:
        of_leaves, of_branches = (
            dict(zip(labels, keys_of(labels.values()), strict=True))
            for labels in (entries.of_leaves, entries.of_branches)
        )
        for path, key in of_leaves.items():
            if key not in keys:
                refuse(path, entries.of_leaves[path])
        chosen = [Chosen(of_leaves, of_branches, key) for key in keys]
        entries.made[keys] = chosen
    return chosen


def init_masked(part: Any, tx: Any, chosen: Chosen, params: Params) -> MaskedState:
    """Return the first state of `tx`, for the chosen parameters."""
    inner_params = chosen.of(part, params, "the parameters have")
    with masks.hiding(chosen.hidden):
        return MaskedState(inner_state=tx.init(inner_params))


def update_masked(
    part: Any,
    tx: Any,
    chosen: Chosen,
    updates: PyTree,
    state: MaskedState,
    params: Params | None,
    extra: dict[str, Any],
    into: PyTree = None,
) -> tuple[PyTree, MaskedState]:
    """Update with `tx` on the chosen leaves; pass the others through.

    With `into`, a tree like the parameters, the new parameters take the place of its chosen leaves.
    """
    with masks.hiding(chosen.hidden):
        if part.mask_compatible_extra_args:
            like = structure_of(updates)
            extra = {
                k: chosen.of(part, v, f"{k} has") if structure_of(v) == like else v
                for k, v in extra.items()
            }
        inner_params = params
        if params is not None:
            inner_params = chosen.of(part, params, "the parameters have")
            extra = extra and seen_whole(  # functions such as `grad_fn` take and return whole trees
                extra,
                lambda chosen_params: chosen.put(chosen_params, params),
                lambda grads: chosen.of(part, grads, "the gradients of grad_fn have"),
            )
        inner_updates = chosen.of(part, updates, "the updates have")
        given = tx, inner_updates, state.inner_state, inner_params, extra
        new, inner_state = call_update(*given) if into is None else call_update_params(*given)
    changed = chosen.put(new, updates if into is None else into)
    return changed, state._replace(inner_state=inner_state)


def tell_masked(
    part: Any, tx: Any, chosen: Chosen, state: MaskedState, old: Params, new: Params
) -> MaskedState:
    """Tell `tx` how the chosen parameters have moved."""
    old, new = (chosen.of(part, params, "the parameters have") for params in (old, new))
    return state._replace(inner_state=tell_moved(tx, state.inner_state, old, new))

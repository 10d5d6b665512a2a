"""A transform on some of the leaves: trees with holes for the others, and a state for them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from gradxform.base import call_update, tell_moved
from gradxform.errors import name_of
from gradxform.leaves import (
    Path,
    flatten_with_names,
    is_hole,
    is_update_leaf,
    masks,
    path_str,
    structure_of,
)
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.no_gradient import seen_whole
from gradxform.types import MaskedNode, Params, PyTree

__all__ = []

_HOLE = MaskedNode()


class Chosen(NamedTuple):
    """The parameters that a transform gets, by path."""

    leaves: Mapping[Path, bool]
    left_out: frozenset[Path]  # branches left out by one entry of a mask tree

    def flatten(self, tree: PyTree) -> tuple[list[tuple[Path, Any]], Any]:
        """Flatten a tree with its paths; a branch that is left out is one leaf."""
        return flatten_with_names(tree, is_update_leaf, self.left_out)

    def hidden(self) -> list[Path]:
        """Return the paths of the parameters in the branches that are left out."""
        if not self.left_out:
            return []
        return [p for p in self.leaves if any(p[: len(b)] == b for b in self.left_out)]


# The leaves of a tree with their paths, and its structure.
Flat = tuple[list[tuple[Path, Any]], Any]


def _keep_chosen(tree: PyTree, chosen: Chosen, part: Any, what: str) -> PyTree:
    """Return `tree` with a MaskedNode for each leaf, and each branch, that is not chosen."""
    return _keep_chosen_flat(chosen.flatten(tree), chosen, part, what)


def _keep_chosen_flat(flat: Flat, chosen: Chosen, part: Any, what: str) -> PyTree:
    """Return what `_keep_chosen` does, of a tree that `chosen` has flattened."""
    named, treedef = flat
    leaves = []
    for path, leaf in named:
        is_in = path not in chosen.left_out
        if is_in and not is_hole(leaf):
            if path not in chosen.leaves:
                raise ValueError(
                    f"{name_of(part)}: {what} a leaf {path_str(path)} for which the mask does "
                    "not have an entry."
                )
            is_in = chosen.leaves[path]
        leaves.append(leaf if is_in or is_hole(leaf) else _HOLE)
    return jax.tree.unflatten(treedef, leaves)


def _fill_holes(new: PyTree, old: PyTree, chosen: Chosen) -> PyTree:
    """Return the leaves of `new`, and those of `old` where `new` has a hole."""
    return joined(_fill_holes_of_chosen(new, chosen.flatten(old)))


def _fill_holes_of_chosen(new: PyTree, flat: Flat) -> Flat:
    """Return what `_fill_holes` does, flat, of an old tree that is."""
    named, treedef = flat
    leaves = jax.tree.leaves(new, is_leaf=is_update_leaf)
    return [
        old if is_hole(leaf) else (old[0], leaf) for old, leaf in zip(named, leaves, strict=True)
    ], treedef


def init_masked(part: Any, tx: Any, chosen: Chosen, params: Params) -> MaskedState:
    """Return the first state of `tx`, for the chosen parameters."""
    inner_params = _keep_chosen(params, chosen, part, "the parameters have")
    with masks.hiding(chosen.hidden()):
        return MaskedState(inner_state=tx.init(inner_params))


def update_masked(
    part: Any,
    tx: Any,
    chosen: Chosen,
    updates: Flat,
    state: MaskedState,
    params: Params | None,
    flat_params: Flat | None,
    extra: dict[str, Any],
) -> tuple[Flat, MaskedState]:
    """Update with `tx` on the chosen leaves; pass the others through.

    Both trees come as `chosen` flattens them.
    """
    if part.mask_compatible_extra_args:
        like = structure_of(joined(updates))
        extra = {
            k: _keep_chosen(v, chosen, part, f"{k} has") if structure_of(v) == like else v
            for k, v in extra.items()
        }
    inner_params = params
    if flat_params is not None:  # functions such as `grad_fn` take and return whole trees
        inner_params = _keep_chosen_flat(flat_params, chosen, part, "the parameters have")
        extra = seen_whole(
            extra,
            lambda chosen_params: _fill_holes(chosen_params, params, chosen),
            lambda grads: _keep_chosen(grads, chosen, part, "the gradients of grad_fn have"),
        )
    inner_updates = _keep_chosen_flat(updates, chosen, part, "the updates have")
    with masks.hiding(chosen.hidden()):
        new, inner_state = call_update(tx, inner_updates, state.inner_state, inner_params, extra)
    return _fill_holes_of_chosen(new, updates), state._replace(inner_state=inner_state)


def joined(flat: Flat) -> PyTree:
    """Return the tree that was flattened."""
    named, treedef = flat
    return jax.tree.unflatten(treedef, [leaf for _, leaf in named])


def tell_masked(
    part: Any, tx: Any, chosen: Chosen, state: MaskedState, old: Params, new: Params
) -> MaskedState:
    """Tell `tx` how the chosen parameters have moved."""
    old, new = (_keep_chosen(params, chosen, part, "the parameters have") for params in (old, new))
    return state._replace(inner_state=tell_moved(tx, state.inner_state, old, new))

"""Transforms on some of the parameters, or different ones on different parameters."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple, TypeVar

import jax

from gradxform.base import (
    Transform,
    call_update,
    check_transform,
    farthest,
    locality_of,
    tell_moved,
    transform,
)
from gradxform.errors import did_you_mean, must_be, name_of, shown
from gradxform.leaves import (
    Path,
    align,
    flatten_with_names,
    is_hole,
    is_update_leaf,
    masks,
    path_str,
    structure_of,
    with_paths,
)
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.no_gradient import seen_whole
from gradxform.leaves.states import check_state
from gradxform.leaves.structures import remembered
from gradxform.types import MaskedNode, OptState, Params, PyTree, StaticMask, StaticTree, Updates
from gradxform.values import FrozenTree, as_node, is_function

__all__ = [
    "masked",
    "multi_transform",
    "partition",
    "MaskedState",
    "MultiTransformState",
    "PartitionState",
]


T = TypeVar("T")

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
_Flat = tuple[list[tuple[Path, Any]], Any]


def _keep_chosen(tree: PyTree, chosen: Chosen, part: Any, what: str) -> PyTree:
    """Return `tree` with a MaskedNode for each leaf, and each branch, that is not chosen."""
    return _chosen_of(chosen.flatten(tree), chosen, part, what)


def _chosen_of(flat: _Flat, chosen: Chosen, part: Any, what: str) -> PyTree:
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
    return _joined(_filled(new, chosen.flatten(old)))


def _filled(new: PyTree, flat: _Flat) -> _Flat:
    """Return what `_fill_holes` does, flat, of an old tree that is."""
    named, treedef = flat
    leaves = jax.tree.leaves(new, is_leaf=is_update_leaf)
    return [
        old if is_hole(leaf) else (old[0], leaf) for old, leaf in zip(named, leaves, strict=True)
    ], treedef


def _evaluated_mask(
    part: Any, mask: Any, updates: Updates, params: Params | None, **options: Any
) -> tuple[dict[Path, Any], dict[Path, Any]]:
    """Evaluate a mask or labels for the parameters, or for the updates if these are not given."""
    tree = updates if params is None else params
    return masks.by_path(part, mask, tree, whole=params is not None, **options)


def _once(
    mask: Any, labels: Any, updates: Updates, params: Params | None, make: Callable[[], T]
) -> T:
    """Return `make()`, the choice of a mask or of labels; remembered where that is safe."""
    if not masks.tells_by_shape(mask):  # it may look at values, which differ from step to step
        return make()
    key = ("chosen", mask, labels, params is None, masks.hidden_paths())
    return remembered(key, updates if params is None else params, make)


def _check_structure(part: Any, updates: Updates, params: Params | None) -> None:
    if params is not None:
        align(part, updates, structure_of(updates), params, "the parameters have")


def _init_masked(part: Any, tx: Any, chosen: Chosen, params: Params) -> MaskedState:
    """Return the first state of `tx`, for the chosen parameters."""
    inner_params = _keep_chosen(params, chosen, part, "the parameters have")
    with masks.hiding(chosen.hidden()):
        return MaskedState(inner_state=tx.init(inner_params))


def _update_masked(
    part: "masked | partition",
    tx: Any,
    chosen: Chosen,
    updates: _Flat,
    state: MaskedState,
    params: Params | None,
    flat_params: _Flat | None,
    extra: dict[str, Any],
) -> tuple[_Flat, MaskedState]:
    """Update with `tx` on the chosen leaves; pass the others through.

    Both trees come as `chosen` flattens them.
    """
    if part.mask_compatible_extra_args:
        like = structure_of(_joined(updates))
        extra = {
            k: _keep_chosen(v, chosen, part, f"{k} has") if structure_of(v) == like else v
            for k, v in extra.items()
        }
    inner_params = params
    if flat_params is not None:  # functions such as `grad_fn` take and return whole trees
        inner_params = _chosen_of(flat_params, chosen, part, "the parameters have")
        extra = seen_whole(
            extra,
            lambda chosen_params: _fill_holes(chosen_params, params, chosen),
            lambda grads: _keep_chosen(grads, chosen, part, "the gradients of grad_fn have"),
        )
    inner_updates = _chosen_of(updates, chosen, part, "the updates have")
    with masks.hiding(chosen.hidden()):
        new, inner_state = call_update(tx, inner_updates, state.inner_state, inner_params, extra)
    return _filled(new, updates), state._replace(inner_state=inner_state)


def _joined(flat: _Flat) -> PyTree:
    """Return the tree that was flattened."""
    named, treedef = flat
    return jax.tree.unflatten(treedef, [leaf for _, leaf in named])


def _tell_masked(
    part: Any, tx: Any, chosen: Chosen, state: MaskedState, old: Params, new: Params
) -> MaskedState:
    """Tell `tx` how the chosen parameters have moved."""
    old, new = (_keep_chosen(params, chosen, part, "the parameters have") for params in (old, new))
    return state._replace(inner_state=tell_moved(tx, state.inner_state, old, new))


@transform
class masked(Transform):
    """Run a transform on the parameters that a mask selects; other updates pass unchanged.

    The inner state does not have entries for parameters outside the mask.

    Args:
      inner: the transform.
      mask: a mask such as `ndim_at_least(2)` or `path_matches("kernel$")`, a tree of booleans that
        may be a prefix of the parameters, or a function of the parameters that returns one.
      mask_compatible_extra_args: whether extra arguments that have the structure of the updates
        are masked too. Keyword-only.

    Raises:
      ValueError: if a `path_matches` or an entry of a mask tree does not match any parameter, or a
        parameter does not have an entry.
    """

    inner: Any
    mask: StaticMask
    mask_compatible_extra_args: bool = field(default=False, kw_only=True)

    handles_rows = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return locality_of(self.inner)

    def init(self, params: Params) -> MaskedState:
        """Return the inner state for the parameters in the mask."""
        return _init_masked(self, self.inner, self._chosen(params, params), params)

    def _chosen(self, updates: PyTree, params: PyTree | None) -> Chosen:
        def choose() -> Chosen:
            leaves, branches = _evaluated_mask(self, self.mask, updates, params)
            left_out = frozenset(path for path, is_in in branches.items() if not is_in)
            return Chosen(leaves, left_out)

        return _once(self.mask, None, updates, params, choose)

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the inner state."""
        return [(("inner_state",), self.inner)]

    def moved(self, state: OptState, old: Params, new: Params) -> MaskedState:
        """Return the state after something else has moved the parameters."""
        return _tell_masked(self, self.inner, self._chosen(new, new), state, old, new)

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MaskedState]:
        """Update the leaves that the mask selects."""
        check_state(self, state, MaskedState)
        _check_structure(self, updates, params)
        chosen = self._chosen(updates, params)
        flat = chosen.flatten(updates), None if params is None else chosen.flatten(params)
        new, state = _update_masked(
            self, self.inner, chosen, flat[0], state, params, flat[1], extra
        )
        return _joined(new), state


class PartitionState(NamedTuple):
    """State of `partition`."""

    inner_states: Any  # a dict from each label to its transform's MaskedState


@transform
class partition(Transform):
    """Run a different transform on each group of parameters.

    A label is anything that hashes: a string, a number, an enum, a tuple, None. True and 1 are
    different labels. The state is a dict by label, as in Optax. If the labels cannot be sorted it
    is an OrderedDict, because JAX sorts the keys of a dict.

    Args:
      transforms: a dict from labels to transforms.
      param_labels: labels by mask, as `label_by(("matrix", ndim_at_least(2)), ("rest", True))`, a
        tree of labels that may be a prefix of the parameters, or a function of the parameters that
        returns one.
      mask_compatible_extra_args: whether extra arguments that have the structure of the updates
        are split too. Keyword-only.

    Raises:
      ValueError: if a parameter's label does not have a transform, or if a `path_matches` or an
        entry of a tree of labels does not match any parameter.
    """

    transforms: StaticTree
    param_labels: StaticTree
    mask_compatible_extra_args: bool = field(default=False, kw_only=True)

    handles_rows = True

    def __post_init__(self) -> None:
        transforms = self.transforms
        if not isinstance(transforms, FrozenTree) or not isinstance(transforms.unfreeze(), dict):
            raise TypeError(
                must_be(self, "transforms", "a dict from labels to transforms", transforms)
            )
        for label, tx in transforms.unfreeze().items():
            check_transform(self, tx, f"the transform of {label!r}")
        if isinstance(self.param_labels, bool):  # one label for all parameters
            object.__setattr__(self, "param_labels", FrozenTree(self.param_labels))
        labels = self.param_labels
        valid = isinstance(labels, FrozenTree) or is_function(labels)
        if not valid or isinstance(labels, masks.Mask):
            raise TypeError(
                f"{name_of(self)}: param_labels must be a tree of labels or a function of the "
                f"parameters, got {shown(labels)}."
            )
        for label in self._static_labels():
            if _label_key(label) not in self._label_keys():
                self._refuse_label(label, f"the label {shown(label)} of param_labels")

    def _static_labels(self) -> list[Any]:
        """Return the labels that are known without parameters."""
        labels = self.param_labels
        if isinstance(labels, masks.label_by):
            return [label for label, _ in labels.pairs]
        if not isinstance(labels, FrozenTree):
            return []
        entries = [label for _, label in with_paths(labels.unfreeze(), self._is_entry)]
        return [label for label in entries if not is_hole(label)]

    def _is_entry(self, x: Any) -> bool:
        """Whether `x` is one entry of a tree of labels: a hole, or a tuple that is a label."""
        return is_update_leaf(x) or (
            type(x) is tuple and any(x == k for _, k in self._label_keys())
        )

    def _label_keys(self) -> set[tuple[bool, Any]]:
        return {_label_key(label) for label in self.transforms.unfreeze()}

    def _refuse_label(self, label: Any, subject: str) -> None:
        labels = list(self.transforms.unfreeze())
        raise ValueError(
            f"{name_of(self)}: {subject} does not have a transform; there are "
            f"{', '.join(map(repr, labels))}."
            f"{did_you_mean(label, [k for k in labels if isinstance(k, str)])}"
        )

    @property
    def locality(self) -> str:
        """The farthest locality of the transforms."""
        return farthest(list(self.transforms.unfreeze().values()))

    def _groups(self, updates: PyTree, params: PyTree | None) -> list[tuple[Any, Any, Chosen]]:
        """Return every label with its transform and the parameters that have it."""
        transforms = self.transforms.unfreeze()
        labels = tuple(map(_label_key, transforms))
        chosen = _once(
            self.param_labels, labels, updates, params, lambda: self._chosen(updates, params)
        )
        return [(label, tx, chosen[_label_key(label)]) for label, tx in transforms.items()]

    def _chosen(self, updates: PyTree, params: PyTree | None) -> dict[tuple[bool, Any], Chosen]:
        """Return the parameters that have each label, by the key of the label."""
        labels, branches = _evaluated_mask(
            self, self.param_labels, updates, params, kind=object, is_entry=self._is_entry
        )
        label_keys, keys = (
            self._label_keys(),
            {path: _label_key(label) for path, label in labels.items()},
        )
        for path, key in keys.items():
            if key not in label_keys:
                label = labels[path]
                subject = f"the parameter {path_str(path)} has the label {shown(label)}, which"
                self._refuse_label(label, subject)

        return {
            label_key: Chosen(
                {path: key == label_key for path, key in keys.items()},
                frozenset(path for path, x in branches.items() if _label_key(x) != label_key),
            )
            for label_key in label_keys
        }

    def init(self, params: Params) -> PartitionState:
        """Return the states of all transforms, each for its own parameters."""
        states = {
            label: _init_masked(self, tx, chosen, params)
            for label, tx, chosen in self._groups(params, params)
        }
        return PartitionState(as_node(states))

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the places of the groups' states, by label."""
        transforms = self.transforms.unfreeze()
        return [
            (("inner_states", str(label), "inner_state"), tx) for label, tx in transforms.items()
        ]

    def moved(self, state: OptState, old: Params, new: Params) -> PartitionState:
        """Return the states after something else has moved the parameters."""
        states = {
            label: _tell_masked(self, tx, chosen, state.inner_states[label], old, new)
            for label, tx, chosen in self._groups(new, new)
        }
        return state._replace(inner_states=as_node(states))

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, PartitionState]:
        """Update every group with its own transform."""
        check_state(self, state, PartitionState)
        _check_structure(self, updates, params)
        groups, inner_states = self._groups(updates, params), state.inner_states
        if set(map(_label_key, inner_states)) != {_label_key(label) for label, _, _ in groups}:
            raise ValueError(
                f"{name_of(self)}: the transforms are {[label for label, _, _ in groups]!r}, "
                f"the state has {list(inner_states)!r}. Was this state made by another "
                "partition's init?"
            )
        # Groups without branches that are left out see the same leaves: one flattening serves all.
        alike = not any(chosen.left_out for _, _, chosen in groups)
        flat = flat_params = None
        states = {}
        for label, tx, chosen in groups:
            if flat is None or not alike:
                flat = chosen.flatten(updates)
                flat_params = None if params is None else chosen.flatten(params)
            flat, states[label] = _update_masked(
                self, tx, chosen, flat, inner_states[label], params, flat_params, extra
            )
            updates = updates if alike else _joined(flat)
        updates = updates if flat is None else _joined(flat)
        return updates, state._replace(inner_states=as_node(states))


multi_transform = partition  # Optax's older name
MultiTransformState = PartitionState


def _label_key(label: Any) -> tuple[bool, Any]:
    """Return a key by which True and 1, which are equal in Python, are different labels."""
    return isinstance(label, bool), label

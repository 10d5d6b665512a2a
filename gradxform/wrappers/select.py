"""Transforms on some of the parameters, or different ones on different parameters."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple, TypeVar

from gradxform.base import Transform, check_transform, farthest, locality_of, transform
from gradxform.errors import did_you_mean, must_be, name_of, shown
from gradxform.leaves import (
    Path,
    align,
    is_hole,
    is_update_leaf,
    masks,
    path_str,
    structure_of,
    with_paths,
)
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.states import check_state
from gradxform.leaves.structures import remembered_by_structure
from gradxform.types import OptState, Params, PyTree, StaticMask, StaticTree, Updates
from gradxform.values import FrozenTree, as_node, is_function
from gradxform.wrappers.chosen import Chosen, init_masked, joined, tell_masked, update_masked

__all__ = [
    "masked",
    "multi_transform",
    "partition",
    "MaskedState",
    "MultiTransformState",
    "PartitionState",
]


T = TypeVar("T")


def _evaluated_mask_to_select(
    part: Any, mask: Any, updates: Updates, params: Params | None, **options: Any
) -> tuple[dict[Path, Any], dict[Path, Any]]:
    """Evaluate a mask or labels for the parameters, or for the updates if these are not given."""
    tree = updates if params is None else params
    return masks.by_path(part, mask, tree, whole=params is not None, **options)


def _selected_once(
    mask: Any, labels: Any, updates: Updates, params: Params | None, make: Callable[[], T]
) -> T:
    """Return `make()`, the choice of a mask or of labels; remembered where that is safe."""
    if not masks.tells_by_shape(mask):  # it may look at values, which differ from step to step
        return make()
    key = ("chosen", mask, labels, params is None, masks.hidden_paths())
    return remembered_by_structure(key, updates if params is None else params, make)


def _check_structure_to_select(part: Any, updates: Updates, params: Params | None) -> None:
    if params is not None:
        align(part, updates, structure_of(updates), params, "the parameters have")


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
        return init_masked(self, self.inner, self._chosen(params, params), params)

    def _chosen(self, updates: PyTree, params: PyTree | None) -> Chosen:
        def choose() -> Chosen:
            leaves, branches = _evaluated_mask_to_select(self, self.mask, updates, params)
            left_out = frozenset(path for path, is_in in branches.items() if not is_in)
            return Chosen(leaves, left_out)

        return _selected_once(self.mask, None, updates, params, choose)

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the inner state."""
        return [(("inner_state",), self.inner)]

    def moved(self, state: OptState, old: Params, new: Params) -> MaskedState:
        """Return the state after something else has moved the parameters."""
        return tell_masked(self, self.inner, self._chosen(new, new), state, old, new)

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MaskedState]:
        """Update the leaves that the mask selects."""
        check_state(self, state, MaskedState)
        _check_structure_to_select(self, updates, params)
        chosen = self._chosen(updates, params)
        flat = chosen.flatten(updates), None if params is None else chosen.flatten(params)
        new, state = update_masked(self, self.inner, chosen, flat[0], state, params, flat[1], extra)
        return joined(new), state


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
            if _key_of_selecting_label(label) not in self._label_keys():
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
        return {_key_of_selecting_label(label) for label in self.transforms.unfreeze()}

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
        labels = tuple(map(_key_of_selecting_label, transforms))
        chosen = _selected_once(
            self.param_labels, labels, updates, params, lambda: self._chosen(updates, params)
        )
        return [
            (label, tx, chosen[_key_of_selecting_label(label)]) for label, tx in transforms.items()
        ]

    def _chosen(self, updates: PyTree, params: PyTree | None) -> dict[tuple[bool, Any], Chosen]:
        """Return the parameters that have each label, by the key of the label."""
        labels, branches = _evaluated_mask_to_select(
            self, self.param_labels, updates, params, kind=object, is_entry=self._is_entry
        )
        label_keys, keys = (
            self._label_keys(),
            {path: _key_of_selecting_label(label) for path, label in labels.items()},
        )
        for path, key in keys.items():
            if key not in label_keys:
                label = labels[path]
                subject = f"the parameter {path_str(path)} has the label {shown(label)}, which"
                self._refuse_label(label, subject)

        return {
            label_key: Chosen(
                {path: key == label_key for path, key in keys.items()},
                frozenset(
                    path for path, x in branches.items() if _key_of_selecting_label(x) != label_key
                ),
            )
            for label_key in label_keys
        }

    def init(self, params: Params) -> PartitionState:
        """Return the states of all transforms, each for its own parameters."""
        states = {
            label: init_masked(self, tx, chosen, params)
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
            label: tell_masked(self, tx, chosen, state.inner_states[label], old, new)
            for label, tx, chosen in self._groups(new, new)
        }
        return state._replace(inner_states=as_node(states))

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, PartitionState]:
        """Update every group with its own transform."""
        check_state(self, state, PartitionState)
        _check_structure_to_select(self, updates, params)
        groups, inner_states = self._groups(updates, params), state.inner_states
        if set(map(_key_of_selecting_label, inner_states)) != {
            _key_of_selecting_label(label) for label, _, _ in groups
        }:
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
            flat, states[label] = update_masked(
                self, tx, chosen, flat, inner_states[label], params, flat_params, extra
            )
            updates = updates if alike else joined(flat)
        updates = updates if flat is None else joined(flat)
        return updates, state._replace(inner_states=as_node(states))


multi_transform = partition  # Optax's older name
MultiTransformState = PartitionState


def _key_of_selecting_label(label: Any) -> tuple[bool, Any]:
    """Return a key by which True and 1, which are equal in Python, are different labels."""
    return isinstance(label, bool), label

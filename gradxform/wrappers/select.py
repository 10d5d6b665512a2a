"""Transforms on some of the parameters, or different ones on different parameters."""

import functools
from dataclasses import field
from typing import Any, NamedTuple

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
from gradxform.types import OptState, Params, PyTree, StaticMask, StaticTree, Updates
from gradxform.values import FrozenTree, as_node, is_function
from gradxform.wrappers.chosen import (
    Chosen,
    chosen_by_label,
    init_masked,
    keys_of,
    tell_masked,
    update_masked,
)

__all__ = [
    "masked",
    "multi_transform",
    "partition",
    "MaskedState",
    "MultiTransformState",
    "PartitionState",
]


def _check_structure(part: Any, updates: Updates, params: Params | None) -> None:
    if params is not None:
        align(part, updates, structure_of(updates), params, "the parameters have")


_IN_OR_OUT = keys_of((True, False))


@transform
class masked(Transform):
    """Run a transform on the parameters that a mask selects; other updates pass unchanged.

    The inner state does not have entries for parameters outside the mask.

    Of its own kind: it decides on which leaves the inner transform runs.

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

    def init(self, params):
        """Return the inner state for the parameters in the mask."""
        return init_masked(self, self.inner, self._chosen(params, params), params)

    def _chosen(self, updates: PyTree, params: PyTree | None) -> Chosen:
        tree, whole = (updates, False) if params is None else (params, True)
        entries = masks.entries_of(self, self.mask, tree, whole=whole)
        return chosen_by_label(entries, _IN_OR_OUT, lambda path, x: None)[0]

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the inner state."""
        return [(("inner_state",), self.inner)]

    def params_inside(self, place: Path, params: Params) -> Params:
        """Return the parameters in the mask."""
        return self._chosen(params, params).of(self, params, "the parameters have")

    def moved(self, state, old, new):
        """Return the state after something else has moved the parameters."""
        return tell_masked(self, self.inner, self._chosen(new, new), state, old, new)

    def update(self, updates, state, params=None, **extra):
        """Update the leaves that the mask selects."""
        check_state(self, state, MaskedState)
        _check_structure(self, updates, params)
        chosen = self._chosen(updates, params)
        return update_masked(self, self.inner, chosen, updates, state, params, extra)


class PartitionState(NamedTuple):
    """State of `partition`."""

    inner_states: Any  # a dict from each label to its transform's MaskedState


class _IsEntry(NamedTuple):
    """Tells what is one entry of a tree of labels: a hole, or a tuple that is a label.

    It is remembered with the labels, and holds no transform: a number of that may be traced.
    """

    keys: tuple[tuple[bool, Any], ...]

    def __call__(self, x: Any) -> bool:
        return is_update_leaf(x) or (type(x) is tuple and any(x == k for _, k in self.keys))


@transform
class partition(Transform):
    """Run a different transform on each group of parameters.

    A label is anything that hashes: a string, a number, an enum, a tuple, None. True and 1 are
    different labels. The state is a dict by label, as in Optax. If the labels cannot be sorted it
    is an OrderedDict, because JAX sorts the keys of a dict.

    Of its own kind: it decides which transform runs on which leaves.

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
        for label, tx in self._pairs:
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
            if keys_of([label])[0] not in self._keys:
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

    @property
    def _is_entry(self) -> "_IsEntry":
        return _IsEntry(self._keys)

    @functools.cached_property
    def _pairs(self) -> list[tuple[Any, Any]]:
        """The labels, each with its transform."""
        return list(self.transforms.unfreeze().items())

    @functools.cached_property
    def _keys(self) -> tuple[tuple[bool, Any], ...]:
        return keys_of(label for label, _ in self._pairs)

    def _refuse_label(self, label: Any, subject: str) -> None:
        labels = [label for label, _ in self._pairs]
        raise ValueError(
            f"{name_of(self)}: {subject} does not have a transform; there are "
            f"{', '.join(map(repr, labels))}."
            f"{did_you_mean(label, [k for k in labels if isinstance(k, str)])}"
        )

    @property
    def locality(self) -> str:
        """The farthest locality of the transforms."""
        return farthest([tx for _, tx in self._pairs])

    def _groups(self, updates: PyTree, params: PyTree | None) -> list[tuple[Any, Any, Chosen]]:
        """Return every label with its transform and the parameters that have it."""
        tree, whole = (updates, False) if params is None else (params, True)
        entries = masks.entries_of(self, self.param_labels, tree, object, self._is_entry, whole)

        def refuse(path: Path, label: Any) -> None:
            subject = f"the parameter {path_str(path)} has the label {shown(label)}, which"
            self._refuse_label(label, subject)

        chosen = chosen_by_label(entries, self._keys, refuse)
        return [(*pair, x) for pair, x in zip(self._pairs, chosen, strict=True)]

    def init(self, params):
        """Return the states of all transforms, each for its own parameters."""
        states = {
            label: init_masked(self, tx, chosen, params)
            for label, tx, chosen in self._groups(params, params)
        }
        return PartitionState(as_node(states))

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the places of the groups' states, by label."""
        return [(("inner_states", str(label), "inner_state"), tx) for label, tx in self._pairs]

    def params_inside(self, place: Path, params: Params) -> Params:
        """Return the parameters of a group."""
        groups = self._groups(params, params)
        (chosen,) = (chosen for label, _, chosen in groups if str(label) == place[1])
        return chosen.of(self, params, "the parameters have")

    def moved(self, state, old, new):
        """Return the states after something else has moved the parameters."""
        states = {
            label: tell_masked(self, tx, chosen, state.inner_states[label], old, new)
            for label, tx, chosen in self._groups(new, new)
        }
        return state._replace(inner_states=as_node(states))

    def update(self, updates, state, params=None, **extra):
        """Update every group with its own transform."""
        inner_states, states = self._inner_states(updates, state, params), {}
        for label, tx, chosen in self._groups(updates, params):
            updates, states[label] = update_masked(
                self, tx, chosen, updates, inner_states[label], params, extra
            )
        return updates, state._replace(inner_states=as_node(states))

    def update_params(self, updates, state, params, **extra):
        """Return the parameters after the updates of all groups."""
        inner_states, states, new = self._inner_states(updates, state, params), {}, params
        for label, tx, chosen in self._groups(updates, params):
            new, states[label] = update_masked(
                self, tx, chosen, updates, inner_states[label], params, extra, new
            )
        return new, state._replace(inner_states=as_node(states))

    def _inner_states(self, updates: PyTree, state: Any, params: PyTree) -> Any:
        """Return the states of the groups, one for each."""
        check_state(self, state, PartitionState)
        _check_structure(self, updates, params)
        inner_states = state.inner_states
        if {*keys_of(inner_states)} != {*self._keys}:
            raise ValueError(
                f"{name_of(self)}: the transforms are {[label for label, _ in self._pairs]!r}, "
                f"the state has {list(inner_states)!r}. Was this state made by another "
                "partition's init?"
            )
        return inner_states


multi_transform = partition  # Optax's older name
MultiTransformState = PartitionState

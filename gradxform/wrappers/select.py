"""Running transforms on some of the parameters, or different ones on different parameters."""

from dataclasses import field
from typing import Any, NamedTuple

import jax

from gradxform import masks, trees
from gradxform.base import Transform, call_update, check_transform, farthest, locality_of, transform
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.masks import MaskedState
from gradxform.running import check_state
from gradxform.types import MaskedNode, PyTree, StaticTree
from gradxform.values import FrozenTree


def _keep(tree: PyTree, mask: PyTree, part: Any, what: str) -> PyTree:
    """`tree` with a MaskedNode where `mask`, a tree of booleans, is False."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=trees.is_leaf)
    flags = _flags(tree, mask, part, what)
    kept = [
        leaf if trees.is_hole(leaf) or flag else MaskedNode()
        for leaf, flag in zip(leaves, flags, strict=True)
    ]
    return jax.tree.unflatten(treedef, kept)


def _flags(tree: PyTree, mask: PyTree, part: Any, what: str) -> list[bool]:
    found = dict(trees.with_names(mask))
    out = []
    for path, leaf in trees.with_names(tree):
        flag = found.get(path)
        if flag is None and not trees.is_hole(leaf):
            raise ValueError(
                f"{name_of(part)}: {what} a leaf {trees.said(path)} for which the mask has no "
                "entry."
            )
        out.append(flag is True)
    return out


def _merge(new: PyTree, old: PyTree) -> PyTree:
    """The leaves of `new` where it has one, of `old` elsewhere."""
    flat, treedef = jax.tree.flatten(old, is_leaf=trees.is_leaf)
    fresh = jax.tree.leaves(new, is_leaf=trees.is_leaf)
    merged = [o if trees.is_hole(n) else n for o, n in zip(flat, fresh, strict=True)]
    return jax.tree.unflatten(treedef, merged)


def _check_structure(part: Any, updates: PyTree, params: PyTree) -> None:
    if params is not None:
        trees.align(part, updates, trees.structure(updates), params, "the parameters have")


def _run_masked(part, tx, mask, updates, state, params, extra, same_extra):
    """Update with `tx` on the leaves that `mask` selects; pass the others through."""
    if same_extra:
        like = trees.structure(updates)
        extra = {
            k: _keep(v, mask, part, f"{k} has") if trees.structure(v) == like else v
            for k, v in extra.items()
        }
    inner_params = params
    if params is not None:
        inner_params = _keep(params, mask, part, "the parameters have")
    inner_updates = _keep(updates, mask, part, "the updates have")
    new, inner_state = call_update(tx, inner_updates, state.inner_state, inner_params, extra)
    return _merge(new, updates), MaskedState(inner_state)


@transform
class masked(Transform):
    """Run a transform on the parameters that a mask selects; other updates pass unchanged.

    The inner state holds nothing for parameters outside the mask.

    Args:
      inner: the transform.
      mask: a mask such as `ndim_at_least(2)` or `path_matches("kernel$")`, a tree of booleans that
        may be a prefix of the parameters, or a function of the parameters that returns one.
      mask_compatible_extra_args: whether extra arguments that have the structure of the updates
        are masked too. Keyword-only.

    Raises:
      ValueError: if an entry of a mask tree matches no parameter, or a parameter has no entry.
    """

    inner: Any
    mask: StaticTree
    mask_compatible_extra_args: bool = field(default=False, kw_only=True)

    handles_rows = True

    def __post_init__(self):
        check_transform(self, self.inner, "inner")
        masks.check_mask(self, self.mask)

    @property
    def locality(self) -> str:
        """That of what is wrapped."""
        return locality_of(self.inner)

    def init(self, params):
        """Return the inner state for the parameters in the mask."""
        mask = masks.resolve(self, self.mask, params)
        kept = _keep(params, mask, self, "the parameters have")
        return MaskedState(inner_state=self.inner.init(kept))

    def update(self, updates, state, params=None, **extra):
        """Update what the mask selects."""
        check_state(self, state, MaskedState)
        _check_structure(self, updates, params)
        mask = masks.resolve(self, self.mask, updates if params is None else params)
        same = self.mask_compatible_extra_args
        return _run_masked(self, self.inner, mask, updates, state, params, extra, same)


def _known_labels(labels: Any) -> list[Any]:
    """The labels that can be seen before any parameters are."""
    if isinstance(labels, FrozenTree):
        return list(labels.leaves)
    return [label for label, _ in labels.pairs] if isinstance(labels, masks.label_by) else []


class PartitionState(NamedTuple):
    """State of `partition`."""

    inner_states: Any  # a dict: for each label the MaskedState of its transform


@transform
class partition(Transform):
    """Run a transform of its own on every group of parameters.

    Args:
      transforms: a dict from labels to transforms.
      param_labels: labels by mask, as `label_by(("matrix", ndim_at_least(2)), ("rest", True))`, a
        tree of labels that may be a prefix of the parameters, or a function of the parameters that
        returns one.
      mask_compatible_extra_args: whether extra arguments that have the structure of the updates
        are split too. Keyword-only.

    Raises:
      ValueError: if a parameter's label has no transform.
    """

    transforms: StaticTree
    param_labels: StaticTree
    mask_compatible_extra_args: bool = field(default=False, kw_only=True)

    handles_rows = True

    def __post_init__(self):
        given = self.transforms
        if not isinstance(given, FrozenTree) or not isinstance(given.unfreeze(), dict):
            raise TypeError(
                f"{name_of(self)}: transforms must be a dict from labels to transforms, "
                f"got {shown(given)}."
            )
        for label, tx in given.unfreeze().items():
            check_transform(self, tx, f"the transform of {label!r}")
        labels = self.param_labels
        good = isinstance(labels, FrozenTree) or callable(labels)
        if not good or isinstance(labels, type | masks.Mask):
            raise TypeError(
                f"{name_of(self)}: param_labels must be a tree of labels or a function of the "
                f"parameters, got {shown(labels)}."
            )
        for label in _known_labels(labels):
            if not trees.is_hole(label) and label not in given.unfreeze():
                raise ValueError(
                    f"{name_of(self)}: the label {shown(label)} has no transform; there are "
                    f"{', '.join(repr(k) for k in given.unfreeze())}."
                    f"{did_you_mean(label, [k for k in given.unfreeze() if isinstance(k, str)])}"
                )

    @property
    def locality(self) -> str:
        """The farthest locality of the transforms."""
        return farthest(list(self.transforms.unfreeze().values()))

    def _labels(self, tree: PyTree) -> PyTree:
        labels = masks.resolve(self, self.param_labels, tree, kind=object)
        known = self.transforms.unfreeze()
        for path, label in trees.with_names(labels):
            if not trees.is_hole(label) and label not in known:
                listed = ", ".join(repr(k) for k in known)
                raise ValueError(
                    f"{name_of(self)}: the parameter {trees.said(path)} has the label "
                    f"{shown(label)}, which has no transform; there are {listed}."
                    f"{did_you_mean(label, [k for k in known if isinstance(k, str)])}"
                )
        return labels

    def init(self, params):
        """Return the states of all transforms, each for its own parameters."""
        labels = self._labels(params)
        return PartitionState(
            {
                label: MaskedState(
                    tx.init(_keep(params, _has(labels, label), self, "the parameters have"))
                )
                for label, tx in self.transforms.unfreeze().items()
            }
        )

    def update(self, updates, state, params=None, **extra):
        """Update every group with its own transform."""
        check_state(self, state, PartitionState)
        _check_structure(self, updates, params)
        labels = self._labels(updates if params is None else params)
        known = list(self.transforms.unfreeze())
        if sorted(map(repr, state.inner_states)) != sorted(map(repr, known)):
            raise ValueError(
                f"{name_of(self)}: the transforms are {known!r}, the state has "
                f"{list(state.inner_states)!r}. Was this state made by another partition's init?"
            )
        states = {}
        same = self.mask_compatible_extra_args
        for label, tx in self.transforms.unfreeze().items():
            updates, states[label] = _run_masked(
                self,
                tx,
                _has(labels, label),
                updates,
                state.inner_states[label],
                params,
                extra,
                same,
            )
        return updates, PartitionState(states)


multi_transform = partition  # Optax's older name
MultiTransformState = PartitionState


def _has(labels: PyTree, label: Any) -> PyTree:
    return jax.tree.map(lambda x: x == label, labels)

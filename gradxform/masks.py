"""Masks as values: which leaves of the parameters a transform acts on.

A mask tests `(path, leaf)`, so that it works for every container (dict, FrozenDict, nnx State,
Equinox module) and before and after a partition. `&`, `|` and `~` combine masks.
"""

import abc
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gradxform import trees
from gradxform.errors import at_least, name_of, shown
from gradxform.registry import value
from gradxform.trees import said
from gradxform.types import PyTree
from gradxform.values import FrozenTree, Value


class MaskedState(NamedTuple):
    """State of what runs on the parameters that a mask selects."""

    inner_state: Any  # the inner state, for those parameters


class Mask(Value, abc.ABC):
    """A predicate on the leaves of the parameters."""

    never_schedule = True

    @abc.abstractmethod
    def test(self, path: tuple[str, ...], leaf: Any) -> bool:
        """Return whether the leaf at `path` (dict keys, attributes, indices as strings) is in."""

    def __call__(self, params: PyTree) -> PyTree:
        """Return the tree of booleans for `params`, as Optax's mask functions do."""
        return trees.map_with_names(lambda path, leaf: bool(self.test(path, leaf)), params)

    def __and__(self, other: "Mask") -> "Mask":
        return all_of(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return any_of(self, other)

    def __invert__(self) -> "Mask":
        return none_of(self)


@value
class ndim_at_least(Mask):
    """Select the arrays with at least `n` dimensions: 2 for matrices, not biases and scales.

    Args:
      n: the number of dimensions, at least 0.
    """

    n: int

    def __post_init__(self):
        at_least(self, 0, "n")

    def test(self, path, leaf):
        """Return whether the leaf has that many dimensions."""
        return len(trees.shape_of(leaf)) >= self.n


@value
class path_matches(Mask):
    """Select the leaves in whose path a regular expression is found.

    Args:
      pattern: searched (`re.search`) in the path written `encoder/layer_0/kernel`; `"kernel$"`
        selects the leaves that are called so, `"^encoder/"` those of one module.
    """

    pattern: str

    def __post_init__(self):
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"path_matches: pattern must be a regular expression, got {self.pattern!r}: "
                f"{error}."
            ) from None

    def test(self, path, leaf):
        """Return whether the pattern is found in the path."""
        return re.search(self.pattern, "/".join(path)) is not None


class _Combination(Mask):
    variadic = "masks"
    masks: tuple[Any, ...]

    def __post_init__(self):
        for mask in self.masks:
            if not isinstance(mask, Mask):
                raise TypeError(
                    f"{name_of(self)}: masks are combined with masks such as ndim_at_least(2), "
                    f"got {shown(mask)}."
                )


@value
class all_of(_Combination):
    """Select the leaves that every one of the masks selects; written `a & b`."""

    masks: tuple[Any, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *masks: Any): ...

    def test(self, path, leaf):
        """Return whether all masks select the leaf."""
        return all(mask.test(path, leaf) for mask in self.masks)


@value
class any_of(_Combination):
    """Select the leaves that at least one of the masks selects; written `a | b`."""

    masks: tuple[Any, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *masks: Any): ...

    def test(self, path, leaf):
        """Return whether any mask selects the leaf."""
        return any(mask.test(path, leaf) for mask in self.masks)


@value
class none_of(_Combination):
    """Select the leaves that none of the masks selects; written `~a`."""

    masks: tuple[Any, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *masks: Any): ...

    def test(self, path, leaf):
        """Return whether no mask selects the leaf."""
        return not any(mask.test(path, leaf) for mask in self.masks)


@value
class label_by(Value):
    """Label the parameters by masks, for `partition`.

    Args:
      *pairs: pairs `(label, mask)`; the first whose mask selects a parameter gives its label. A
        mask of True selects all that is left.

    Raises:
      ValueError: when called, if no mask selects a parameter.
    """

    pairs: tuple[Any, ...] = ()

    variadic = "pairs"

    if TYPE_CHECKING:

        def __init__(self, *pairs: Any): ...

    never_schedule = True

    def __post_init__(self):
        for i, pair in enumerate(self.pairs):
            good = isinstance(pair, tuple | list) and len(pair) == 2
            if not good or not isinstance(pair[1], Mask | bool):
                raise TypeError(
                    f"label_by: argument {i} must be a pair (label, mask), got {shown(pair)}."
                )
        object.__setattr__(self, "pairs", tuple((label, mask) for label, mask in self.pairs))

    def __call__(self, params: PyTree) -> PyTree:
        """Return the tree of labels."""
        return trees.map_with_names(self._label, params)

    def _label(self, path: tuple[str, ...], leaf: Any) -> Any:
        for label, mask in self.pairs:
            if mask is True or (mask and mask.test(path, leaf)):
                return label
        raise ValueError(
            f"label_by: no mask selects the parameter {said(path)}; end with (label, True)."
        )


def resolve(part: Any, mask: Any, tree: PyTree, kind: type = bool) -> PyTree:
    """Return the tree of booleans (or labels) that `mask` means for `tree`.

    Args:
      part: the transform that asks, for messages.
      mask: a Mask, a bool, a function of the parameters, or a FrozenTree that may be a prefix of
        `tree`, matched by path.
      tree: the parameters (or the updates, where no parameters are given).
      kind: bool for masks, object for labels.

    Raises:
      ValueError: if an entry of a mask tree matches no leaf, or a leaf has no entry.
    """
    if not isinstance(mask, Mask) and callable(mask):
        mask = FrozenTree(mask(tree))
    if isinstance(mask, Mask):
        return mask(tree)
    if not isinstance(mask, FrozenTree):
        return trees.map_updates(lambda _: mask, tree)
    found = dict(trees.with_names(mask.unfreeze()))
    used: set[tuple[str, ...]] = set()

    def look_up(path, leaf):
        for end in range(len(path), -1, -1):
            if path[:end] in found:
                used.add(path[:end])
                entry = found[path[:end]]
                if kind is bool and not isinstance(entry, bool):
                    raise TypeError(
                        f"{name_of(part)}: the mask's entry at {said(path[:end])} must be True "
                        f"or False, got {shown(entry)}."
                    )
                return entry
        raise ValueError(f"{name_of(part)}: no entry for the parameter {said(path)}.")

    out = trees.map_with_names(look_up, tree)
    held = {path for path, leaf in trees.with_names(tree) if trees.is_hole(leaf)}
    for path, entry in found.items():
        if path not in used and not trees.is_hole(entry) and not _covers_hole(path, held):
            raise ValueError(
                f"{name_of(part)}: the entry {said(path)}: {shown(entry)} matches no parameter."
            )
    return out


def _covers_hole(path: tuple[str, ...], holes: set[tuple[str, ...]]) -> bool:
    return any(h[: len(path)] == path or path[: len(h)] == h for h in holes)


def check_mask(part: Any, mask: Any) -> None:
    """Require a mask, a tree of booleans or a function of the parameters."""
    good = isinstance(mask, bool | FrozenTree | Mask) or callable(mask)
    if not good or isinstance(mask, type | label_by):
        raise TypeError(
            f"{name_of(part)}: mask must be a mask such as ndim_at_least(2), a tree of booleans or "
            f"a function of the parameters, got {shown(mask)}."
        )
    if isinstance(mask, FrozenTree):
        for leaf in mask.leaves:
            if not isinstance(leaf, bool) and leaf is not None:
                raise TypeError(
                    f"{name_of(part)}: the mask's entries must be True or False, got {shown(leaf)}."
                )

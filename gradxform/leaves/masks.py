"""Masks as values: which leaves of the parameters a transform acts on.

A mask tests `(path, leaf)`, so that it works for every container (dict, FrozenDict, nnx State,
Equinox module) and before and after a partition. `&`, `|` and `~` combine masks.

A name in a mask must exist: a `path_matches` that matches no path, and an entry of a mask tree that
matches no leaf, are errors. A path that another mask or partition hides still counts as matched. A
mask that tests the leaves, such as `ndim_at_least`, may select none.
"""

import abc
import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import jax

from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves.trees import (
    Path,
    flatten_updates,
    flatten_with_names,
    is_hole,
    is_update_leaf,
    path_str,
    shape_of,
    vacancies,
    with_paths,
)
from gradxform.types import NonNegativeInt, PyTree
from gradxform.values import FrozenTree, Value, is_function
from gradxform.values.content import parts_of
from gradxform.values.fields import value
from gradxform.values.memory import Memory

T = TypeVar("T")


class MaskedState(NamedTuple):
    """State of a transform that runs on the parameters that a mask selects."""

    inner_state: Any  # the inner state, for those parameters


class Mask(Value, abc.ABC):
    """A predicate on the leaves of the parameters."""

    never_schedule = True

    @abc.abstractmethod
    def test(self, path: Path, leaf: Any) -> bool:
        """Return whether the mask selects the leaf at `path` (keys and indices as strings)."""

    def __call__(self, params: PyTree) -> PyTree:
        """Return the tree of booleans for `params`, as Optax's mask functions do."""
        return resolve(self, self, params)

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

    n: NonNegativeInt

    def test(self, path: Path, leaf: Any) -> bool:
        """Return whether the leaf has at least `n` dimensions."""
        return len(shape_of(leaf)) >= self.n


@value
class path_matches(Mask):
    """Select the leaves by a regular expression for their paths.

    Args:
      pattern: searched (`re.search`) in paths such as `encoder/layer_0/kernel`; `"kernel$"` selects
        the leaves with that name, `"^encoder/"` those of one module.
      optional: whether it may match nothing, as when models share a configuration. Keyword-only.

    Raises:
      ValueError: on the first parameters, if the pattern does not match any of their paths.
    """

    pattern: str
    optional: bool = field(default=False, kw_only=True)

    # What to do about a pattern that matches nothing.
    remedy: ClassVar[str] = "Where it may match none, say optional=True."

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"{name_of(self)}: pattern must be a regular expression, got {self.pattern!r}: "
                f"{error}."
            ) from None

    def test(self, path: Path, leaf: Any) -> bool:
        """Return whether the pattern matches somewhere in the path."""
        return re.search(self.pattern, "/".join(path)) is not None


class _Combination(Mask):
    """Base of the masks that combine masks."""

    variadic = "masks"
    masks: tuple[Any, ...]

    def __post_init__(self) -> None:
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

        def __init__(self, *masks: Any) -> None: ...

    def test(self, path: Path, leaf: Any) -> bool:
        """Return whether all masks select the leaf."""
        return all(mask.test(path, leaf) for mask in self.masks)


@value
class any_of(_Combination):
    """Select the leaves that at least one of the masks selects; written `a | b`."""

    masks: tuple[Any, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *masks: Any) -> None: ...

    def test(self, path: Path, leaf: Any) -> bool:
        """Return whether any mask selects the leaf."""
        return any(mask.test(path, leaf) for mask in self.masks)


@value
class none_of(_Combination):
    """Select the leaves that none of the masks selects; written `~a`."""

    masks: tuple[Any, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *masks: Any) -> None: ...

    def test(self, path: Path, leaf: Any) -> bool:
        """Return whether no mask selects the leaf."""
        return not any(mask.test(path, leaf) for mask in self.masks)


@value
class label_by(Value):
    """Label the parameters by masks, for `partition`.

    Args:
      *pairs: pairs `(label, mask)`; a parameter gets the label of the first mask that selects it. A
        mask of True selects all that are left.

    Raises:
      ValueError: on the first parameters, if one is not selected by any mask, or the pattern of a
        mask does not match any path.
    """

    pairs: tuple[Any, ...] = ()

    variadic = "pairs"

    if TYPE_CHECKING:

        def __init__(self, *pairs: Any) -> None: ...

    never_schedule = True
    never_mask = True

    def __post_init__(self) -> None:
        for i, pair in enumerate(self.pairs):
            is_pair = isinstance(pair, tuple | list) and len(pair) == 2
            if not is_pair or not isinstance(pair[1], Mask | bool):
                raise TypeError(
                    f"label_by: argument {i} must be a pair (label, mask), got {shown(pair)}."
                )
        object.__setattr__(self, "pairs", tuple((label, mask) for label, mask in self.pairs))

    def __call__(self, params: PyTree) -> PyTree:
        """Return the tree of labels."""
        return resolve(self, self, params, kind=object)

    def label(self, path: Path, leaf: Any) -> Any:
        """Return the label of the leaf at `path`."""
        for label, mask in self.pairs:
            if mask is True or (mask and mask.test(path, leaf)):
                return label
        raise ValueError(
            f"label_by: no mask selects the parameter {path_str(path)}; end with (label, True)."
        )


def resolve(part: Any, mask: Any, tree: PyTree, kind: type = bool) -> PyTree:
    """Return the tree of booleans (or labels) to which `mask` evaluates for `tree`.

    Args:
      part: the transform with the mask, for messages.
      mask: a Mask, a bool, a function of the parameters, or a FrozenTree, of all or of branches.
      tree: the parameters.
      kind: bool for masks, object for labels.

    Raises:
      ValueError: if a pattern or an entry of a mask tree matches nothing, or a leaf lacks an entry.
    """
    entries = entries_of(part, mask, tree, kind)
    return jax.tree.unflatten(entries.treedef, entries.in_order)


class Entries(NamedTuple):
    """What a mask or labels say of a tree; nobody changes it but for `made`."""

    treedef: Any  # of the tree, in which holes are leaves
    in_order: list[Any]  # for each leaf its entry; a hole stays
    of_leaves: Mapping[Path, Any]  # by path, without holes
    of_branches: Mapping[Path, Any]  # subtrees for which a mask tree has a single entry
    made: dict[Any, Any]  # what others have made of them

    def once(self, what: Any, make: Callable[[], T]) -> T:
        """Return `make()`, which is called once for these entries, and remembered as `what`."""
        if what not in self.made:
            self.made[what] = make()
        return self.made[what]


# All that is known of masks, by (mask, structure, shapes).
_KNOWN: Memory[Any, Entries] = Memory()


def entries_of(
    part: Any,
    mask: Any,
    tree: PyTree,
    kind: type = bool,
    is_entry: Callable[[Any], bool] = is_update_leaf,
    whole: bool = True,
) -> Entries:
    """Return what a mask or labels say of a tree; see `resolve`.

    They are resolved once for each structure with its shapes, and for the paths that are hidden. A
    function is asked every time, and what it answers is such a mask. A mask of another library is
    asked every time, too: it may look at anything.

    Args:
      part: the transform with the mask, for messages.
      mask: as in `resolve`.
      tree: the parameters, or the updates without them.
      kind: as in `resolve`.
      is_entry: tells what is one entry of a tree of labels.
      whole: whether every pattern must match. Updates may have one hole for a whole branch.
    """
    mask = _answer(mask, tree)
    leaves, structure = flatten_updates(tree)
    # For a leaf without a shape, such as a hole or a number, the type tells as much.
    shapes = tuple([getattr(x, "shape", type(x)) for x in leaves])
    key = type(mask), mask, kind, is_entry, whole, _HIDDEN.get(), structure, shapes
    entries = _KNOWN.get(key)
    if entries is None:
        named, treedef = flatten_with_names(tree, is_update_leaf)
        vacant = vacancies(tree)
        in_order, branches = _evaluated(part, mask, named, vacant, kind, is_entry, whole)
        pairs = zip(named, in_order, strict=True)
        of_leaves = {path: entry for (path, leaf), entry in pairs if not is_hole(leaf)}
        branches = {path: x for path, x in branches.items() if path not in of_leaves}
        entries = Entries(treedef, in_order, of_leaves, branches, {})
        if _tells_by_shape(mask):
            _KNOWN.keep(key, entries)
    return entries


def _answer(mask: Any, tree: PyTree) -> Any:
    """Return a mask or labels; what a function of the parameters answers, as a FrozenTree."""
    is_asked = callable(mask) and not isinstance(mask, Mask | label_by) and is_function(mask)
    return FrozenTree(mask(tree)) if is_asked else mask


def _tells_by_shape(mask: Any) -> bool:
    """Whether a mask, labels or a tree of them are known to tell by paths and shapes only."""
    if isinstance(mask, label_by):
        return all(_tells_by_shape(x) for _, x in mask.pairs)
    if isinstance(mask, all_of | any_of | none_of):
        return all(map(_tells_by_shape, mask.masks))
    return not isinstance(mask, Mask) or type(mask) in (ndim_at_least, path_matches)


def _evaluated(
    part: Any,
    mask: Any,
    named: Sequence[tuple[Path, Any]],
    vacant: Sequence[tuple[Path, bool]],
    kind: type,
    is_entry: Callable[[Any], bool],
    whole: bool,
) -> tuple[list[Any], dict[Path, Any]]:
    """Return the entries of the leaves, which `named` lists, and those in a mask tree by path."""
    if isinstance(mask, Mask | label_by):
        if whole:
            _check_patterns(part, mask, named)
        if isinstance(mask, label_by):
            return [x if is_hole(x) else mask.label(path, x) for path, x in named], {}
        return [x if is_hole(x) else bool(mask.test(path, x)) for path, x in named], {}
    if not isinstance(mask, FrozenTree):
        mask = FrozenTree(mask)  # one entry, at the root
    entries = dict(with_paths(mask.unfreeze(), is_entry))
    used: set[Path] = set()

    def look_up(path: Path, leaf: Any) -> Any:
        if is_hole(leaf):
            return leaf
        for end in range(len(path), -1, -1):  # the nearest entry above a leaf is its own
            prefix = path[:end]
            if prefix in entries:
                used.add(prefix)
                entry = entries[prefix]
                if kind is bool and not isinstance(entry, bool):
                    where = f"at {path_str(prefix)}" if prefix else path_str(prefix)
                    raise TypeError(
                        f"{name_of(part)}: the mask's entry {where} must be True or False, got "
                        f"{shown(entry)}."
                    )
                return entry
        raise ValueError(f"{name_of(part)}: no entry for the parameter {path_str(path)}.")

    of_leaves = [look_up(path, leaf) for path, leaf in named]
    for path, entry in entries.items():
        if path not in used and not is_hole(entry) and not _is_vacant(path, vacant):
            raise ValueError(
                f"{name_of(part)}: the entry {path_str(path)}: {shown(entry)} matches no parameter."
            )
    return of_leaves, {path: x for path, x in entries.items() if not is_hole(x)}


def _is_vacant(path: Path, vacant: Sequence[tuple[Path, bool]]) -> bool:
    """Whether a tree does not have an array at a path, where `vacancies` are."""
    return any(p[: len(path)] == path or (hole and path[: len(p)] == p) for p, hole in vacant)


def _patterns(x: Any) -> Iterator[path_matches]:
    """Yield every `path_matches` in a mask, or in pairs of labels and masks."""
    if isinstance(x, path_matches):
        yield x
    else:
        for part in parts_of(x) or ():
            yield from _patterns(part)


def check_patterns(part: Any, mask: Any, params: PyTree) -> None:
    """Require every pattern in a mask to match the path of a parameter."""
    _check_patterns(part, mask, with_paths(params))


# The paths of parameters in branches that an outer mask leaves out as a whole.
_HIDDEN: contextvars.ContextVar[tuple[Path, ...]] = contextvars.ContextVar("hidden", default=())


def hiding(paths: Sequence[Path]) -> contextlib.AbstractContextManager[None]:
    """Let patterns in this context match these paths too, which are hidden from its masks."""
    return _hiding(paths) if paths else contextlib.nullcontext()


@contextlib.contextmanager
def _hiding(paths: Sequence[Path]) -> Iterator[None]:
    token = _HIDDEN.set((*_HIDDEN.get(), *paths))
    try:
        yield
    finally:
        _HIDDEN.reset(token)


def hidden_paths() -> tuple[Path, ...]:
    """Return the paths that are hidden in this context."""
    return _HIDDEN.get()


def _check_patterns(part: Any, mask: Any, named: Sequence[tuple[Path, Any]]) -> None:
    if all(x is None for _, x in named):  # nothing to match in a tree without parameters
        return
    paths = [path for path, _ in named] + [*hidden_paths()]
    for mask_part in _patterns(mask):
        if mask_part.optional or not paths or any(mask_part.test(path, None) for path in paths):
            continue
        pattern, some = mask_part.pattern, [repr("/".join(path)) for path in paths[:8]]
        listed = ", ".join(some + ["..."] * (len(paths) > 8))
        raise ValueError(
            f"{name_of(part)}: {name_of(mask_part)}({pattern!r}) matches none of the parameters "
            f"{listed}.{_nearest_to_pattern(pattern, paths)} {mask_part.remedy}"
        )


def _nearest_to_pattern(pattern: str, paths: Sequence[Path]) -> str:
    """Suggest pieces of the paths with as many names as the pattern."""
    for words in re.sub(r"[\\^$()?:]", "", pattern).strip("/").split("|"):
        n = words.count("/") + 1
        pieces = {"/".join(p[i : i + n]): None for p in paths for i in range(len(p) - n + 1)}
        hint = did_you_mean(words, pieces)
        if hint:
            return hint
    return ""

"""Which parameter a leaf of a state belongs to, and which of its dimensions the leaf keeps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from gradxform.distributed.averaging.exchange import Exchanging
from gradxform.distributed.shares.param_places import Parameter
from gradxform.distributed.shares.shared_leaves import is_per_device
from gradxform.distributed.wire.feedback import FeedbackState, LowRankState, is_nothing
from gradxform.leaves import Path, flatten_with_names
from gradxform.leaves.storage import StoredArray, is_stored
from gradxform.tree.params_in_state import map_params
from gradxform.types import Params, PyTree
from gradxform.wrappers.parts import all_parts

# For every dimension of a leaf, the matching dimension of the parameter.
Dims = list[int | None]


class Match(NamedTuple):
    """A leaf of a state, beside the parameter that it belongs to."""

    parameter: int | None  # the index of the parameter; None if the leaf belongs to all
    dims: Dims


def as_seen(state: PyTree) -> PyTree:
    """Return the shapes of a state's leaves as a rule sees them, whatever form keeps them."""
    return jax.tree.map(_slot_as_seen, state, is_leaf=is_stored)


def _slot_as_seen(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, StoredArray) else x


_NO_OWNER = -1


def match_leaves(
    tx: Any, params: Params, parameters: Sequence[Parameter], state: PyTree
) -> list[Match]:
    """Return for every leaf of the state which parameter, and which dimensions of it, it keeps.

    Args:
      tx: the transform.
      params: the parameters, or their shapes and dtypes.
      parameters: the same, as a list.
      state: what `tx.init(params)` returns, or the shapes; with leaves `as_seen`.
    """
    indices = jax.tree.unflatten(jax.tree.structure(params), list(range(len(parameters))))

    def owner_of(_: Any, index: Any) -> int:
        # One array for all parameters, as inside `flatten`, meets the whole tree of indices.
        return index if isinstance(index, int) else _NO_OWNER

    try:
        owners = map_params(tx, owner_of, state, indices, transform_non_params=lambda _: _NO_OWNER)
    except (TypeError, ValueError):  # `init` looks into its parameters: match leaves by path
        owners = jax.tree.map(lambda _: _NO_OWNER, state)
    named, _ = flatten_with_names(state)
    has_fragments = any(getattr(part, "fragments", 1) > 1 for part in all_parts(tx))
    out = []
    for (names, leaf), owner in zip(named, jax.tree.leaves(owners), strict=True):
        index, rest = (owner, ()) if owner != _NO_OWNER else _owner_of_slot(names, parameters)
        dims: Dims = [None] * len(leaf.shape)
        if index is not None:
            shape = parameters[index].shape
            if has_fragments and _OF_FRAGMENTS & set(names) and _is_slot_a_slice(shape, leaf.shape):
                dims = list(range(len(shape)))
            else:
                dims = _kept_slot_dims(shape, leaf.shape, names, rest)
        out.append(Match(index, dims))
    return out


# The fields of states that have an array for each fragment of a parameter.
_OF_FRAGMENTS = {"outer", "pending", "feedback"}


def _is_slot_a_slice(shape: tuple[int, ...], leaf_shape: tuple[int, ...]) -> bool:
    """Whether a leaf may be a slice of a parameter along one axis."""
    if len(leaf_shape) != len(shape):
        return False
    pairs = [(a, b) for a, b in zip(leaf_shape, shape, strict=True) if a != b]
    return len(pairs) < 2 and all(a < b for a, b in pairs)


def _owner_of_slot(names: Path, parameters: Sequence[Parameter]) -> tuple[int | None, Path]:
    """Return the parameter whose path the path of a leaf contains, and the names after it."""
    best: tuple[int, int, int] | None = None
    for i, parameter in enumerate(parameters):
        length = len(parameter.path)
        for start in range(len(names) - length + 1):
            if names[start : start + length] != parameter.path:
                continue
            if best is None or (length, start) >= best[:2]:
                best = (length, start, i)
    if best is None:
        return None, ()
    length, start, i = best
    return i, names[start + length :]


def _kept_slot_dims(
    shape: tuple[int, ...], leaf_shape: tuple[int, ...], names: Path, rest: Path
) -> Dims:
    """Return for each dimension of a leaf the one of its parameter that it keeps.

    Args:
      shape: the shape of the parameter.
      leaf_shape: the shape of the leaf.
      names: the path of the leaf.
      rest: the end of it, after the path of the parameter.
    """
    if leaf_shape == shape:
        return list(range(len(shape)))
    if len(leaf_shape) == len(shape) and all(
        size in (1, n) for size, n in zip(leaf_shape, shape, strict=True)
    ):  # sums that keep the axes summed over, with length 1
        return [
            d if size == n else None
            for d, (size, n) in enumerate(zip(leaf_shape, shape, strict=True))
        ]
    dims = _slot_dims_of_kth_array(shape, leaf_shape, rest)
    if dims is None:
        dims = _slot_dims_of_means(shape, leaf_shape, names)
    return _first_slot_dims(shape, leaf_shape) if dims is None else dims


def _slot_dims_of_kth_array(
    shape: tuple[int, ...], leaf_shape: tuple[int, ...], rest: tuple[str, ...]
) -> Dims | None:
    """Match the first dimension of the k-th of several arrays to the parameter's k-th."""
    k = int(rest[-1]) if rest and rest[-1].isdigit() else len(shape)
    if k >= len(shape) or not leaf_shape or leaf_shape[0] != shape[k]:
        return None
    return [k] + [None] * (len(leaf_shape) - 1)


def _slot_dims_of_means(
    shape: tuple[int, ...], leaf_shape: tuple[int, ...], names: Path
) -> Dims | None:
    """Match the means of Adafactor: `v_row` lacks the longest dimension, `v_col` the second.

    The last of several dimensions of one length counts as the longest, as in NumPy's stable sort.
    """
    by_length = sorted(range(len(shape)), key=lambda d: shape[d])
    for name, place in ("v_row", -1), ("v_col", -2):
        if name in names and len(shape) > 1:
            dims = [d for d in range(len(shape)) if d != by_length[place]]
            if tuple(shape[d] for d in dims) == leaf_shape:
                return list(dims)
    return None


def _first_slot_dims(shape: tuple[int, ...], leaf_shape: tuple[int, ...]) -> Dims:
    """Match each dimension of a leaf to the first of its length after the one matched before."""
    dims: Dims = []
    start = 0
    for size in leaf_shape:
        dim = next((d for d in range(start, len(shape)) if shape[d] == size), None)
        dims.append(dim)
        start = start if dim is None else dim + 1
    return dims


# ----------------------------------------------------------------------- what is still to be sent


def divide_feedback(
    tx: Any, apart: Sequence[str], state: PyTree, axes: list[list[tuple[str, ...]]]
) -> None:
    """Divide what a compression still has to send over the devices that send for a replica.

    These are the devices that send slices of a parameter, whose memory is flat, or those that have
    pieces of it. For a single entry, the memory is as long on each device as on all together.

    Args:
      tx: the transform.
      apart: the axes of replicas.
      state: its state.
      axes: for every leaf, and each of its dimensions, the axes that divide it; changed in place.
    """
    sending = [part for part in all_parts(tx) if isinstance(part, Exchanging) and part.compress]
    inner = dict.fromkeys(name for part in sending for name in part.divides)
    slicing = tuple(name for name in inner if name not in apart)
    rest = iter(axes)
    for x in jax.tree.leaves(state, is_leaf=_is_feedback_slot):
        if not _is_feedback_slot(x):
            next(rest)
            continue
        owns, others = ([(leaf, next(rest)) for leaf in jax.tree.leaves(tree)] for tree in x)
        for (leaf, entries), (_, other) in zip(owns, others, strict=True):
            if is_nothing(leaf):
                continue
            of_pieces = tuple(name for entry in entries for name in entry)
            if isinstance(x, LowRankState):  # (..., n, rank), of each device's own matrices
                other[:] = [*entries[:-2], entries[-2] + entries[-1], ()]
            elif slicing:
                entries[0] = other[0] = slicing
            else:
                other[0] = of_pieces


def _is_feedback_slot(x: Any) -> bool:
    return isinstance(x, FeedbackState | LowRankState)


def give_rows(state: PyTree, axes: list[list[tuple[str, ...]]], dividing: Sequence[str]) -> None:
    """Give every device a row of its own of what differs from device to device (`PerDevice`).

    Args:
      state: the state.
      axes: for every leaf, and each of its dimensions, the axes that divide it; changed in place.
      dividing: the axes over which the devices divide the state.
    """
    for entries, differs in zip(axes, is_per_device(state), strict=True):
        if differs:
            rest = [tuple(name for name in entry if name not in dividing) for entry in entries[1:]]
            entries[:] = [tuple(dividing), *rest]

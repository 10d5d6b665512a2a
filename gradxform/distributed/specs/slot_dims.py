"""Which parameter a leaf of a state belongs to, and which of its dimensions the leaf keeps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from gradxform.distributed.averaging.exchange import Exchanging
from gradxform.distributed.shares.param_places import Parameter
from gradxform.distributed.shares.shared_leaves import is_per_device
from gradxform.distributed.wire.feedback import FeedbackState, LowRankState, is_nothing
from gradxform.leaves.slot_dims import Dims, kept_dims
from gradxform.leaves.storage import StoredArray, is_stored
from gradxform.tree.owners import owners_of
from gradxform.types import Params, PyTree
from gradxform.wrappers.parts import all_parts


class Match(NamedTuple):
    """A leaf of a state, beside the parameter that it belongs to."""

    parameter: int | None  # the index of the parameter; None if the leaf belongs to all
    dims: Dims


def as_seen(state: PyTree) -> PyTree:
    """Return the shapes of a state's leaves as a rule sees them, whatever form keeps them."""
    return jax.tree.map(_slot_as_seen, state, is_leaf=is_stored)


def _slot_as_seen(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, StoredArray) else x


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
    has_fragments = any(getattr(part, "fragments", 1) > 1 for part in all_parts(tx))
    out = []
    owners = owners_of(tx, params, [parameter.path for parameter in parameters], state)
    for (index, names, rest), leaf in zip(owners, jax.tree.leaves(state), strict=True):
        dims: Dims = [None] * len(leaf.shape)
        if index is not None:
            dims = kept_dims(parameters[index].shape, leaf.shape, names, rest, has_fragments)
        out.append(Match(index, dims))
    return out


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

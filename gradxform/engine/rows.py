"""Row-sparse leaves: rules see only the rows that the gradient touches.

The touched rows of every slot and of the parameter are taken out, go through the rules as arrays of
their own, and are put back in place. Rules that look beyond a row are refused.
"""

from typing import Any

import jax

from gradxform._jax.versions import is_tracer
from gradxform.errors import name_of
from gradxform.leaves import flatten_updates, leaves_of, path_at, shape_of
from gradxform.leaves.row_sparse import RowSparse, coalesced, is_row_sparse
from gradxform.leaves.storage import fetched, is_stored, returned
from gradxform.types import Array, PyTree

ROWS_REMEDY = (
    "Put gradxform.sparse.densify() before it, or keep it from such leaves with "
    "gradxform.only_dense(...) or a mask."
)


def merged_rows(updates: PyTree) -> PyTree:
    """Return the updates with every RowSparse coalesced, unless its rows must stay apart."""
    leaves, treedef = flatten_updates(updates)
    if not any(map(is_row_sparse, leaves)):
        return updates
    return jax.tree.unflatten(treedef, [coalesced(g) for g in leaves])


def reach_of(rule: Any) -> str:
    """Return how far `rule` itself looks; `prepare` may look further."""
    return rule.rule_locality or rule.locality


def refuse_rows(part: Any, updates: PyTree, why: str, error: type[Exception] = TypeError) -> None:
    """Raise if any leaf is a RowSparse, for a part that cannot take one; `why` says why."""
    for i, g in enumerate(leaves_of(updates)):
        if isinstance(g, RowSparse):
            raise error(
                f"{name_of(part)}: {why}, so it cannot take the row-sparse gradient of "
                f"{path_at(updates, i)}. {ROWS_REMEDY}"
            )


def check_rule(rule: Any, updates: PyTree, active: list[bool] | None, has_slots: bool) -> None:
    """Require a rule that acts on a RowSparse to look no further than a row.

    A raw gradient, whose repeated rows stay apart, consists of its slices alone. A rule without
    slots may therefore look at all of them.
    """
    reach = reach_of(rule)
    why = None if rule.handles_rows else rule.why_no_rows
    if reach in ("entry", "row") and why is None:
        return
    for i, g in enumerate(leaves_of(updates)):
        if not isinstance(g, RowSparse) or not (active is None or active[i]):
            continue
        if why is not None:
            refuse_rows(rule, updates, why)
        if not (g.raw and reach == "array" and not has_slots):
            whole = "the whole tree" if reach == "tree" else "whole arrays"
            refuse_rows(rule, updates, f"looks at {whole}")


def check_shape(rule: Any, updates: PyTree, i: int, p: Any) -> None:
    """Require the RowSparse at leaf `i` to have its parameter's shape."""
    g = leaves_of(updates)[i]
    if p is not None and g.shape != shape_of(p):
        raise ValueError(
            f"{name_of(rule)}: the row-sparse gradient of {path_at(updates, i)} has shape "
            f"{g.shape}, the parameter has {shape_of(p)}."
        )


def check_slot(rule: Any, g: RowSparse, slot: Any, where: str) -> None:
    """Require a slot to have one row for every row of its parameter."""
    shape = shape_of(slot)
    if not shape or shape[0] != g.num_rows:
        raise ValueError(
            f"{name_of(rule)}: its slot of shape {shape} for {where} does not have one row for "
            f"each of the parameter's {g.num_rows}, so it cannot take a row-sparse gradient. "
            f"{ROWS_REMEDY}"
        )


def check_stored(rule: Any, g: RowSparse, slot: Any, where: str) -> None:
    """Require rows of a slot to be stored apart from each other, if it is not an array."""
    if not is_stored(slot):
        return
    if not slot.is_by_rows:
        why = f"is stored {slot.shared_by_rows}"
    elif len(slot.shape) < 2:
        why = "is stored in blocks of several entries of a vector, each of which is a row"
    elif g.raw:
        why = "is not stored as an array, so rows that repeat cannot stay apart in it"
    else:
        return
    raise TypeError(
        f"{name_of(rule)}: its slot for {where} {why}, so it cannot take a row-sparse gradient. "
        "Leave it out of what the wrapper stores, or put gradxform.sparse.densify() before."
    )


def take_rows(g: RowSparse, array: Any) -> Array:
    """Return the rows of `array`, as one compiled call where nothing is traced."""
    array = fetched(array)
    return (RowSparse.take if _are_traced(g, array) else _take_rows_compiled)(g, array)


def put_rows(g: RowSparse, array: Any, rows: Array) -> Array:
    """Return `array` with the rows replaced, as one compiled call where nothing is traced."""
    put = RowSparse.put if _are_traced(g, array) else _put_rows_compiled
    return returned(put(g, fetched(array), rows), array)


def _are_traced(g: RowSparse, array: Any) -> bool:
    return is_tracer(array) or is_tracer(g.values)


_take_rows_compiled = jax.jit(RowSparse.take)
_put_rows_compiled = jax.jit(RowSparse.put)

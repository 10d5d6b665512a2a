"""Which parameters each group of `param_groups` has, and what they cost, as `describe` shows it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Sharding

from gradxform.base import unwrapped
from gradxform.distributed.specs.state_sharding import state_sharding
from gradxform.errors import name_of
from gradxform.leaves import Path, is_hole, map_with_paths, with_paths
from gradxform.tables.text_table import Column, Line, Table, size
from gradxform.types import Params
from gradxform.values import is_live, printed
from gradxform.wrappers.compose import chain
from gradxform.wrappers.param_groups.groups import param_groups
from gradxform.wrappers.param_groups.param_group import OTHERS

# How many parameters of a group the table names.
NAMED = 4


class GroupRow(NamedTuple):
    """One group of a `param_groups`."""

    label: str  # of its rule; "all others" for the parameters without a rule
    parameters: tuple[str, ...]  # their paths
    optimizer: str | None  # its name, or those of the parts of a chain; None: frozen
    learning_rate: Any  # the multiplier: a number, a schedule, or text if live; None: frozen
    weight_decay: Any  # likewise; None: frozen, or no decay by param_groups
    param_bytes: int
    state_bytes: int  # of its slots; counts that groups share are not in it
    device_bytes: int | None  # of parameters and slots on each device; None: not known


def group_rows(
    tx: param_groups, params: Params, place_of: Mapping[Path, Sharding | None]
) -> tuple[GroupRow, ...]:
    """Return the groups in the order of their rules, then the parameters without a rule.

    Args:
      tx: the transform.
      params: the parameters that it gets, or their shapes and dtypes.
      place_of: the sharding of every parameter, by path; None where it is not known.
    """
    shapes = map_with_paths(
        lambda path, p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=place_of.get(path)), params
    )
    leaves = {path: p for path, p in with_paths(shapes) if not is_hole(p)}
    is_placed = bool(leaves) and all(p.sharding is not None for p in leaves.values())
    state = jax.eval_shape(tx.init, shapes)  # a table must not take the memory of a state
    places: list[Any] = [None] * len(jax.tree.leaves(state))
    if is_placed:
        places = jax.tree.leaves(
            state_sharding(tx, shapes), is_leaf=lambda x: isinstance(x, Sharding)
        )
    slots: dict[Path, list[tuple[Any, Any]]] = {path: [] for path in leaves}
    in_state = [(path, leaf) for path, leaf in with_paths(state) if not is_hole(leaf)]
    for (path, leaf), place in zip(in_state, places, strict=True):
        owner = _owner(path, leaves)
        if owner is not None:
            slots[owner].append((leaf, place))
    rule_of = tx.assigned(shapes, shapes).rule_of
    rows = []
    for i in [*range(len(tx.rules)), None]:
        members = [path for path in leaves if rule_of[path] == i]
        if i is None and not members:
            continue
        member_slots = [slot for path in members for slot in slots[path]]
        ours = [(leaves[path], leaves[path].sharding) for path in members]
        rows.append(
            GroupRow(
                *_settings(tx, i, tuple("/".join(path) for path in members)),
                param_bytes=sum(_bytes(p) for p, _ in ours),
                state_bytes=sum(_bytes(x) for x, _ in member_slots),
                device_bytes=sum(_bytes(x, at) for x, at in ours + member_slots)
                if is_placed
                else None,
            )
        )
    return tuple(rows)


def _settings(tx: param_groups, i: int | None, parameters: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the first fields of a row."""
    if i is None:
        decay = None if tx.weight_decay is None else 1.0
        return OTHERS, parameters, _transform_name(tx.inner), 1.0, decay
    rule = tx.rules[i]
    if rule.freeze:
        return rule.name, parameters, None, None, None
    inner = tx.inner if rule.inner is None else rule.inner
    has_decay = rule.inner is None and tx.weight_decay is not None
    decay = rule.weight_decay if has_decay else None
    return (
        rule.name,
        parameters,
        _transform_name(inner),
        _known_multiplier(rule.learning_rate),
        _known_multiplier(decay),
    )


def _known_multiplier(multiplier: Any) -> Any:
    """Return a multiplier; of one that only a run knows, which may be traced here, its text."""
    return printed(multiplier) if is_live(multiplier) else multiplier


def _transform_name(tx: Any) -> str:
    """Return the names of the parts of a chain, or the name of another transform."""
    parts = unwrapped(tx)
    return (
        ", ".join(map(_transform_name, parts.transforms))
        if isinstance(parts, chain)
        else name_of(parts)
    )


def _owner(path: Path, leaves: Mapping[Path, Any]) -> Path | None:
    """Return the longest path of a parameter that the path of a leaf of a state contains."""
    spans = [path[i:j] for i in range(len(path)) for j in range(len(path), i - 1, -1)]
    return max((span for span in spans if span in leaves), key=len, default=None)


def _bytes(x: Any, place: Sharding | None = None) -> int:
    shape = x.shape if place is None else place.shard_shape(x.shape)
    return jax.ShapeDtypeStruct(shape, x.dtype).size * x.dtype.itemsize


def group_table(rows: Sequence[GroupRow]) -> Table:
    """Return the groups as a table."""
    has_devices = all(row.device_bytes is not None for row in rows)
    columns = [
        Column("group", 28, hang=2),
        Column("parameters", 36),
        Column("optimizer", 28),
        Column("learning rate"),
        Column("weight decay"),
        Column("bytes", right=True),
        Column("state", right=True),
    ]
    lines = []
    for row in rows:
        more = len(row.parameters) - NAMED
        named = ", ".join(row.parameters[:NAMED]) + (f" and {more} more" if more > 0 else "")
        texts = [row.label, named, row.optimizer or "frozen"]
        texts += [_multiplier_cell(row.learning_rate), _multiplier_cell(row.weight_decay)]
        texts += [size(row.param_bytes), size(row.state_bytes)]
        texts += [size(row.device_bytes or 0)] if has_devices else []
        lines.append(Line([[text] for text in texts]))
    return Table(columns + ([Column("on each device", right=True)] if has_devices else []), lines)


def _multiplier_cell(multiplier: Any) -> str:
    if multiplier is None:
        return ""
    if callable(multiplier):
        return f"x {name_of(multiplier)}"
    return f"x {multiplier if isinstance(multiplier, str) else printed(multiplier)}"

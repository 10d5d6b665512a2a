"""The parts of a transform as rows, and the table of them that `describe` shows."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gradxform.tables.text_table import Column, Line, Table, size
from gradxform.values import printed


class SlotRow(NamedTuple):
    """One field of a part's own state, without the state of parts inside it."""

    name: str  # the field, such as "mu"; "" for a state that is one array
    dtypes: tuple[str, ...]  # the different dtypes of its arrays
    arrays: int  # how many arrays
    bytes: int
    device_bytes: int | None = None  # of these, on each device; None where shardings are not known


class Row(NamedTuple):
    """One part."""

    name: str  # the class, or for a foreign object the function that returned it
    depth: int  # 0 for the outermost
    label: str  # its name in a named_chain, its label in a partition, ...
    hyperparameters: dict[str, Any]  # all fields but the parts inside; {} for a foreign object
    defaults: frozenset[str]  # the names of hyperparameters at their default
    package: str  # where it comes from: "gradxform", "optax", ...
    foreign: bool  # whether it is of another library's kind, so that its parts are not known
    slots: tuple[SlotRow, ...]  # its own state; empty without parameters
    leaves: int | None  # how many parameters it sees; None without parameters
    bytes: int | None  # of its own state, without the state of parts inside


def part_table(
    rows: Sequence[Row], sized: bool, param_leaves: int | None, placed: bool = False
) -> Table:
    """Return the parts as a table.

    Args:
      rows: the parts.
      sized: whether the sizes of states are known.
      param_leaves: the number of parameters, if it is known.
      placed: whether it is known what each device holds.
    """
    columns = [Column("part", 40, hang=4), Column("hyperparameters", 48, hang=2)]
    if sized:
        columns += [Column("slot"), Column("dtype"), Column("bytes", right=True)]
    if placed:
        columns.append(Column("per device", right=True))
    lines = []
    outer_leaves: list[int | None] = []  # how many parameters the parts around a row see
    for row in rows:
        del outer_leaves[row.depth :]
        cells = _cells(row, outer_leaves[-1] if outer_leaves else param_leaves)
        lines.append(Line(cells[: len(columns)], row.depth))
        outer_leaves.append(row.leaves)
    return Table(columns, lines)


def _cells(row: Row, outer_leaves: int | None) -> list[list[str]]:
    """Return the cells of one part; the part around it sees `outer_leaves` parameters."""
    name = (f"{row.label}: " if row.label else "") + row.name
    if row.foreign:
        name += f" ({row.package})"
    if row.leaves is not None and row.leaves != outer_leaves:
        name += f" on {row.leaves} of {outer_leaves}"
    hyperparameters = "not known" if row.foreign else ", ".join(_hyperparameter_texts(row))
    return [
        [name],
        [hyperparameters],
        [slot.name for slot in row.slots],
        [", ".join(slot.dtypes) for slot in row.slots],
        [size(slot.bytes) for slot in row.slots],
        ["" if x.device_bytes is None else size(x.device_bytes) for x in row.slots],
    ]


def _hyperparameter_texts(row: Row) -> Iterator[str]:
    """Yield hyperparameters as in a call, without switches at their default, as in repr."""
    for name, x in row.hyperparameters.items():
        if not (name in row.defaults and (x is None or isinstance(x, bool))):
            yield f"{name}={printed(x)}"

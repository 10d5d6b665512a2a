"""The report of a migration: the fate of every slot of a state."""

import dataclasses
from typing import Any

import jax

from gradxform.leaves import Path
from gradxform.leaves.storage import is_stored
from gradxform.run_states.migration.layout import dotted_path

TAKEN, STEP, BEGUN, DROPPED = "taken", "the run's step", "begun anew", "dropped"
COMPUTED = "computed from the rest"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class MigratedSlot:
    """The fate of one slot (or of those of its arrays that had the same).

    Attributes:
      slot: the path of the slot: in the old state if it was dropped, else in the new one. Where
        the arrays of a slot have several fates, the path of one array.
      fate: "taken", "the run's step", "computed from the rest", "begun anew" or "dropped".
      source: the path of the slot of the old state from which it comes, if any.
      arrays: for each array the path below the slot, the shape and the dtype.
      cast_from: the dtypes that the arrays had, where they were cast to others.
      grown_from: the shapes that they had, where they have grown with their parameters.
    """

    slot: str
    fate: str
    source: str | None
    arrays: tuple[tuple[str, tuple[int, ...], str], ...]
    cast_from: tuple[str, ...] = ()
    grown_from: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return "  ".join(self.cells())

    def cells(self) -> tuple[str, str, str]:
        """Return the three cells of the table: the slot, where it comes from, its arrays."""
        origin = self.fate
        if self.source is not None:
            origin = self.source if self.fate == TAKEN else f"{self.fate}, {self.source}"
        if self.cast_from:
            origin += f" (was {', '.join(self.cast_from)})"
        if self.grown_from:
            origin += f" (from {', '.join(str(list(shape)) for shape in self.grown_from)})"
        shown = [f"{dtype}{list(shape)}" for _, shape, dtype in self.arrays[:3]]
        if len(self.arrays) > 3:
            shown.append(f"... ({len(self.arrays)} arrays)")
        slot = f"old {self.slot}" if self.fate == DROPPED else self.slot
        return slot, origin, ", ".join(shown)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class MigrationReport:
    """The report of `migrate_state`, slot by slot: a value that prints as a table.

    Attributes:
      slots: the slots of the new state in order, then those of the old one that were dropped.
    """

    slots: tuple[MigratedSlot, ...]

    def _with(self, *fates: str) -> tuple[MigratedSlot, ...]:
        return tuple(slot for slot in self.slots if slot.fate in fates)

    @property
    def taken(self) -> tuple[MigratedSlot, ...]:
        """The slots that come from the old state."""
        return self._with(TAKEN)

    @property
    def continued(self) -> tuple[MigratedSlot, ...]:
        """The counts that are new and began at the step of the run, and what follows from them."""
        return self._with(STEP, COMPUTED)

    @property
    def begun(self) -> tuple[MigratedSlot, ...]:
        """The slots that began anew, as `init` returns them."""
        return self._with(BEGUN)

    @property
    def dropped(self) -> tuple[MigratedSlot, ...]:
        """The slots of the old state that went nowhere."""
        return self._with(DROPPED)

    @property
    def is_identity(self) -> bool:
        """Whether every slot comes from the place where it is."""
        return all(
            s.fate == TAKEN and s.slot == s.source and not s.cast_from and not s.grown_from
            for s in self.slots
        )

    def __str__(self) -> str:
        rows = [("slot", "comes from", "arrays"), *(slot.cells() for slot in self.slots)]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(
            f"{slot:{widths[0]}}  {origin:{widths[1]}}  {arrays}".rstrip()
            for slot, origin, arrays in rows
        )


class Rows:
    """Collects the fates of arrays into those of slots."""

    def __init__(self) -> None:
        # For each slot of the new or of the old state its fates, each with the arrays.
        self.slots: dict[tuple[bool, Path], dict[Any, list[tuple[Path, Any, Any]]]] = {}

    def add(
        self,
        slot: Path,
        below: Path,
        fate: str,
        like: Any,
        source: Path | None = None,
        was: Any = None,
    ) -> None:
        """Note an array: its slot and the path below, its fate, shape and dtype, and its source."""
        fates = self.slots.setdefault((fate == DROPPED, slot), {})
        fates.setdefault((fate, source), []).append((below, like, was))

    def report(self) -> MigrationReport:
        """Return the report."""
        rows = []
        for (_, slot), fates in self.slots.items():
            for (fate, source), arrays in fates.items():
                if len(fates) == 1:
                    rows.append(_row(slot, fate, source, arrays))
                    continue
                for below, like, was in arrays:
                    origin = None if source is None else (*source, *below)
                    rows.append(_row((*slot, *below), fate, origin, [((), like, was)]))
        return MigrationReport(tuple(rows))


def _row(
    slot: Path, fate: str, source: Path | None, arrays: list[tuple[Path, Any, Any]]
) -> MigratedSlot:
    return MigratedSlot(
        dotted_path(slot),
        fate,
        None if source is None else dotted_path(source),
        tuple((".".join(below), tuple(x.shape), _migrated_dtype(x)) for below, x, _ in arrays),
        tuple(
            dict.fromkeys(
                _migrated_dtype(was)
                for _, x, was in arrays
                if was is not None and _migrated_dtype(was) != _migrated_dtype(x)
            )
        ),
        tuple(tuple(was.shape) for _, x, was in arrays if was is not None and was.shape != x.shape),
    )


def _migrated_dtype(x: Any) -> str:
    """Return the dtype of an array, and the form in which it is kept."""
    return f"{x.dtype} in {x.kept_as}" if is_stored(x) else str(x.dtype)

"""Changing the optimizer of a run: what its state becomes.

`layout` reads which arrays the state of a transform has, and whose they are; `sources` finds for
each array of the new state where it comes from; `report` says so; `migrate` does it.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.run_states.migration.migrate import migrate_state as migrate_state
    from gradxform.run_states.migration.report import (
        MigratedSlot as MigratedSlot,
        MigrationReport as MigrationReport,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)

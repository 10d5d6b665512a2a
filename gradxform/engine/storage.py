"""How a state stores a slot, as opposed to how a rule sees it.

The lift loads each slot for the rule and stores the new one. A rule sees a whole array, or the rows
of it that a row-sparse gradient touches. Either may be kept in another form, a `StoredArray`; the
rules of a leaf load that themselves, tile by tile.
"""

from typing import Any, NamedTuple

from gradxform.engine.rows import put_rows, take_rows
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.storage import StoredArray, fetched


class TouchedRows(NamedTuple):
    """A slot that a rule sees only in the rows that a gradient touches."""

    rows: RowSparse
    array: Any

    def load(self) -> Any:
        """Return the touched rows."""
        if isinstance(self.array, StoredArray):
            return self._map_rows(lambda x: take_rows(self.rows, x)).load()
        return take_rows(self.rows, self.array)

    def store(self, new: Any) -> Any:
        """Return the array with the touched rows replaced; the others stay as they are."""
        if isinstance(self.array, StoredArray):
            return self._put(self.array, new)
        return put_rows(self.rows, self.array, new)

    def _map_rows(self, take: Any) -> Any:
        """Return the array with only some of its rows."""
        stored: Any = self.array
        rows = [take(x) for x, _ in stored.by_rows()]
        return stored.with_rows(rows, (*rows[0].shape[:1], *stored.shape[1:]))

    def _put(self, stored: Any, new: Any) -> Any:
        fresh = fetched(stored).store(new)
        pairs = zip(stored.by_rows(), fresh.by_rows(), strict=True)
        rows = [put_rows(self.rows, x, some) for (x, _), (some, _) in pairs]
        return fresh.with_rows(rows, stored.shape)

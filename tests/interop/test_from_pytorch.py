"""What the guides say of optimizers in PyTorch: each row computes what was recorded there."""

import pytest

from docs.site.from_pytorch import tables
from docs.site.from_pytorch.row import Row

pytestmark = pytest.mark.numeric

ROWS = [
    (f"{page}: {row.theirs}", row)
    for page, by_name in tables.TABLES.items()
    for rows in by_name.values()
    for row in rows
]
SHOWN = [(name, row) for name, row in ROWS if row.difference is not None]


@pytest.mark.parametrize("row", [row for _, row in SHOWN], ids=[name for name, _ in SHOWN])
def test_a_row_computes_what_was_recorded(row: Row):
    assert row.difference is not None and row.measured() <= row.difference


@pytest.mark.parametrize("page", tables.TABLES)
def test_a_guide_shows_the_rows(page):
    shown = tables.path(page).read_text("utf-8")
    assert shown == tables.written(page), f"run `python -m {tables.__name__}`"

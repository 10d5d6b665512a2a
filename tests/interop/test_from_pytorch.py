"""What the guides say of optimizers in PyTorch: each row computes what was recorded there."""

import re

import pytest

import gradxform as gx
from docs.site.from_pytorch import tables, torch_formulas
from docs.site.from_pytorch.row import Row, computed
from tests.interop.recordings import FOLDER, described, file_of, recording

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


@pytest.mark.parametrize("name", torch_formulas.RECORDED)
def test_a_formula_computes_what_was_recorded(name):
    recorded = recording(name)
    formula = computed(recorded, torch_formulas.RECORDED[name])
    assert recorded.difference([formula.tree("params", t) for t in range(12)]) < 1e-12


def test_every_recording_has_a_row():
    used = {row.recorded for _, row in ROWS}
    files = {path.name for path in FOLDER.glob("*.npz")} - {"inputs.s11.npz"}
    names = {file_of(name): name for name in described()}
    assert files <= names.keys() and {names[file] for file in files} - used == set()


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[name for name, _ in ROWS])
def test_the_parts_that_a_row_names_exist(row: Row):
    text = f"{row.ours} {row.shown} {row.notes}"
    assert [name for name in re.findall(r"\bgx\.(\w+)", text) if not hasattr(gx, name)] == []


@pytest.mark.parametrize(
    "row", [row for _, row in ROWS if row.ours], ids=[name for name, row in ROWS if row.ours]
)
def test_the_call_of_a_row_makes_an_optimizer(row: Row):
    kwargs = {} if row.recorded is None else recording(row.recorded).kwargs
    names = {"lr": 0.1, "w": 0.1, "tx": gx.sgd(0.1), "schedule": gx.constant_schedule(0.1)}
    tx = eval(row.ours, {"gx": gx, **names, **kwargs, **row.names})
    assert callable(tx.init) and callable(tx.update)


@pytest.mark.parametrize("page", tables.TABLES)
def test_a_guide_shows_the_rows(page):
    shown = tables.path(page).read_text("utf-8")
    assert shown == tables.written(page), f"run `python -m {tables.__name__}`"

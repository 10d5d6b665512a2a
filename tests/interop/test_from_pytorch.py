"""What the guides say of optimizers in PyTorch: each row computes what was recorded there."""

import ast
import functools
import operator
import re
from typing import Any

import pytest

import gradxform as gx
from docs.site.from_pytorch import tables, torch_formulas
from docs.site.from_pytorch.row import Drawn, Row, call_in, computed, names_of
from tests.interop.recordings import FOLDER, described, file_of, nothing_drawn, recording

pytestmark = pytest.mark.numeric

ROWS = [
    (f"{page}: {row.theirs}", page, row, call, difference)
    for page in tables.TABLES
    for row, call, difference in tables.shown(page)
]
COMPARED = [case for case in ROWS if case[-1] is not None]
RECORDED = [case for case in ROWS if case[2].recorded is not None]


def of(cases: list[Any], *fields: int) -> dict[str, Any]:
    """Return the arguments of `parametrize` for some fields of rows, with their names."""
    found = [operator.itemgetter(*fields)(case) for case in cases]
    return {"argvalues": found, "ids": [case[0] for case in cases]}


@functools.cache
def names(page: str) -> dict[str, Any]:
    return names_of(tables.path(page).read_text("utf-8"))


@pytest.mark.parametrize("page, row, call, difference", **of(COMPARED, 1, 2, 3, 4))
def test_the_call_of_a_row_computes_what_was_recorded(page, row, call, difference):
    assert row.measured(call, names(page)) <= difference


@pytest.mark.parametrize("row", **of(RECORDED, 2))
def test_the_recorded_arguments_are_those_of_the_row(row: Row):
    described_as, call = described()[row.recorded or ""], call_in(row.theirs)
    assert ast.unparse(call.func) == described_as["class"]
    recorded = dict(described_as["kwargs"])
    base = recorded.pop("base", None)
    for x in call.args:
        if isinstance(x, ast.Name) and x.id not in ("SGD", "groups"):
            assert recorded.pop(x.id) is not None
        else:
            assert base or "param_groups" in described_as
    for keyword in call.keywords:
        value = recorded.pop(keyword.arg or "")
        if isinstance(keyword.value, ast.Constant):
            assert value == keyword.value.value
    assert recorded == {}


@pytest.mark.parametrize(
    "name", [f"torch.{x}" for x in torch_formulas.OF_CLASS if f"torch.{x}" in described()]
)
def test_a_formula_computes_what_was_recorded(name):
    recorded = recording(name)
    formula = torch_formulas.OF_CLASS[described()[name]["class"]](**recorded.kwargs)
    found = computed(recorded, formula)
    assert recorded.difference([found.tree("params", t) for t in range(12)]) < 1e-12


def test_a_row_says_what_of_it_is_compared():
    row = Row("A(lr)", "gx.sgd(lr)", 1.0, "x", "A note.", leaves=("matrix", "kernel"), steps=5)
    assert row.text() == "A note. Compared matrix and kernel after the first 5 updates"
    assert row._replace(leaves=()).text() == "A note. Compared after the first 5 updates"
    drawn = Drawn("probes are drawn", nothing_drawn)
    assert Row("A(lr)", "gx.sgd(lr)", 1.0, "x", drawn=drawn).text() == "probes are drawn"


def test_every_recording_has_a_row():
    used = {case[2].recorded for case in ROWS}
    files = {path.name for path in FOLDER.glob("*.npz")} - {"inputs.s11.npz"}
    names = {file_of(name): name for name in described()}
    assert files <= names.keys() and {names[file] for file in files} - used == set()


@pytest.mark.parametrize("row, call", **of(ROWS, 2, 3))
def test_the_parts_that_a_row_names_exist(row: Row, call: str):
    text = f"{call} {row.text()}"
    assert [name for name in re.findall(r"\bgx\.(\w+)", text) if not hasattr(gx, name)] == []


@pytest.mark.parametrize("page, row, call", **of([case for case in ROWS if case[3]], 1, 2, 3))
def test_the_call_of_a_row_makes_an_optimizer(page, row: Row, call: str):
    outer = {"lr": 0.1, "w": 0.1, "tx": gx.sgd(0.1), "schedule": gx.constant_schedule(0.1)}
    tx = eval(call, {"gx": gx, **outer, **names(page), **row.arguments()})
    assert callable(tx.init) and callable(tx.update)


@pytest.mark.parametrize("page", tables.TABLES)
def test_a_guide_shows_the_rows(page):
    shown = tables.path(page).read_text("utf-8")
    assert shown == tables.written(page), f"run `python -m {tables.__name__}`"

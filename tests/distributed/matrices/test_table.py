"""The table of rules for whole matrices in docs/distributed.md is what compiled steps send."""

import pytest

import gradxform as gx
from docs.site import sharded
from gradxform.transforms.matrices.rule import MatrixRule
from gradxform.wrappers.parts import all_parts

pytestmark = pytest.mark.usefixtures("eight_devices")

ROWS = {(row.rule, row.form): row for row in sharded.rows()}
SHOWN = sharded.read()


def test_the_table_has_every_rule():
    assert list(SHOWN) == list(ROWS)
    kinds = {x for name in dir(gx) if isinstance(x := getattr(gx, name), type)}
    rules = {kind for kind in kinds if issubclass(kind, MatrixRule)} - {
        MatrixRule,
        gx.precondition_by_inputs,  # whose second moments a program of shapes does not have
    }
    parts = [part for make in sharded.optimizers().values() for part in all_parts(make())]
    shown = tuple({type(part) for part in parts})
    # A rule that inherits from one that is shown exchanges the same.
    assert len(rules) > 8 and all(issubclass(rule, shown) for rule in rules)


def test_the_page_says_what_was_compiled():
    page = sharded.page([SHOWN[key] for key in ROWS]).replace(sharded.versions(), "")
    shown = sharded.PAGE.read_text("utf-8")
    assert page == shown.replace(sharded.versions_shown(), "")


# What the compiler chooses is written anew with what a rule sends by its plan, which changes with
# the rule: one rule shows that those rows are compiled steps too.
BY_PLAN = [key for key, row in ROWS.items() if not row.by_compiler]


@pytest.mark.parametrize("key", [*BY_PLAN, ("adago", sharded.ALONE)], ids=": ".join)
def test_a_step_sends_and_holds_what_the_table_shows(key):
    found, shown = ROWS[key].figures(), SHOWN[key]
    if sharded.versions_shown() == sharded.versions():
        assert found == shown, f"if it is meant to, run `python -m {sharded.__name__}`"
    elif not ROWS[key].by_compiler:  # which other versions do otherwise
        assert found[:2] == shown[:2]

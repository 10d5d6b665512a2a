"""A schedule in a part is its number of the step, whatever other schedules the part has."""

import dataclasses
import inspect

import pytest

import gradxform as gx
from gradxform.testing.promise import Broken, check_close, settings
from gradxform.types import Schedule
from gradxform.values import fields_of
from gradxform.values.fields import annotation_kinds
from gradxform.wrappers.hyperparams.arguments import annotations_of
from tests.catalogue import CASES, OPTIMIZERS, TRANSFORMS, WRAPPERS

pytestmark = pytest.mark.numeric


def may_be_schedules(factory):
    """The arguments of a class or a recipe that are numbers or schedules."""
    kinds = {k: annotation_kinds(x) for k, x in annotations_of(factory).items()}
    return [k for k, x in kinds.items() if Schedule in x and float in x]


def scheduled(tx):
    """The numbers of a transform that may be schedules, without counts of steps and None."""
    fields = fields_of(tx)
    may = [k for k in may_be_schedules(type(tx)) if not k.endswith("_interval")]
    return {k: fields[k] for k in may if fields.get(k) is not None}


def falling(numbers):
    """A schedule for each number, which falls from it; no two fall alike."""
    firsts = {k: x if isinstance(x, float) and x else 0.05 for k, x in numbers.items()}
    return {
        k: gx.linear_schedule(x, x * (0.7 - 0.15 * i), 4) for i, (k, x) in enumerate(firsts.items())
    }


def follows(case, make, schedules):
    """Require steps with schedules to be those with their values, at the count or one later."""
    tx, kept = make(schedules), []
    for later in (0, 1):
        p = case.params()
        state, state_of_numbers = tx.init(p), None
        try:
            for t, g in enumerate(case.gradients(p, 3)):
                extra = case.extra_of(g, p)
                now = make({k: float(s(t + later)) for k, s in schedules.items()})
                state_of_numbers = now.init(p) if t == 0 else state_of_numbers
                expected, state_of_numbers = now.update(g, state_of_numbers, p, **extra)
                updates, state = tx.update(g, state, p, **extra)
                check_close("updates", updates, expected, 2e-6, what=f" with numbers at {t}")
                p = gx.apply_updates(p, updates)
            return
        except Broken as broken:
            kept.append(broken)
    raise kept[0]


ROWS = {
    name: case
    for name, case in (TRANSFORMS | WRAPPERS).items()
    if not case.foreign and isinstance(case.tx, gx.Transform) and scheduled(case.tx)
}


@pytest.mark.parametrize("name", ROWS)
def test_a_part_takes_the_values_of_its_own_schedules(name):
    case = ROWS[name]
    with settings(case):
        follows(
            case,
            lambda fields: dataclasses.replace(case.tx, **fields),
            falling(scheduled(case.tx)),
        )


def rates_of(name):
    """The arguments of a recipe that may be schedules, unless None or 0 leaves a part out."""
    factory = getattr(gx, name)
    defaults = {k: x.default for k, x in inspect.signature(factory).parameters.items()}
    numbers = {k: 0.1 if k == "learning_rate" else defaults[k] for k in may_be_schedules(factory)}
    return {k: x for k, x in numbers.items() if isinstance(x, float) and x}


RECIPES = [name for name in OPTIMIZERS if "/" not in name and len(rates_of(name)) > 1]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_the_values_of_its_own_schedules(name):
    with settings(CASES[name]):
        follows(CASES[name], lambda rates: getattr(gx, name)(**rates), falling(rates_of(name)))


def test_many_parts_have_schedules_and_some_two():
    assert len(ROWS) > 30 and RECIPES, RECIPES
    assert sum(len(scheduled(case.tx)) > 1 for case in ROWS.values()) > 3

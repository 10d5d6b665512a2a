"""The catalogue shows every number of every rule: without it, some row would have other updates.

A test cannot see that a rule forgets to add an eps of 1e-8. Therefore, for every field that is a
number, some row has a value other than the default. With the default (or half the number, where
there is no default) that row must make visibly different updates, or averages of the parameters.
"""

import dataclasses
import functools
import typing

import jax
import numpy as np
import pytest

import gradxform as gx
from gradxform.base import GradientTransformation
from gradxform.testing.promise import as_numpy, settings
from gradxform.values import Value, fields_of, rebuild
from gradxform.values.registry import REGISTRY
from tests.catalogue import CASES, OPTIMIZERS

pytestmark = pytest.mark.numeric

STEPS = 7
# As a fraction of a leaf's largest update: fifty times the tolerance of a row to its reference.
VISIBLE = 1e-3
# What some wrappers compute besides updates: fields of their states.
AVERAGES = ("average", "averages")


def numbers_of(cls):
    """Yield the paths at which a class holds numbers, each with its default."""
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if hints[f.name] is float or float in typing.get_args(hints[f.name]):
            if type(f.default) is tuple:
                yield from (((f.name, i), x) for i, x in enumerate(f.default))
            else:
                yield (f.name,), f.default


def places(x, cls, at=()):
    """Yield the paths, of fields and indices, at which `x` holds transforms of a class."""
    if isinstance(x, cls):
        yield at
    if isinstance(x, Value):
        for name, part in fields_of(x).items():
            yield from places(part, cls, (*at, name))
    elif type(x) is tuple:
        for i, part in enumerate(x):
            yield from places(part, cls, (*at, i))


def part_at(x, at):
    for step in at:
        x = x[step] if isinstance(step, int) else getattr(x, step)
    return x


def put(x, at, new):
    """Return `x` with another value at that place."""
    if not at:
        return new
    step, *rest = at
    if isinstance(step, int):
        return (*x[:step], put(x[step], rest, new), *x[step + 1 :])
    return rebuild(type(x), fields_of(x) | {step: put(getattr(x, step), rest, new)})


def trees_of(case):
    """Yield trees to try: one matrix where that may suffice, then all parameters of the case."""
    if case.tree is None and not case.names_leaves:
        yield {"w": case.params()["w"]}
    yield case.params()


@functools.cache
def updates_of(name, at=(), value=None):
    """The updates of a row, on each of its trees, with another number at one place."""
    case = dataclasses.replace(
        CASES[name], tx=put(CASES[name].tx, at, value) if at else CASES[name].tx
    )
    return [functools.cache(functools.partial(steps, case, tree)) for tree in trees_of(CASES[name])]


def steps(case, tree):
    with settings(case):
        state, history = case.tx.init(tree), []
        for g in case.gradients(tree, STEPS):
            updates, state = case.compiled(g, state, tree)
            tree = gx.apply_updates(tree, updates)
            seen = (
                updates,
                [getattr(state, k) for k in AVERAGES if k in getattr(state, "_fields", ())],
            )
            history += [as_numpy(u) for u in jax.tree.leaves(seen)]
    return history


def is_seen(name, at, default):
    """Whether a row shows the number at that place in its transform."""
    value = part_at(CASES[name].tx, at)
    other = default
    if default is dataclasses.MISSING:
        if not isinstance(value, int | float):
            return False
        other = value / 2
    if value == other:
        return False
    return any(
        np.any(np.abs(a - b) > VISIBLE * np.max(np.abs(a), initial=0))
        for mine, theirs in zip(updates_of(name), updates_of(name, at, other), strict=True)
        for a, b in zip(mine(), theirs(), strict=True)
    )


# Their numbers take effect only with several replicas, in tests/test_distributed*.py, or change the
# state only, in tests/experimental/test_aggregating.py.
ELSEWHERE = ("gradxform.distributed", "gradxform.experimental")
# Numbers without effect while they are constant, and why; rows with schedules show them.
CANCEL = {
    "schedule_free.learning_rate": "only its changes weight the average",
    "reduce_on_plateau.rtol": "the loss of the rows is constant; tests/transforms/test_plateau.py",
    "reduce_on_plateau.atol": "the loss of the rows is constant; tests/transforms/test_plateau.py",
}
NUMBERS = [
    pytest.param(
        cls,
        at,
        default,
        id=".".join(map(str, (cls.__name__, *at))),
        marks=pytest.mark.xdist_group(cls.__name__),  # one process compiles its rows once
    )
    for cls in dict.fromkeys(REGISTRY.values())
    if isinstance(cls, type)
    and issubclass(cls, GradientTransformation)
    and ":" not in cls.registered_name
    if not cls.__module__.startswith(ELSEWHERE)
    for at, default in numbers_of(cls)
    if ".".join(map(str, (cls.__name__, *at))) not in CANCEL
]


@pytest.mark.parametrize("cls, place, default", NUMBERS)
def test_every_number_of_every_rule_is_shown_by_a_row(cls, place, default):
    rows = sorted(CASES, key=lambda name: (name in OPTIMIZERS, -name.count("/")))
    if not any(
        is_seen(name, (*at, *place), default) for name in rows for at in places(CASES[name].tx, cls)
    ):
        pytest.fail(f"no row of the catalogue changes visibly if that number is {default}")

"""Every promise of the library, for every row of the catalogue."""

import pytest

import gradxform as gx
from gradxform.registry import REGISTRY
from gradxform.testing import PROMISES
from gradxform.testing.promise import check_close, check_types
from tests.catalogue import CASES, OPTIMIZERS, TRANSFORMS, WRAPPERS

# All promises of a row by one process, which compiles its rule once.
ROWS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CASES]


@pytest.mark.parametrize("promise", list(PROMISES))
@pytest.mark.parametrize("name", ROWS)
def test_keeps(name, promise):
    PROMISES[promise](CASES[name])


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if "/" not in n])
def test_a_schedule_in_place_of_a_number_keeps_the_structure_of_the_state(name):
    case, factory = CASES[name], getattr(gx, name)
    extra, tree = case.extra or {}, case.params()
    number = factory(0.1).init(tree)
    schedule = factory(gx.constant_schedule(0.1)).init(tree)
    check_types("state", schedule, number)
    (g,) = case.gradients(tree, 1)
    a, _ = factory(0.1).update(g, number, tree, **extra)
    b, _ = factory(gx.constant_schedule(0.1)).update(g, number, tree, **extra)
    check_close("updates", b, a, 1e-6)


def test_every_public_part_has_a_row():
    covered = {name.split("/")[0] for name in CASES}
    covered |= {extra for case in CASES.values() for extra in case.names}
    public = {k for k, v in vars(gx).items() if isinstance(v, type) and issubclass(v, gx.Transform)}
    public -= {"Transform", "ArrayRule"}
    public |= set(gx.OPTIMIZERS)
    assert public - covered == set()
    registered = {
        k for k, v in REGISTRY.items() if isinstance(v, type) and issubclass(v, gx.Transform)
    }
    ours = {k for k in registered if ":" not in k}
    assert ours - covered == set()
    assert set(TRANSFORMS) | set(WRAPPERS) | set(OPTIMIZERS) == set(CASES)

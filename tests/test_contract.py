"""Every promise of the library, for every part in the catalogue.

Promises about form are tested for each part. Its variants, and the recipes that use it, are tested
only for the promises that other numbers can break. `make test ARGS=--all-promises` tests every
promise on every row.
"""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.testing import PROMISES
from gradxform.testing.promise import check_close, settings
from gradxform.testing.promises_locality import shows_how_far_it_looks
from gradxform.values.registry import REGISTRY
from tests.catalogue import CASES, OPTIMIZERS, TRANSFORMS, WRAPPERS
from tests.public import names_of

pytestmark = pytest.mark.numeric

# Promises that a recipe can break although its parts keep them, and those that a variant can.
OF_RECIPES = {
    "follows_its_reference",
    "extremes_stay_finite",
    "is_a_value",
    "goes_to_json_and_back",
}
OF_VARIANTS = OF_RECIPES | {
    "its_numbers_can_be_in_the_state",
    "touches_rows_or_refuses",
    "what_is_inside_knows_the_parameters",
}
OF_OTHERS = {True: OF_RECIPES, False: OF_VARIANTS}


def part_of(name):
    """Return the part that a row is about: `scale_by_adam` of `scale_by_adam/nesterov`."""
    return name.split("/")[0]


# The first row of every transform and wrapper, and each that stands for parts without a row.
FIRST = {part_of(name): name for name in reversed(TRANSFORMS | WRAPPERS)}
PARTS = set(FIRST.values()) | {name for name, case in CASES.items() if case.names}


def pytest_generate_tests(metafunc):
    if "promise" not in metafunc.fixturenames:
        return
    everything = metafunc.config.getoption("--all-promises")
    rows = [
        # One process tests all promises of a part and its variants, to compile its rule once.
        pytest.param(
            name, promise, id=f"{name}-{promise}", marks=pytest.mark.xdist_group(part_of(name))
        )
        for name in CASES
        for promise in PROMISES
        if everything or name in PARTS or promise in OF_OTHERS[name in OPTIMIZERS]
    ]
    metafunc.parametrize("name, promise", rows)


def test_every_part_keeps_the_promise(name, promise):
    PROMISES[promise](CASES[name])


# Parts whose locality no row can show, and why.
UNSEEN = {
    "GradientTransformation": "it calls a function of the user",
    "stateless": "it calls a function of the user",
    "stateless_with_tree_map": "it calls a function of the user",
    "hutchinson_estimator_diag_hessian": "its locality depends on the loss",
    "scale_by_sophia": "its locality depends on the loss",
    "scale_by_adahessian": "its locality depends on the loss",
    "estimate_diagonal": "its locality depends on the loss",
    "scale_by_curvature_diagonal": "its locality depends on the loss",
    "add_noise": "it counts leaves and reads none",
    "add_truncated_noise": "it counts leaves and reads none",
    "scale_by_adam_catching_up": "all rows have the same age where gradients are dense",
    "differentially_private_aggregate": "it is tested on one leaf",
    "scale_by_fans": "it reads the shape of an array and none of its entries",
    "grokfast_ma": "it computes by entry, with windows that have another shape",
    "step_by_lbfgsb": "the parameters that are drawn here are outside of the bounds",
    "mix_gradients": "it finds the first gradients in the tree, and adds entries",
    "scale_by_mean_side": "it reads the shape of an array and none of its entries",
    "scale_by_shape": "it reads the shape of an array and none of its entries",
}


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=pytest.mark.xdist_group(part))
        for part in FIRST
        if part in set(map(part_of, TRANSFORMS)) - set(UNSEEN)
    ],
)
def test_no_part_says_that_it_looks_further_than_it_does(part):
    cases = [case for name, case in CASES.items() if part_of(name) == part]
    for case in cases:
        with settings(case):
            if shows_how_far_it_looks(case):
                return
    pytest.fail(f"locality {cases[0].tx.locality!r}, of which no row of {part} shows anything")


def takes_rate(name):
    """Whether an optimizer has a learning rate; one that searches its steps may not."""
    return "learning_rate" in inspect.signature(getattr(gx, name)).parameters


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if "/" not in n and takes_rate(n)])
def test_a_constant_schedule_makes_the_updates_of_its_number(name):
    """Their states may differ: a schedule counts, and a number does not need to."""
    case, factory, rates = CASES[name], getattr(gx, name), (0.1, gx.constant_schedule(0.1))
    tree = case.params()
    (g,) = case.gradients(tree, 1)
    extra = case.extra_of(g, tree)
    a, b = (tx.update(g, tx.init(tree), tree, **extra)[0] for tx in map(factory, rates))
    check_close("updates", b, a, 1e-6)


# What recipes need besides their defaults.
NEEDED = {
    "dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 0.5, "seed": 0},
    "noisy_sgd": {"key": 0},
}


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if "/" not in n])
def test_hyperparameters_in_the_state_change_no_update(name):
    """Those of the state are float32, of which 1 - 0.9999 has three digits less."""
    case, factory = CASES[name], getattr(gx, name)
    arguments = {"learning_rate": 0.1} if takes_rate(name) else {}
    arguments |= NEEDED.get(name, {})
    plain, kept = factory(**arguments), gx.inject_hyperparams(factory)(**arguments)
    tree = case.params()
    if not (case.extra or case.names_leaves):  # singular matrices have many bases
        tree = {**tree, "tall": jnp.asarray(np.random.default_rng(3).normal(size=(8, 3)), "f4")}
    results = []
    for tx in (plain, kept):
        p, state, updates = tree, tx.init(tree), []
        for g in case.gradients(tree, 3):
            u, state = tx.update(g, state, p, **case.extra_of(g, p))
            p = gx.apply_updates(p, u)
            updates.append(u)
        results.append(updates)
    check_close("updates", results[1], results[0], 3e-4)


# Parts of doors that run the code of others, and where they are tested.
OTHERS = {
    "aggregate_pairs": "compat/test_configs.py",
    "called_numbers": "compat/test_called_numbers.py",
    "from_keras": "compat/test_keras.py",
}


def test_every_public_part_has_a_row():
    covered = {name.split("/")[0] for name in CASES}
    covered |= {extra for case in CASES.values() for extra in case.names}
    classes = {k: v for k, v in names_of(gx).items() if isinstance(v, type)}
    public = {k for k, v in classes.items() if issubclass(v, gx.Transform)}
    public -= {"Transform", "ArrayRule", "MatrixRule"}
    public |= set(gx.OPTIMIZERS)
    assert public - covered == set()
    registered = {
        k for k, v in REGISTRY.items() if isinstance(v, type) and issubclass(v, gx.Transform)
    }
    ours = {k for k in registered if ":" not in k}
    assert ours - covered - set(OTHERS) == set()
    assert set(TRANSFORMS) | set(WRAPPERS) | set(OPTIMIZERS) == set(CASES)

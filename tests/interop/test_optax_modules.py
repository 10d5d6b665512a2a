"""Optax's names in the modules where Optax has them."""

import importlib
import pkgutil
import subprocess
import sys
import types
import warnings
from typing import get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.commands.port.names import SAME, find_optax_name
from tests.environment import limit

optax = pytest.importorskip("optax")

TREE = {"a": jnp.asarray([3.0, -4.0]), "b": jnp.asarray([[12.0]])}


def public(module):
    """The public names of a module of Optax, but for modules in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that warn when they are looked at
        found = {name: getattr(module, name) for name in dir(module) if name[0] != "_"}
    return [k for k, v in found.items() if not isinstance(v, types.ModuleType)]


MODULES = [
    "transforms",
    "schedules",
    "contrib",
    "microbatching",
    "projections",
    "tree",
    "tree_utils",
]


@pytest.mark.parametrize("module", MODULES)
def test_a_name_of_ours_is_in_the_module_where_optax_has_it(module):
    theirs = importlib.import_module(f"optax.{module}")
    ours = importlib.import_module(f"gradxform.{module}")
    flat = module in (
        "microbatching",
        "projections",
        "tree",
        "tree_utils",
    )  # whose names are not those of the library too
    for name in public(theirs):
        if flat or hasattr(gx, name):
            assert hasattr(ours, name), name
            assert name in dir(ours)
        if not flat and hasattr(gx, name):
            assert getattr(ours, name) is getattr(gx, name)


def test_a_name_that_optax_lacks_is_not_in_its_modules():
    for module in (gx.transforms, gx.schedules):
        assert not hasattr(module, "no_such_name")
        assert not hasattr(module, "apply_updates")
        with pytest.raises(AttributeError, match=rf"'{module.__name__}' has no attribute 'chian'"):
            _ = module.chian


IMPORTS = """
from gradxform.transforms import MultiSteps, chain, masked, add_noise
from gradxform.schedules import inject_hyperparams, join_schedules, Schedule
from gradxform.tree_utils import tree_add
import gradxform.transforms.adam, gradxform.tree_utils
from gradxform import tree_utils as otu
assert otu.tree_add is tree_add
"""


def test_optaxs_modules_can_be_imported_first():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=limit(6, 60))


def test_top_level_names_are_those_of_the_submodules():
    for name in public(optax):
        state = getattr(optax, name, None)
        if state is optax.EmptyState:
            assert getattr(gx, name) is gx.EmptyState
    for name in ("update_moment", "update_infinity_moment", "update_moment_per_elem_norm"):
        assert getattr(gx, name) is getattr(gx.tree, name)
        assert getattr(gx.tree_utils, f"tree_{name}") is getattr(gx.tree, name)
    assert gx.bias_correction is gx.tree.bias_correction
    assert gx.tree_map_params is gx.tree.map_params
    assert gx.safe_int32_increment is gx.safe_increment
    assert gx.init_empty_state(TREE) == gx.EmptyState()
    for name in ("MaskOrFn", "TransformInitFn", "TransformUpdateFn", "TransformUpdateExtraArgsFn"):
        assert hasattr(gx, name)


def test_array_tree_annotates_any_tree():
    # A name of Optax's main branch. Annotations are evaluated, and may be optional.
    def norm(tree: gx.ArrayTree, other: gx.ArrayTree | None = None) -> jax.Array:
        return gx.tree.norm(tree)

    assert norm(TREE) == 13.0
    assert gx.ArrayTree is gx.Params is gx.types.ArrayTree
    assert "ArrayTree" in gx.__all__
    assert get_type_hints(norm)["tree"] is gx.ArrayTree
    assert find_optax_name("ArrayTree")[:2] == (SAME, "gradxform.ArrayTree")


def test_a_transform_written_with_our_functions_reads_as_in_optax():
    def update(updates, state, params=None):
        return jax.tree.map(jnp.sign, updates), state

    tx = gx.GradientTransformation(gx.init_empty_state, update)
    updates, state = tx.update(TREE, tx.init(TREE))
    assert state == gx.EmptyState()
    np.testing.assert_array_equal(updates["a"], [1.0, -1.0])


OLD = {
    "tree_scalar_mul": (2.0, TREE),
    "tree_add_scalar_mul": (TREE, 2.0, TREE),
    "tree_l1_norm": (TREE,),
    "tree_l2_norm": (TREE,),
    "tree_linf_norm": (TREE,),
}


@pytest.mark.parametrize("name", list(OLD))
def test_names_that_optax_deprecated_still_work(name):
    with pytest.warns(DeprecationWarning):
        theirs = getattr(optax.tree_utils, name)
    got, want = getattr(gx.tree_utils, name)(*OLD[name]), theirs(*OLD[name])
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_the_l2_norm_may_be_squared():
    assert float(gx.tree_utils.tree_l2_norm(TREE, squared=True)) == 169.0


def states(library):
    """The named tuples of a library that are states, by name, wherever they are defined."""
    found = {}
    for info in pkgutil.walk_packages(library.__path__, f"{library.__name__}."):
        if info.name.endswith(("_test", "__main__", "test_utils")):
            continue
        for kind in vars(importlib.import_module(info.name)).values():
            if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
                if kind.__module__.startswith(library.__name__) and "State" in kind.__name__:
                    found[kind.__name__] = kind
    return found


def test_the_states_of_optax_can_be_made_by_its_calls():
    ours = states(gx)
    for name, theirs in states(optax).items():
        if name in ours:
            more = ours[name]._fields[len(theirs._fields) :]
            assert ours[name]._fields[: len(theirs._fields)] == theirs._fields, name
            assert set(more) <= set(ours[name]._field_defaults), name
            assert theirs._field_defaults.items() <= ours[name]._field_defaults.items(), name


def test_states_with_more_fields_than_optaxs_have_defaults():
    step = jnp.zeros((), jnp.int32)
    assert gx.LookaheadState._fields == optax.LookaheadState._fields
    made = gx.MultiStepsState(mini_step=step, gradient_step=step, inner_opt_state=(), acc_grads={})
    assert made.skip_state == ()

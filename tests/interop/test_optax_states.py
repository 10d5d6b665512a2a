"""States lie where Optax's lie: the same classes, fields and nesting for the same call."""

import inspect

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import optax.transforms
import pytest
from flax import serialization

import gradxform as gx
from gradxform._names import optax as forwards
from tests.interop.optax_calls import (
    CALLS,
    OPTAX,
    as_optax_wants,
    falling,
    gradients_of,
    matrices,
    params_of,
)

pytestmark = pytest.mark.numeric

SAME = [call for call in CALLS if call.reason is None]


def layout(state):
    """Return the layout: the classes of the nodes, the shapes and dtypes of the leaves."""
    found = {}

    def look(path, node):
        children, treedef = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda x: x is not node
        )
        said = jax.tree_util.keystr(path)
        if treedef == jax.tree.structure(0):
            found[said] = f"{jax.dtypes.result_type(node)}{list(jnp.shape(node))}"
            return
        found[said] = type(node).__name__
        for (entry,), child in children:
            look((*path, entry), child)

    look((), state)
    return found


def serialized(state):
    """Return the paths, shapes and dtypes of the state in Flax's serialization."""
    return layout(serialization.to_state_dict(state))


def after(call, tx, library, steps=2):
    """The layout after some updates; nothing is computed."""

    def run(params, *grads):
        state = tx.init(params)
        for g in grads:
            _, state = tx.update(g, state, params, **call.extra)
        return state

    grads = [gradients_of(call, n) for n in range(steps)]
    params = params_of(call, library)
    return layout(jax.eval_shape(run, params, *grads))


@pytest.mark.parametrize("call", SAME, ids=str)
def test_a_state_has_the_layout_of_optaxs(call):
    mine = call.ours().init(params_of(call))
    with as_optax_wants():
        other = call.theirs().init(params_of(call, OPTAX))
    assert layout(mine) == layout(other)
    assert serialized(mine) == serialized(other)


@pytest.mark.parametrize("call", [call for call in SAME if call.usual], ids=str)
def test_a_state_keeps_the_layout_of_optaxs_after_a_step(call):
    with as_optax_wants():
        other = after(call, call.theirs(), OPTAX)
    assert after(call, call.ours(), gx) == other


@pytest.mark.parametrize("call", [c for c in CALLS if c.reason is not None], ids=str)
def test_a_listed_exception_still_differs_from_optax(call):
    mine = call.ours().init(params_of(call))
    with as_optax_wants():
        other = call.theirs().init(params_of(call, OPTAX))
    assert layout(mine) != layout(other), call.reason


NAMES = ("count", "mu", "nu", "trace", "learning_rate", "inner_state", "ScaleByAdamState", "dense")


def found(get, state, name):
    """Return the layout of the value that a library finds, or the error that it raises."""
    try:
        value = get(state, name)
    except KeyError:
        return KeyError
    return layout(value)


@pytest.mark.parametrize("call", [call for call in SAME if call.usual], ids=str)
def test_get_finds_what_optaxs_get_finds(call):
    mine = call.ours().init(params_of(call))
    with as_optax_wants():
        other = call.theirs().init(params_of(call, OPTAX))
    for name in NAMES:
        wanted = found(optax.tree.get, other, name)
        assert found(gx.tree.get, mine, name) == wanted
        assert found(gx.tree.get, other, name) == wanted


@pytest.mark.parametrize(
    "make",
    [
        lambda lib: lib.adam(0.1),
        lambda lib: lib.adamw(0.1, weight_decay=0.01, mask=matrices),
        lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.lion(0.1)),
        lambda lib: lib.sgd(falling, momentum=0.9),
        lambda lib: lib.rmsprop(0.1, bias_correction=True),
    ],
)
def test_the_count_of_an_optimizer_is_its_step(make):
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}

    def steps(lib, get):
        tx = make(lib)
        state = tx.init(params)
        for _ in range(3):
            _, state = tx.update(params, state, params)
        return int(get(state, "count"))

    with as_optax_wants():
        assert steps(OPTAX, optax.tree.get) == 3
    assert steps(gx, gx.tree.get) == 3


def transformations(module):
    """The names in a module of Optax of all that returns a transformation."""
    for name in dir(module):
        made = getattr(module, name)
        if name[0] == "_" or not callable(made):
            continue
        if name == "MultiSteps":
            yield name
        elif not inspect.isclass(made):
            target = getattr(made, "func", made)
            returned = getattr(target, "__annotations__", {}).get("return", None)
            if "GradientTransformation" in str(returned):
                yield name


@pytest.mark.parametrize(
    "module", [optax, optax.transforms, optax.contrib], ids=lambda m: m.__name__
)
def test_every_transformation_of_both_libraries_is_compared(module):
    names = {call.name for call in CALLS}
    found = [k for k in transformations(module) if hasattr(gx, k) and k not in forwards.NAMES]
    assert found
    assert [name for name in found if name not in names] == []


@pytest.mark.parametrize("field", ["count", "mu"])
def test_numbers_of_another_kind_are_refused_and_not_cut(field):
    tree = {"w": jnp.ones(2)}
    tx = gx.scale_by_adam()
    wrong = {"count": jnp.asarray(1.5), "mu": {"w": jnp.ones(2, jnp.complex64)}}
    state = tx.init(tree)._replace(**{field: wrong[field]})
    with pytest.raises(TypeError, match=rf"interop: .*{field}.* has dtype .*, expected"):
        gx.from_optax_state(tx, state, tree)

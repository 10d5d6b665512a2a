"""Functions and states of others whose annotations name what only a type checker imports."""

import importlib.util
import re
import sys

import jax.numpy as jnp
import pytest

import gradxform as gx
from gradxform._names.deferred import annotations_of, signature_of
from gradxform.leaves.states import slot_fields
from gradxform.values.config import is_plain_function
from tests.project.names import ROOT

# Up to Python 3.13 such a file cannot be read otherwise than with annotations as strings.
TEXT = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
TEXT += """
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

import gradxform as gx
from gradxform.types import Slot

if TYPE_CHECKING:
    from elsewhere import Array, Tree

def schedule(count: Array) -> Array:
    return 0.1 / (1 + count.astype(jnp.float32))

def factory(learning_rate: Array) -> Tree:
    return gx.sgd(learning_rate)

class State(NamedTuple):
    count: Array
    m: Slot

def init(params: Tree) -> State:
    return State(jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))

def update(updates: Tree, state: State, params: Tree = None) -> tuple[Tree, State]:
    return updates, state

def loss(params: Tree, scale: Array) -> Array:
    return scale * sum(jnp.sum(p * p) for p in jax.tree.leaves(params))

def skip(updates: Tree, step: Array, params: Tree) -> tuple[Array, dict[str, Tree]]:
    return step > 5, {}

def box(params: Tree) -> Tree:
    return jax.tree.map(lambda p: jnp.clip(p, -1, 1), params)

class Twice:
    def __init__(self, rate: Array) -> None:
        self.rate = rate

    def __call__(self, count: Array) -> Array:
        return 2 * self.rate
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs") / "of_theirs.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    # Where the fields of a state are looked up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        yield module


MADE = {
    "a schedule": lambda x: gx.adam(x.schedule),
    "a schedule with a class": lambda x: gx.sgd(x.Twice(0.1)),
    "a schedule in the state": lambda x: gx.inject_hyperparams(gx.adam)(x.schedule),
    "a factory": lambda x: gx.inject_hyperparams(x.factory)(0.1),
    "init and update": lambda x: gx.chain(gx.GradientTransformation(x.init, x.update), gx.sgd(0.1)),
    "a step to skip": lambda x: gx.MultiSteps(gx.sgd(0.1), 2, should_skip_update_fn=x.skip),
    "a projection": lambda x: gx.project(gx.sgd(0.1), x.box),
}


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_a_function_may_have_annotations_that_nobody_can_evaluate(theirs, make):
    tx = make(theirs)
    step = gx.make_step(tx, theirs.loss)
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    step(params, tx.init(params), 0.5)


def test_an_annotation_that_nobody_can_evaluate_leaves_the_others_readable(theirs):
    assert slot_fields(theirs.State) == ("m",)
    assert list(annotations_of(theirs.State)) == ["count", "m"]
    assert list(signature_of(theirs.Twice).parameters) == ["rate"]
    assert is_plain_function(theirs.schedule)


def test_every_signature_is_read_where_annotations_may_be_unknown():
    # `inspect.signature` itself evaluates them from Python 3.14 on, and raises.
    files = [x for x in (ROOT / "gradxform").rglob("*.py") if x.name != "deferred.py"]
    direct = re.compile(r"\binspect\.(signature|get_annotations)\(")
    assert files and not [x for x in files if direct.search(x.read_text("utf-8"))]

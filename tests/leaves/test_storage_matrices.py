"""Slots of rules for matrices, and of rules that sum over the tree, in other forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.leaves.storage import Blocks, as_seen, is_stored
from tests.leaves.test_storage import normal

pytestmark = pytest.mark.numeric

PARAMS = {"a": normal((24, 32)), "b": normal((24, 32), 1), "t": normal((48, 16), 2)}
GRADS = [{k: normal(p.shape, i) for k, p in PARAMS.items()} for i in range(3, 6)]
STACK = jax.tree.map(lambda *gs: jnp.stack(gs), *GRADS)
FORMS = {
    "bfloat16": gx.state_dtype,
    "chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "8 bits": lambda tx: gx.quantize_state(tx, block=16, min_size=0),
    "4 bits": lambda tx: gx.quantize_state(tx, 4, 16, min_size=0),
}
RULES = {
    "muon": gx.muon(0.02),
    "dion2": gx.scale_by_dion2(),
    "prodigy": gx.prodigy(),
    "dadapt": gx.dadapt_adamw(),
}
# The largest relative error of a slot: half of a step of its code, and what later steps add.
ERRORS = {"bfloat16": 0.02, "chance": 0.03, "8 bits": 0.15, "4 bits": 0.6}


def leaves(state):
    return jax.tree.leaves(state, is_leaf=is_stored)


def run(tx):
    """Return the first state, and the one after a step for each gradient, by one program."""

    @jax.jit
    def steps(state):
        return jax.lax.scan(lambda s, g: tx.update(g, s, PARAMS)[::-1], state, STACK)[0]

    state = jax.jit(tx.init)(PARAMS)
    return state, steps(state)


@functools.cache
def plain_run(rule):
    return run(RULES[rule])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_the_slots_are_kept_to_the_error_of_the_form(rule, form):
    state, after = run(FORMS[form](RULES[rule]))
    assert any(map(is_stored, leaves(state))) or form == "bfloat16"
    forms = [[*map(jax.typeof, jax.tree.leaves(s))] for s in (state, after)]
    assert forms[0] == forms[1] and jax.tree.structure(state) == jax.tree.structure(after)
    _, want = plain_run(rule)
    for x, y in zip(leaves(after), leaves(want), strict=True):
        if jnp.issubdtype(y.dtype, jnp.floating):
            y = np.asarray(y)
            off = np.linalg.norm(np.asarray(as_seen(x), np.float32) - y)
            assert off <= ERRORS[form] * np.linalg.norm(y)


def test_what_a_decomposition_needs_stays_wide():
    tx = gx.quantize_state(gx.scale_by_soap(), min_size=0)
    assert not any(map(is_stored, leaves(jax.eval_shape(tx.init, PARAMS))))


def test_the_momentum_of_muon_takes_a_byte_an_entry():
    params = {"w": normal((256, 256))}
    state = gx.quantize_state(gx.scale_by_muon()).init(params)
    assert isinstance(state.mu["w"], Blocks)
    assert sum(x.nbytes for x in jax.tree.leaves(state.mu)) < 1.02 * params["w"].size

"""States between Optax and us: what is refused, and what the message says."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib as contrib
import pytest
from flax import serialization

import gradxform as gx
from gradxform import interop

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}


def restored(tx, change=None):
    """Optax's state as plain dicts, perhaps changed."""
    plain = serialization.to_state_dict(tx.init(PARAMS))
    if change:
        change(plain)
    return plain


def test_plain_dicts_become_a_state_of_ours():
    tx = gx.chain(gx.clip(1.0), gx.adam(0.1))
    plain = restored(optax.chain(optax.clip(1.0), optax.adam(0.1)))
    plain["1"]["0"]["count"] = np.asarray(7, np.int64)
    plain["1"]["0"]["mu"]["w"] = np.full((2, 3), 0.5, np.float16)
    state = interop.from_optax_state(tx, plain, PARAMS)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(PARAMS))
    assert int(gx.tree.get(state, "count")) == 7
    assert gx.tree.get(state, "count").dtype == jnp.int32
    assert gx.tree.get(state, "mu")["w"].dtype == jnp.float32
    np.testing.assert_array_equal(gx.tree.get(state, "mu")["w"], 0.5)


def test_shapes_are_enough_for_the_parameters():
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), PARAMS)
    tx = gx.sm3(0.1)
    theirs = optax.sm3(0.1).init(PARAMS)
    state = interop.from_optax_state(tx, theirs, shapes)
    back = interop.to_optax_state(tx, state, shapes)
    assert jax.tree.structure(back) == jax.tree.structure(theirs)
    assert [v.shape for v in back[0].mu["w"]] == [(2,), (3,)]


def test_what_galore_does_not_project_has_the_shapes_of_each_library():
    params = PARAMS | {"entry": jnp.ones((1, 1))}  # its projector has the shape (1, 1)
    tx = gx.galore(0.1, rank=1)
    theirs = contrib.galore(0.1, rank=1).init(params)
    state = interop.from_optax_state(tx, theirs, params)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, tx.init(params))
    back = interop.to_optax_state(tx, state, params)
    assert jax.tree.map(jnp.shape, back) == jax.tree.map(jnp.shape, theirs)


def test_wide_slots_take_narrow_ones():
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    with jax.numpy_dtype_promotion("standard"):
        theirs = optax.adam(0.1).init(params)
    state = interop.from_optax_state(gx.adam(0.1), theirs, params)
    assert {x.dtype for x in jax.tree.leaves(state[0].nu)} == {jnp.dtype(jnp.float32)}


def drop(plain):
    del plain["0"]["mu"]["w"]


def add(plain):
    plain["0"]["nu_max"] = np.zeros(3)


def reshape(plain):
    plain["0"]["nu"]["w"] = np.zeros((3, 2))


def real_count(plain):
    plain["0"]["count"] = np.asarray(1.0)


def string(plain):
    plain["0"]["count"] = "seven"


def leaf(plain):
    plain["0"]["mu"] = np.zeros(3)


def tree(plain):
    plain["0"]["mu"]["b"] = {"of": np.zeros(3)}


def chain_of_three(plain):
    plain["2"] = {"count": np.asarray(0)}


@pytest.mark.parametrize(
    "change, error, words",
    [
        (drop, ValueError, r"interop: \[0\]\.mu lacks 'w', which a dict holds"),
        (add, ValueError, r"interop: \[0\] has 'nu_max', which a ScaleByAdamState does not hold"),
        (reshape, ValueError, r"interop: \[0\]\.nu\['w'\] has shape \(3, 2\), expected \(2, 3\)"),
        (real_count, TypeError, r"interop: \[0\]\.count has dtype float\d+, expected int32"),
        (string, TypeError, r"interop: \[0\]\.count is 'seven', expected an array of shape \(\)"),
        (leaf, TypeError, r"interop: \[0\]\.mu is an array of shape \(3,\), expected a dict"),
        (
            tree,
            TypeError,
            r"interop: \[0\]\.mu\['b'\] is a dict of arrays, expected an array of shape",
        ),
        (chain_of_three, ValueError, r"interop: the root has '2', which a tuple does not hold"),
    ],
)
def test_a_conversion_neither_drops_nor_invents_leaves(change, error, words):
    plain = restored(optax.adam(0.1), change)
    with pytest.raises(error, match=words):
        interop.from_optax_state(gx.adam(0.1), plain, PARAMS)


def test_the_state_of_another_call_is_refused_both_ways():
    with pytest.raises(ValueError, match=r"has 'mu', which .*TraceState does not hold|lacks"):
        interop.from_optax_state(gx.sgd(0.1, 0.9), optax.adam(0.1).init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match=r"interop: \[0\] has"):
        interop.to_optax_state(gx.adam(0.1), gx.amsgrad(0.1).init(PARAMS), PARAMS)


def test_sm3_wants_a_vector_for_each_axis():
    theirs = optax.sm3(0.1).init(PARAMS)
    theirs[0].mu["w"].pop()
    with pytest.raises(
        ValueError, match=r"interop: \[0\]\.mu\['w'\] has shape \(2,\), expected \(5,\)"
    ):
        interop.from_optax_state(gx.sm3(0.1), theirs, PARAMS)
    theirs[0].mu["w"] = [jnp.zeros((2, 3))]
    with pytest.raises(ValueError, match=r"interop: \[0\]\.mu\['w'\] must be a list of vectors"):
        interop.from_optax_state(gx.sm3(0.1), theirs, PARAMS)


def test_a_state_that_optax_does_not_have_is_named():
    tx = gx.chain(gx.clip(1.0), gx.ftrl(0.1))
    with pytest.raises(ValueError, match=r"interop: \[1\].* is an? \w+State, which Optax does not"):
        interop.to_optax_state(tx, tx.init(PARAMS), PARAMS)


def test_the_slow_weights_of_plain_parameters_need_a_pair():
    ours, theirs = gx.lookahead(gx.sgd(0.1), 2, 0.5), optax.lookahead(optax.sgd(0.1), 2, 0.5)
    state = theirs.init(optax.LookaheadParams.init_synced(PARAMS))
    with pytest.raises(ValueError, match=r"lacks 'slow'.*give such a pair as params"):
        interop.from_optax_state(ours, state, PARAMS)
    with pytest.raises(ValueError, match=r"which Optax does not have.*LookaheadParams"):
        interop.to_optax_state(ours, ours.init(PARAMS), PARAMS)
    pair = gx.LookaheadParams.init_synced(PARAMS)
    there = interop.to_optax_state(ours, interop.from_optax_state(ours, state, pair), pair)
    assert jax.tree.structure(there) == jax.tree.structure(state)


class TraceState(NamedTuple):  # a user's parameters, called as a state is
    trace: Any


def test_named_tuples_of_the_parameters_stay():
    params = [TraceState(PARAMS), (jnp.ones(2),)]
    tx = gx.trace(0.9)
    there = interop.to_optax_state(tx, tx.init(params), params)
    assert type(there) is optax.TraceState
    assert jax.tree.structure(there.trace) == jax.tree.structure(params)


def test_an_optimizer_of_optax_inside_ours_keeps_its_classes():
    tx = gx.chain(gx.trace(0.9), optax.adam(0.1))
    state = tx.init(PARAMS)
    there = interop.to_optax_state(tx, state, PARAMS)
    assert type(there[0]) is optax.TraceState
    assert type(there[1][0]) is optax.ScaleByAdamState
    same = interop.from_optax_state(tx, there, PARAMS)
    assert jax.tree.structure(same) == jax.tree.structure(state)

"""Algebraic laws, on trees and numbers that Hypothesis chooses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import gradxform as gx
from tests.public import names_of

pytestmark = pytest.mark.numeric

finite = st.floats(-100, 100, width=32, allow_subnormal=False)
arrays = hnp.arrays(np.float32, st.sampled_from([(3,), (2, 2), ()]), elements=finite)
trees = st.fixed_dictionaries({"a": arrays, "b": arrays}).map(
    lambda tree: jax.tree.map(jnp.asarray, tree)
)
rates = st.floats(0.0625, 2.0, width=32)
PARTS = [
    gx.trace(0.9),
    gx.scale_by_adam(),
    gx.clip(1.0),
    gx.clip_by_global_norm(1.0),
    gx.scale(-0.1),
    gx.add_decayed_weights(0.1, gx.ndim_at_least(1)),
    gx.scale_by_trust_ratio(),
    gx.centralize(),
    gx.ema(0.5),
]
parts = st.lists(st.sampled_from(PARTS), min_size=3, max_size=3)


def update(tx, grads, params, steps=2):
    state = tx.init(params)
    for _ in range(steps):
        out, state = tx.update(grads, state, params)
    return out


def assert_equal(a, b, rtol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), a, b)


@settings(max_examples=25)
@given(parts, trees)
def test_chains_are_associative(three, tree):
    a, b, c = three
    flat = update(gx.chain(a, b, c), tree, tree)
    assert_equal(flat, update(gx.chain(gx.chain(a, b), c), tree, tree), 0)
    assert_equal(flat, update(gx.chain(a, gx.chain(b, c)), tree, tree), 0)


@settings(max_examples=25)
@given(parts, trees)
def test_a_chain_applies_its_parts_one_after_the_other(three, tree):
    states = [tx.init(tree) for tx in three]
    for _ in range(2):
        out = tree
        for i, tx in enumerate(three):
            out, states[i] = tx.update(out, states[i], tree)
    assert_equal(out, update(gx.chain(*three), tree, tree), 1e-5)


@settings(max_examples=15)
@given(st.sampled_from(PARTS), trees)
def test_identity_is_neutral(tx, tree):
    expected = update(tx, tree, tree)
    assert_equal(update(gx.chain(gx.identity(), tx), tree, tree), expected, 0)
    assert_equal(update(gx.chain(tx, gx.identity()), tree, tree), expected, 0)


@settings(max_examples=20)
@given(trees, rates)
def test_clipping_bounds_and_is_idempotent(tree, limit):
    tx = gx.clip_by_global_norm(limit)
    once = update(tx, tree, tree, 1)
    assert float(gx.global_norm(once)) <= limit * (1 + 1e-5)
    assert_equal(update(tx, once, tree, 1), once, 1e-5)


@settings(max_examples=20)
@given(trees, rates)
def test_the_norm_is_homogeneous(tree, factor):
    scaled = jax.tree.map(lambda x: x * np.float32(factor), tree)
    np.testing.assert_allclose(
        gx.global_norm(scaled), factor * float(gx.global_norm(tree)), rtol=1e-4, atol=1e-6
    )


@settings(max_examples=15)
@given(st.sampled_from(PARTS[:6]), trees)
def test_a_mask_and_its_complement_make_the_whole(tx, tree):
    if tx.locality == "tree":
        return
    mask = gx.path_matches("a")
    both = gx.chain(gx.masked(tx, mask), gx.masked(tx, ~mask))
    assert_equal(update(both, tree, tree), update(tx, tree, tree), 1e-6)
    split = gx.partition({0: tx, 1: tx}, gx.label_by((0, mask), (1, True)))
    assert_equal(update(split, tree, tree), update(tx, tree, tree), 1e-6)


masks = st.recursive(
    st.sampled_from([gx.ndim_at_least(1), gx.ndim_at_least(2), gx.path_matches("a")]),
    lambda m: st.one_of(
        st.tuples(m, m).map(lambda ab: ab[0] & ab[1]),
        st.tuples(m, m).map(lambda ab: ab[0] | ab[1]),
        m.map(lambda a: ~a),
    ),
    max_leaves=5,
)


@settings(max_examples=50)
@given(masks, masks, trees)
def test_masks_obey_de_morgan(a, b, tree):
    assert (~(a & b))(tree) == (~a | ~b)(tree)
    assert (~(a | b))(tree) == (~a & ~b)(tree)
    assert (~~a)(tree) == a(tree)
    assert eval(repr(a), names_of(gx)) == a


@settings(max_examples=20)
@given(st.integers(1, 4), trees)
def test_accumulating_equal_gradients_is_one_step(k, tree):
    tx = gx.MultiSteps(gx.adam(0.1), k)
    state = tx.init(tree)
    for _ in range(k):
        out, state = tx.update(tree, state, tree)
    assert_equal(out, update(gx.adam(0.1), tree, tree, 1), 1e-4)

"""Beside the installed Optax: aggregations of the gradients of single examples."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.experimental import aggregating as ours
from gradxform.testing import example_params

optax = pytest.importorskip("optax")
theirs = pytest.importorskip("optax.experimental").aggregating

pytestmark = pytest.mark.numeric

STEPS = 30
TREE = {"w": (3, 4), "b": (4,), "s": ()}


def drawn(lead=(), seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=(*lead, *shape)), dtype) for k, shape in TREE.items()}


PARAMS = drawn()


def clipped(lib):
    """Clip every entry of every example's gradient."""
    return lib.stateless(lambda updates, _: jax.tree.map(lambda g: jnp.clip(g, -1, 1), updates))


def mean_of(lib, library):
    init = lib.init_empty_state
    mean = functools.partial(jax.tree.map, lambda g: jnp.mean(g, 0))
    return library.Aggregator(init=init, update=lambda g, s, p=None: (mean(g), s))


# How each library makes it, and the axes in front of a gradient.
ROWS = {
    "mean": (lambda gx, lib: lib.average_per_element_updates(), (5,)),
    "mean over two axes": (lambda gx, lib: lib.average_per_element_updates((0, 1)), (2, 3)),
    "accumulated": (lambda gx, lib: lib.accumulate_avg_updates(3), ()),
    "accumulated once": (lambda gx, lib: lib.average_incrementally_updates(None, 1), ()),
    "both": (lambda gx, lib: lib.average_incrementally_updates(0, 4), (5,)),
    "an optimizer of clipped means": (
        lambda gx, lib: lib.process(
            clipped(gx), lib.average_incrementally_updates(0, 3), gx.adam(0.1)
        ),
        (5,),
    ),
    "functions": (lambda gx, lib: lib.process(clipped(gx), mean_of(gx, lib), gx.sgd(0.1)), (5,)),
    "an accumulator": (
        lambda gx, lib: lib.process(gx.identity(), lib.accumulate_avg_updates(2), gx.adam(0.1)),
        (),
    ),
    "mean and variance": (lambda gx, lib: lib.add_mean_variance_to_opt(gx.adam(0.1)), (5,)),
    "mean and variance, accumulated": (
        lambda gx, lib: lib.add_mean_variance_to_opt(gx.sgd(0.1, 0.9), 0.5, 0, 3),
        (5,),
    ),
}


@pytest.mark.parametrize("name", list(ROWS))
def test_an_aggregation_makes_the_steps_of_optaxs(name):
    make, lead = ROWS[name]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        tx, reference = make(gx, ours), make(optax, theirs)
        is_aggregator = isinstance(reference, theirs.Aggregator)
        assert isinstance(tx, ours.Aggregator) == is_aggregator
        state, expected_state = tx.init(PARAMS), reference.init(PARAMS)
        update, expected_update = jax.jit(tx.update), jax.jit(reference.update)
        params = PARAMS
        for step in range(STEPS):
            grads = drawn(lead, seed=step)
            updates, state = update(grads, state, params)
            expected, expected_state = expected_update(grads, expected_state, params)
            close(updates, expected)
            params = gx.apply_updates(params, updates)
        paths = [
            [str(p) for p, _ in jax.tree_util.tree_flatten_with_path(x)[0]]
            for x in (state, expected_state)
        ]
        assert paths[0] == paths[1]  # a checkpoint of one restores in the other
        close(jax.tree.leaves(state), jax.tree.leaves(expected_state))


def close(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        b = np.asarray(b, np.float64)
        atol = 3e-5 * max(1.0, np.max(np.abs(b), initial=0))
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=3e-5, atol=atol)


def test_the_moments_are_those_of_all_elements_of_all_batches():
    tx = ours.get_per_element_mean_and_sum_sq_diff_grads(0, 3)
    state = tx.init(PARAMS)
    batches = [drawn((4,), seed=i) for i in range(3)]
    for grads in batches:
        (mean, aux), state = jax.jit(tx.update)(grads, state)
    assert aux["sample_size"] == 12 and state.ready
    for k in TREE:
        rows = np.concatenate([np.asarray(b[k], np.float64) for b in batches])
        np.testing.assert_allclose(mean[k], rows.mean(0), atol=1e-6)
        total = ((rows - rows.mean(0)) ** 2).sum(0)
        np.testing.assert_allclose(aux["sum_sq_diff_grads"][k], total, rtol=1e-5)


def test_the_averages_have_no_bias():
    tx = ours.add_mean_variance_to_opt(gx.sgd(0.1), ema_decay=0.9)
    state = tx.init(PARAMS)
    means, variances = ours.get_unbiased_mean_and_variance_ema(state)
    assert not any(np.any(x) for x in jax.tree.leaves((means, variances)))  # zeros, not NaN
    grads = drawn((6,))
    for _ in range(4):
        _, state = tx.update(grads, state, PARAMS)
    means, variances = ours.get_unbiased_mean_and_variance_ema(state)
    for k in TREE:
        np.testing.assert_allclose(means[k], np.mean(grads[k], 0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(variances[k], np.var(grads[k], 0, ddof=1), rtol=1e-4)


def test_one_element_alone_has_a_variance_of_0():
    tx = ours.add_mean_variance_to_opt(gx.sgd(0.1))
    _, state = tx.update(drawn((1,)), tx.init(PARAMS), PARAMS)
    _, variances = ours.get_unbiased_mean_and_variance_ema(state)
    assert not any(np.any(x) for x in jax.tree.leaves(variances))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_state_is_a_carry_and_sums_in_float32(dtype):
    params = example_params(dtype)
    for tx in (
        ours.add_mean_variance_to_opt(gx.adam(0.1), accumulation_steps=2),
        ours.process(gx.clip(1.0), ours.average_incrementally_updates(0, 2), gx.adam(0.1)),
    ):
        grads = jax.tree.map(lambda p: jnp.ones((4, 3, *p.shape), p.dtype), params)

        def step(carry, g, tx=tx):
            params, state = carry
            updates, state = tx.update(g, state, params)
            assert all(
                jax.tree.leaves(jax.tree.map(lambda u, p: u.dtype == p.dtype, updates, params))
            )
            return (gx.apply_updates(params, updates), state), None

        (_, state), _ = jax.lax.scan(step, (params, tx.init(params)), grads)
        floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert floats and all(x.dtype == jnp.float32 for x in floats)


def test_a_bad_batch_is_not_multiplied_by_zero():
    tx = ours.process(gx.identity(), ours.accumulate_avg_updates(2), gx.sgd(0.1, 0.9))
    state = tx.init(PARAMS)
    bad = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), PARAMS)
    for grads in (PARAMS, bad, PARAMS, PARAMS):
        updates, state = tx.update(grads, state, PARAMS)
    # The second step is of good batches, but the momentum has seen the bad one.
    assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(updates))
    guarded = ours.process(
        gx.identity(), ours.accumulate_avg_updates(2), gx.apply_if_finite(gx.sgd(0.1, 0.9), 5)
    )
    state = guarded.init(PARAMS)
    for grads in (PARAMS, bad, PARAMS, PARAMS):
        updates, state = guarded.update(grads, state, PARAMS)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((updates, state)))


class ReadyState(NamedTuple):
    ready: jax.Array


def test_what_an_aggregator_emits_before_it_is_ready_is_not_applied():
    def update(updates, state, params=None):
        return jax.tree.map(lambda g: g[0], updates), ReadyState(~state.ready)

    first = ours.Aggregator(lambda params: ReadyState(jnp.asarray(True)), update)
    tx = ours.process(gx.identity(), first, gx.sgd(0.1))
    state, grads = tx.init(PARAMS), drawn((2,))
    updates, state = tx.update(grads, state, PARAMS)
    assert not any(np.any(u) for u in jax.tree.leaves(updates))
    updates, state = tx.update(grads, state, PARAMS)
    np.testing.assert_allclose(updates["w"], -0.1 * grads["w"][0], rtol=1e-6)


def test_an_aggregation_is_a_value():
    tx = ours.add_mean_variance_to_opt(gx.adam(0.1), 0.5, [0, 1])
    again = ours.add_mean_variance_to_opt(gx.adam(0.1), 0.5, (0, 1))
    assert tx == again and hash(tx) == hash(again)
    assert gx.from_config(gx.to_config(tx)) == tx
    assert gx.metrics(tx.init(PARAMS))["ema_decay"] == 0.5


AVERAGE = ours.average_per_element_updates()
REFUSED = [
    (lambda: ours.accumulate_avg_updates(0), "accumulation_steps must be at least 1, got 0."),
    (lambda: ours.average_per_element_updates(0.5), "per_elt_axis must be an"),
    (lambda: ours.average_per_element_updates((0, 0)), "a tuple of different axes, got (0, 0)."),
    (
        lambda: AVERAGE.update({"s": jnp.ones(())}, AVERAGE.init(PARAMS)),
        "average_per_element_updates: gradient of ['s'] has shape (), without the axes (0,)",
    ),
    (
        lambda: ours.get_batch_size_from_per_elt_updates({"a": jnp.ones(2), "b": jnp.ones(3)}, 0),
        "must have the same number of elements, got 2, 3.",
    ),
    (
        lambda: ours.track_per_element_mean_and_variance_with_ema(1.5),
        "ema_decay must be in [0, 1), got 1.5.",
    ),
    (
        lambda: ours.get_unbiased_mean_and_variance_ema(gx.adam(0.1).init(PARAMS)),
        "state must hold a PerElementMeanAndVarianceEMAState",
    ),
    (lambda: ours.process(gx.clip, AVERAGE, gx.sgd(0.1)), "process: preprocessor"),
    (
        lambda: ours.process(gx.clip(1.0), AVERAGE, gx.sgd(0.1)).update(drawn((2,)), (), PARAMS),
        "process: the state must be a tuple of 3 states, got ().",
    ),
    (
        lambda: (tx := ours.process(gx.clip(1.0), AVERAGE, gx.sgd(0.1), True)).update(
            drawn((2,)), tx.init(PARAMS), PARAMS
        ),
        "process: average_per_element_updates must return a pair",
    ),
]


@pytest.mark.parametrize("call, words", REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_wrong_input_is_refused(call, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert words in str(caught.value)

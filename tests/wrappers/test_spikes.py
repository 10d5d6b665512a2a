"""Guards against spikes: what they count, what they let pass, and conditions beside Optax's."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform.testing import example_params, random_gradients
from gradxform.testing.promise import check_close
from tests import references as ref

pytestmark = pytest.mark.numeric

STEPS = 30
P = {"w": jnp.asarray([3.0, 4.0]), "b": jnp.asarray(0.0)}  # of norm 5
SGD = gx.sgd(1.0)


def scaled(size):
    return {"w": size * P["w"], "b": P["b"]}


def run(tx, sizes, **told):
    """The norm of every update for gradients of norm 5 times `sizes`, and the last state."""
    state, norms = tx.init(P), []
    step = jax.jit(tx.update)
    for t, size in enumerate(sizes):
        updates, state = step(scaled(size), state, P, **{k: v[t] for k, v in told.items()})
        norms.append(float(gx.global_norm(updates)))
    return np.asarray(norms), state


# ---------------------------------------------------------------------------------------- clipping


def test_zclip_keeps_the_statistics_of_what_it_emits():
    sizes = np.random.default_rng(0).normal(1, 0.1, STEPS)
    sizes[25:28] = 9, 20, 3
    tx = gx.zclip(warmup_steps=20)
    norms, state = run(tx, sizes)
    assert int(state.total_clipped) == np.sum(norms < 5 * sizes * 0.999) >= 3
    assert norms[25:28].max() < 1.5 * norms[:20].max()
    spread = ref.zclip(0.97, 2.5, 20, 1e-6).start([])
    for x in norms.astype(np.float64):
        spread.add(x)
    np.testing.assert_allclose([state.mean, state.var], [spread.mean, spread.var], rtol=1e-3)


def test_the_higher_a_spike_the_closer_to_the_mean_it_is_clipped():
    warm = np.random.default_rng(0).normal(1, 0.1, 25)
    low, high, highest = (run(gx.zclip(), [*warm, size])[0][-1] for size in (2, 20, 1e30))
    _, state = run(gx.zclip(), warm)
    assert low > high > highest
    np.testing.assert_allclose(highest, 0, atol=1e-6)  # its norm is infinite, as are its squares
    np.testing.assert_allclose(high, state.mean, rtol=0.05)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [3, 27])
def test_a_norm_that_is_not_finite_spoils_no_statistics(bad, place):
    sizes = np.random.default_rng(0).normal(1, 0.1, STEPS)
    sizes[place] = bad
    for tx in (gx.zclip(), gx.adagc(warmup_steps=20)):
        norms, state = run(tx, sizes)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
        assert not np.isfinite(norms[place]) and np.isfinite(np.delete(norms, place)).all()


def test_adagc_clips_every_array_by_its_own_history():
    tx = gx.adagc(math.inf, warmup_steps=2)
    state, g = tx.init(P), {"w": P["w"], "b": jnp.asarray(1.0)}
    for _ in range(3):
        _, state = tx.update(g, state, P)
    updates, state = tx.update({"w": 10 * P["w"], "b": g["b"]}, state, P)
    np.testing.assert_allclose(gx.global_norm(updates["w"]), 1.05 * 5, rtol=1e-6)
    np.testing.assert_allclose(updates["b"], 1)
    assert jax.tree.map(int, state.total_clipped) == {"w": 1, "b": 0}


def test_an_array_without_gradients_in_the_warm_up_is_not_silenced():
    tx = gx.adagc(math.inf, warmup_steps=2)
    state = tx.init(P)
    for _ in range(4):
        _, state = tx.update(P, state, P)  # b has a gradient of 0
    for g, expected in ((7, 7), (0, 0), (70, 1.05 * 7)):
        updates, state = tx.update({"w": P["w"], "b": jnp.asarray(g, jnp.float32)}, state, P)
        np.testing.assert_allclose(updates["b"], expected, rtol=1e-6)


@pytest.mark.parametrize("bound", [6.0, math.inf])
def test_a_large_gradient_becomes_zeros_and_the_optimizer_still_runs(bound):
    tx = gx.chain(gx.grad_norm_to_clip_to_zero(bound), gx.trace(0.5))
    norms, state = run(tx, [1, np.nan, np.inf, 1e30, 2])
    last = 10 if bound == math.inf else 0
    expected = [5, 2.5, 1.25, 0.625, last + 0.3125]
    np.testing.assert_allclose(norms, expected, rtol=1e-6)
    assert int(state[0].total_zeroed) == (3 if last else 4)


# ---------------------------------------------------------------------------------------- skipping


def test_spikes_of_the_loss_are_skipped_and_counted():
    losses = 2 + 0.1 * np.random.default_rng(0).normal(size=STEPS)
    losses[[3, 26, 28]] = np.nan, 9, np.inf
    norms, state = run(gx.skip_loss_spikes(gx.adam(0.1)), np.ones(STEPS), value=losses)
    np.testing.assert_array_equal(np.flatnonzero(norms == 0), [3, 26, 28])
    assert int(state.total_skipped) == 3 and int(state.consecutive_skips) == 0
    assert int(state.count) == int(state.inner_state[0].count) == STEPS - 3
    np.testing.assert_allclose(state.mean, 2, atol=0.1)


def test_a_loss_that_stays_high_is_a_new_level():
    losses = [*(2 + 0.1 * np.random.default_rng(0).normal(size=25)), *[9] * 4, np.nan, 9.1]
    tx = gx.skip_loss_spikes(SGD, max_consecutive_skips=2)
    norms, state = run(tx, np.ones(31), value=losses)
    np.testing.assert_array_equal(np.flatnonzero(norms == 0), [25, 26, 29])
    np.testing.assert_allclose(state.mean, 9, atol=0.1)
    assert int(state.count) == 3


def test_a_loss_that_is_not_finite_is_never_accepted():
    tx = gx.skip_loss_spikes(SGD, max_consecutive_skips=0)
    norms, state = run(tx, np.ones(5), value=[np.nan] * 4 + [1.0])
    np.testing.assert_allclose(norms, [0, 0, 0, 0, 5])
    assert int(state.total_skipped) == 4


def test_a_multiple_of_a_negative_mean_means_nothing():
    tx = gx.skip_loss_spikes(SGD, math.inf, 2.0, warmup_steps=2)
    norms, _ = run(tx, np.ones(5), value=[-1.0, -1.0, -0.1, -3.0, -0.2])
    np.testing.assert_allclose(norms, 5)


def test_inner_parts_get_the_loss_too():
    tx = gx.skip_loss_spikes(gx.momo(1.0))
    ours, _ = run(tx, np.ones(4), value=[2.0, 1.0, 1.5, 1.2])
    theirs, _ = run(gx.momo(1.0), np.ones(4), value=[2.0, 1.0, 1.5, 1.2])
    np.testing.assert_allclose(ours, theirs)


# -------------------------------------------------------------------------------------- conditions


def at_even_steps(step, **extra):
    return step % 2 == 0


def while_it_is_high(step, *, value):
    return value > 0.2


@pytest.mark.parametrize("form", [None, "forwarding"])
@pytest.mark.parametrize("name", ["conditionally_mask", "conditionally_transform"])
def test_conditions_are_those_of_optax(name, form):
    condition, options = (at_even_steps, ()) if form is None else (while_it_is_high, (True,))
    params = example_params()
    grads = random_gradients(params, STEPS)
    values = np.random.default_rng(3).random(STEPS).astype(np.float32)
    ends = []
    for lib in (gx, optax):
        tx = getattr(lib, name)(lib.adamw(0.1), condition, *options)
        state, p, step = tx.init(params), params, jax.jit(tx.update)
        with jax.numpy_dtype_promotion("standard"):  # which Optax needs
            for g, value in zip(grads, values, strict=True):
                updates, state = step(g, state, p, value=value)
                p = gx.apply_updates(p, updates)
        ends.append((p, state))
    (ours, state), (theirs, their_state) = ends
    check_close("params", ours, theirs, 1e-4)
    assert type(state).__name__ == type(their_state).__name__
    assert state._fields == their_state._fields
    tx = getattr(gx, name)(gx.adamw(0.1), condition, *options)
    check_close("state", gx.from_optax_state(tx, their_state, params), state, 1e-4)
    assert int(state.step) == STEPS


def test_a_step_without_the_inner_transform_does_not_touch_its_state():
    nan = {"w": jnp.full(2, jnp.nan), "b": jnp.asarray(jnp.nan)}
    for name, kept in (("conditionally_mask", 0.0), ("conditionally_transform", np.nan)):
        tx = getattr(gx, name)(gx.adam(0.1), lambda step: step > 0)
        first = tx.init(P)
        updates, state = tx.update(nan, first, P)
        np.testing.assert_array_equal(updates["w"], [kept, kept])
        jax.tree.map(np.testing.assert_array_equal, state.inner_state, first.inner_state)


# zclip clips all arrays together; adagc only one of the two, at one of four updates.
FRACTIONS = [(gx.zclip(warmup_steps=2), 0.25), (gx.adagc(math.inf, warmup_steps=2), 0.125)]


@pytest.mark.parametrize(("clip", "fraction"), FRACTIONS)
def test_metrics_show_which_part_of_the_updates_was_clipped(clip, fraction):
    tx = gx.chain(clip, gx.scale(-0.1))
    params = {"w": jnp.ones(3), "b": jnp.ones(2)}
    state = tx.init(params)
    assert gx.metrics(state)["clip_fraction"] == 0
    for size in (1.0, 1.1, 1.0, 50.0):
        grads = {"w": jnp.full(3, size), "b": jnp.ones(2)}
        _, state = tx.update(grads, state, params)
    assert gx.metrics(state)["clip_fraction"] == fraction

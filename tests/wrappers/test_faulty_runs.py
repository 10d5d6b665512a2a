"""A run with faulty batches, under guards, ends where the run without those batches ends.

The faults: a NaN, an infinity, a spike of the loss or of the gradient, a micro-batch that is
missing. On one device, and on four replicas, of which only one sees the fault.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from tests.distributed.modes import replicas

pytestmark = pytest.mark.numeric

STEPS, N = 24, 4
SHAPE = (3, 2)
INNER = gx.adamw(0.05, weight_decay=0.1)
# Time of a batch: what is wrong with it.
FAULTS = {5: "nan", 10: "inf", 16: "spike", 17: "spike", 21: "nan"}
GOOD = [t for t in range(STEPS) if t not in FAULTS]


def batches(replicated):
    """Gradients [STEPS, ..., *SHAPE] and losses [STEPS, ...]; the fault is on one replica."""
    rng, n = np.random.default_rng(0), (N,) if replicated else ()
    grads = rng.normal(size=(STEPS, *n, *SHAPE)).astype(np.float32)
    losses = (2 + 0.1 * rng.normal(size=(STEPS, *n))).astype(np.float32)
    for t, fault in FAULTS.items():
        one = (t, t % N) if replicated else (t,)
        if fault == "spike":
            losses[one], grads[one] = 90, 1e6
        else:
            grads[(*one, 0, 1)] = losses[one] = {"nan": np.nan, "inf": np.inf}[fault]
    return grads, losses


def run(tx, grads, mode=None, **told):
    """The last parameters, of every replica, and the last state."""

    def step(params, state, g, told):
        updates, state = tx.update({"w": g}, state, params, **told)
        return gx.apply_updates(params, updates), state

    params, init, place = {"w": jnp.ones(SHAPE)}, tx.init, lambda x: x
    if mode is None:
        step = jax.jit(step)
    else:
        r = replicas(mode, N)
        params, init, place, step = r.replicate(params), r.wrap(init), r.place, r.wrap(step)
    state = init(params)
    for t, g in enumerate(grads):
        params, state = step(params, state, place(g), place({k: v[t] for k, v in told.items()}))
    return np.asarray(params["w"]), jax.tree.map(np.asarray, state)


def with_everything(inner):
    """A guard against spikes of the loss around one against what is not finite."""
    return gx.skip_loss_spikes(gx.apply_if_finite(inner, 3), warmup_steps=5)


def close(got, expected):
    np.testing.assert_allclose(got, np.broadcast_to(expected, got.shape), rtol=1e-5, atol=1e-6)


def expected_of(grads):
    """The parameters after plain steps with these gradients."""
    return run(INNER, grads)[0]


@pytest.fixture(params=[None, "shard_map", "vmap", "pmap"])
def mode(request):
    """One device, or four replicas in that way."""
    if request.param is not None:
        request.getfixturevalue("eight_devices")
    return request.param


def exchanging(mode):
    return INNER if mode is None else gd.tower(INNER, "replica")


def mean(grads, mode):
    return grads if mode is None else grads.mean(1)


def test_errors_are_forgiven_as_often_as_the_guard_says_and_anew_after_a_good_step():
    tx, params = gx.apply_if_finite(gx.sgd(1.0), 2), {"w": jnp.zeros(2)}
    state, seen = tx.init(params), []
    for g in (np.nan, np.inf, 1.0, np.nan, np.nan, np.nan, 1.0, np.nan):
        updates, state = tx.update({"w": jnp.full(2, g)}, state, params)
        seen.append((float(updates["w"][0]), int(state.notfinite_count)))
    nan = seen[5][0]
    assert np.isnan(nan) and [n for _, n in seen] == [1, 2, 0, 1, 2, 3, 0, 1]
    assert [u for u, _ in seen[:5] + seen[6:]] == [0, 0, -1, 0, 0, -1, 0]


def test_guards_skip_exactly_the_faulty_batches(mode):
    grads, losses = batches(mode is not None)
    params, state = run(with_everything(exchanging(mode)), grads, mode, value=losses)
    close(params, expected_of(mean(grads, mode)[GOOD]))
    assert (state.total_skipped == len(FAULTS)).all()
    assert (state.inner_state.total_notfinite == 0).all()


def test_a_gradient_that_is_too_large_counts_as_zeros(mode):
    grads, _ = batches(mode is not None)
    descent = gx.sgd(0.1) if mode is None else gd.tower(gx.sgd(0.1), "replica")
    params, state = run(gx.chain(gx.grad_norm_to_clip_to_zero(100.0), descent), grads, mode)
    used = np.where((np.abs(grads) < 1e3).all((-1, -2), keepdims=True), grads, 0)
    close(params, 1 - 0.1 * mean(used, mode).sum(0))
    assert np.sum(state[0].total_zeroed) == len(FAULTS)


def is_low(step, value):
    return value < 50


@pytest.mark.parametrize("kind", ["conditionally_mask", "conditionally_transform"])
def test_a_condition_on_the_loss_holds_on_all_replicas_or_on_none(mode, kind):
    grads, losses = batches(mode is not None)
    tx = gx.chain(getattr(gx, kind)(exchanging(mode), is_low, True), gx.zero_nans())
    params, state = run(tx, grads, mode, value=losses)
    if kind == "conditionally_mask":
        close(params, expected_of(mean(grads, mode)[GOOD]))
    assert (gx.tree.get(state[0].inner_state, "count") == len(GOOD)).all()
    assert (state[0].step == STEPS).all()


@pytest.mark.parametrize("every", [2, 3])
def test_accumulation_leaves_out_the_faulty_micro_batches(mode, every):
    grads, losses = batches(mode is not None)
    tx = gx.skip_loss_spikes(gx.accumulate(exchanging(mode), every), warmup_steps=5)
    params, state = run(tx, grads, mode, value=losses)
    kept = mean(grads, mode)[GOOD]  # the guard outside shifts the steps: it skips the batch
    whole = len(GOOD) // every * every
    close(params, expected_of(kept[:whole].reshape(-1, every, *SHAPE).mean(1)))
    assert (state.inner_state.gradient_step == len(GOOD) // every).all()


@pytest.mark.parametrize("every", [1, 2, 4])
def test_steps_stay_where_they_are_without_their_faulty_micro_batches(mode, every):
    """Also where some are missing: of weight 0, with anything in place of a gradient."""
    grads, _ = batches(mode is not None)
    weights = np.random.default_rng(1).integers(1, 5, grads.shape[: -len(SHAPE)])
    weights = weights.astype(np.float32)
    missing = [8, 9, 16, 17]  # the spikes too; of two steps of two micro-batches, both
    weights[missing] = 0
    grads[8] = np.nan
    params, state = run(
        gx.accumulate(exchanging(mode), every, "weighted"), grads, mode, weight=weights
    )
    bad = {t for t, fault in FAULTS.items() if fault != "spike"} | set(missing)
    steps = []
    for start in range(0, STEPS, every):
        used = [t for t in range(start, start + every) if t not in bad]
        if used:  # the mean by weight of every replica, then that over the replicas
            w = weights[used][..., None, None]
            steps.append(mean((w * grads[used]).sum(0, keepdims=True) / w.sum(0), mode)[0])
    close(params, expected_of(np.stack(steps)))
    assert (state.gradient_step == len(steps)).all() and (state.total_skipped == 3).all()


def test_a_step_that_one_replica_cannot_take_leaves_the_others_no_weight():
    """The first replica has no weight in the first step, so that no replica takes it."""
    tx = gx.accumulate(gd.tower(gx.sgd(1.0), "replica"), 2, "weighted")
    grads = np.asarray([[1.0, 2], [3, 4], [5, 6], [7, 8]], np.float32)[..., None, None]
    weights = np.asarray([[0, 5], [0, 5], [1, 1], [1, 3]], np.float32)
    grads, weights = (np.concatenate([x, x], 1) for x in (grads, weights))
    params, state = run(tx, grads * np.ones(SHAPE, np.float32), "vmap", weight=weights)
    close(params, 1 - (6 + 7.5) / 2)
    assert (state.gradient_step == 1).all()


def test_multi_steps_waits_for_another_micro_batch(mode):
    grads, _ = batches(mode is not None)
    tx = gx.MultiSteps(exchanging(mode), 2, should_skip_update_fn=gx.skip_not_finite)
    params, _ = run(tx, grads, mode)
    kept = [t for t in range(STEPS) if FAULTS.get(t) not in ("nan", "inf")]
    used = mean(grads, mode)[kept][: len(kept) // 2 * 2]
    close(params, expected_of(used.reshape(-1, 2, *SHAPE).mean(1)))


def test_clipping_lets_a_run_with_spikes_go_on(mode):
    """Not to the same place, but near it: what is clipped moves as little as any other step."""
    grads, _ = batches(mode is not None)
    tower = gx.identity() if mode is None else gd.tower(gx.identity(), "replica")
    tx = gx.apply_if_finite(gx.chain(tower, gx.zclip(warmup_steps=5), gx.sgd(0.1)), 9)
    params, state = run(tx, grads, mode)
    plain = run(gx.sgd(0.1), mean(grads, mode)[GOOD])[0]
    largest = 0.1 * np.linalg.norm(mean(grads, mode)[GOOD], axis=(1, 2)).max()
    assert (np.linalg.norm((params - plain).reshape(-1, 6), axis=1) < 2 * 2 * largest).all()
    assert (state.inner_state[1].total_clipped >= 2).all()

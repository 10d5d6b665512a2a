"""Conditions around what exchanges: one NaN on one replica neither hangs nor poisons the others."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
import gradxform.distributed as gd
from tests.distributed.modes import MODES, replicas
from tests.environment import limit

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N, SHAPE = 4, (3, 2)
SGD = gx.sgd(0.5)


def in_time(work):
    """Return the result of `work`; replicas that wait for each other forever fail the test."""
    done = []

    def run():
        try:
            done.append((work(), None))
        except BaseException as error:  # raised below, where the test sees it
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit(40, 120))
    assert done, "the replicas wait for each other"
    made, error = done[0]
    if error is not None:
        raise error
    return made


def gradients(steps, bad=()):
    """Local gradients [steps, N, ...]; `bad` are the pairs of step and replica with a NaN."""
    grads = np.random.default_rng(0).normal(size=(steps, N, *SHAPE)).astype(np.float32)
    for t, i in bad:
        grads[t, i, 0, 0] = np.nan
    return grads


def run(tx, mode, grads, **told):
    """The parameters after every step, and the last state."""

    def work():
        with jax.numpy_dtype_promotion("standard"):  # which Optax needs; it is this thread's own
            return steps()

    def steps():
        r = replicas(mode, N)
        params = r.replicate({"w": jnp.zeros(SHAPE)})
        state = r.wrap(tx.init)(params)

        def step(params, state, g, told):
            updates, state = tx.update({"w": g}, state, params, **told)
            return gx.apply_updates(params, updates), state

        step, history = r.wrap(step), []
        for t, g in enumerate(grads):
            more = {k: np.asarray(v[t]) for k, v in told.items()}
            params, state = step(params, state, r.place(g), r.place(more))
            history.append(np.asarray(params["w"]))
        return np.stack(history), jax.tree.map(np.asarray, state)

    return in_time(work)


def without(steps, skipped):
    return [t for t in range(steps) if t not in skipped]


TOGETHER = {
    "tower": gd.tower(SGD, "replica"),
    "sync_replicas": gd.sync_replicas(SGD, "replica"),
    "zero1": gd.zero1(SGD, "replica"),
}


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("inner", list(TOGETHER))
def test_one_bad_gradient_keeps_all_from_stepping(inner, mode):
    grads = gradients(4, [(1, 2)])
    params, state = run(gx.apply_if_finite(TOGETHER[inner], 3), mode, grads)
    expected = -0.5 * grads[without(4, [1])].mean(1).sum(0)
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)
    np.testing.assert_array_equal(params[1], params[0])
    assert (state.total_notfinite == 1).all() and state.last_finite.all()


@pytest.mark.parametrize("mode", list(MODES))
def test_replicas_that_average_skip_a_step_together(mode):
    grads = gradients(6, [(1, 0), (3, 2)])
    tx = gx.apply_if_finite(gd.model_average(SGD, "replica", period=2), 3)
    params, state = run(tx, mode, grads)
    v = np.zeros((N, *SHAPE))
    for n, t in enumerate(without(6, [1, 3]), 1):
        v = v - 0.5 * grads[t]
        v = np.broadcast_to(v.mean(0), v.shape) if n % 2 == 0 else v
        np.testing.assert_allclose(params[t], v, rtol=1e-5, atol=1e-6)
    assert np.shape(state.inner_state.schedule_step) == ()  # one count for all
    assert int(state.inner_state.schedule_step) == 4 and int(state.inner_state.global_step) == 2


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("inner", ["tower", "model_average"])
def test_a_micro_batch_that_one_replica_skips_counts_for_none(inner, mode):
    grads = gradients(5, [(1, 3)])
    kinds = {
        "tower": gd.tower(SGD, "replica"),
        "model_average": gd.model_average(SGD, "replica", period=1),
    }
    tx = gx.MultiSteps(kinds[inner], 2, should_skip_update_fn=gx.skip_not_finite)
    params, state = run(tx, mode, grads)
    used = grads[without(5, [1])]
    expected = -0.5 * (used[:2].mean(0) + used[2:].mean(0)).mean(0)
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)
    np.testing.assert_array_equal(params[1], np.zeros((N, *SHAPE)))
    assert (state.mini_step == 0).all() and (state.gradient_step == 2).all()


@pytest.mark.parametrize("mode", list(MODES))
def test_patience_ends_on_all_replicas_at_once(mode):
    grads = gradients(3, [(0, 0), (1, 1), (2, 2)])
    params, _ = run(gx.apply_if_finite(gd.tower(SGD, "replica"), 2), mode, grads)
    assert not params[:2].any() and np.isnan(params[2, :, 0, 0]).all()


@pytest.mark.parametrize("mode", list(MODES))
def test_micro_batches_of_rows_make_one_exchange(mode):
    tx = gx.accumulate_rows(gd.model_average(SGD, "replica", period=1), 2, rows=0)
    grads = gradients(4)
    params, _ = run(tx, mode, grads)
    expected = -0.5 * (grads[:2].mean(0) + grads[2:].mean(0)).mean(0)
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)


@pytest.mark.parametrize("mode", list(MODES))
def test_a_gradient_that_is_stale_on_one_replica_is_dropped_by_all(mode):
    begun = np.asarray([[0] * N, [1, 1, 0, 1], [1] * N], np.int32)
    tx, grads = gd.drop_stale(gd.tower(SGD, "replica"), 0), gradients(3)
    params, state = run(tx, mode, grads, grad_step=begun)
    expected = -0.5 * grads[[0, 2]].mean(1).sum(0)
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)
    assert (state.global_step == 2).all() and (state.stale_counter == 1).all()


@pytest.mark.parametrize("mode", list(MODES))
def test_fast_weights_that_start_afresh_do_so_on_all_replicas(mode):
    inner = gd.model_average(SGD, "replica", period=1)
    params, state = run(gx.lookahead(inner, 2, 0.5, reset_state=True), mode, gradients(4))
    np.testing.assert_allclose(params, np.broadcast_to(params[:, :1], params.shape), atol=1e-6)
    assert int(state.fast_state.schedule_step) == 0


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("kind", ["optax.chain", "a function"])
def test_an_exchange_inside_a_foreign_object_is_found(kind, mode):
    def mean(updates, params):
        return jax.tree.map(lambda g: jax.lax.pmean(g, "replica"), updates)

    hidden = {
        "optax.chain": optax.chain(gd.tower(SGD, "replica"), optax.scale(1.0)),
        "a function": gx.chain(gx.stateless(mean), SGD),
    }
    grads = gradients(3, [(1, 2)])
    params, _ = run(gx.apply_if_finite(hidden[kind], 3), mode, grads)
    expected = -0.5 * grads[[0, 2]].mean(1).sum(0)
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)


@pytest.mark.parametrize("inner", [SGD, optax.sgd(0.5, 0.9), gx.stateless(lambda u, p: u)])
def test_a_guard_around_a_local_transform_sends_nothing(inner):
    r = replicas("shard_map", N)
    tx = gd.model_average(gx.apply_if_finite(inner, 3), "replica", period=2)
    params = r.replicate({"w": jnp.zeros(SHAPE)})
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda p, s, g: tx.step(g, s, p, sync=False))
    assert not gd.hlo.collectives(step.lower(params, state, params).compile())


@pytest.mark.parametrize("guard", ["finite", "several steps"])
def test_outside_of_exchanges_a_guard_sends_one_number(guard):
    r = replicas("shard_map", N)
    inner = gd.model_average(SGD, "replica", period=2)
    kinds = {"finite": gx.apply_if_finite(inner, 3), "several steps": gx.MultiSteps(inner, 2)}
    tx = kinds[guard]
    params = r.replicate({"w": jnp.zeros((64, 8))})
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda p, s, g: tx.update(g, s, p))
    wire = gd.hlo.wire_bytes(step.lower(params, state, params).compile())
    assert wire.always < 16


@pytest.mark.parametrize("mode", list(MODES))
def test_counts_of_nested_exchanges_stay_equal_on_all_replicas(mode):
    inner = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=2 * N)
    params, state = run(gd.model_average(inner, "replica", period=2), mode, gradients(4))
    expected = -0.5 * gradients(4).reshape(2, -1, *SHAPE).mean(1).sum(0)
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)
    assert np.shape(state.inner.global_step) == () and int(state.inner.global_step) == 2


def test_a_quorum_waits_for_the_replicas_of_its_inner_exchange():
    """Two groups of two; of one group nobody contributes, and so nobody of the other steps."""
    tx = gd.sync_replicas(gd.tower(SGD, "outside"), "inside", replicas_to_aggregate=1)
    params = {"w": jnp.zeros((2, 2, 3))}

    def step(params, g, contribute):
        return tx.step(g, tx.init(params), params, contribute=contribute)[0]

    step = jax.vmap(jax.vmap(step, axis_name="inside"), axis_name="outside")
    g = {"w": jnp.ones((2, 2, 3))}
    for offered, moved in (([[1, 1], [0, 0]], 0.0), ([[0, 1], [1, 0]], -0.5)):
        made = step(params, g, jnp.asarray(offered, jnp.bool_))["w"]
        np.testing.assert_array_equal(made, np.full((2, 2, 3), moved))


def test_an_unbound_axis_is_named_by_the_part_that_needs_it():
    tx, params = gx.apply_if_finite(gd.tower(SGD, "replica"), 3), {"w": jnp.ones(3)}
    with pytest.raises(NameError, match=r"tower: the axis 'replica' is not bound.*Replicas"):
        tx.update(params, tx.init(params), params)


# ------------------------------------------------------------------- conditions of others, and own


OTHERS = {
    "finite": lambda tx: optax.apply_if_finite(tx, 3),
    "steps": lambda tx: optax.MultiSteps(tx, 2, should_skip_update_fn=optax.skip_not_finite),
    "chain": lambda tx: gx.chain(gx.clip(1.0), optax.apply_if_finite(tx, 3)),
}


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("guard", list(OTHERS))
def test_a_guard_of_optax_around_an_exchange_is_refused(guard, mode):
    with pytest.raises(ValueError, match=r"exchange over 'replica', at .*optax.*apply_if_finite"):
        run(OTHERS[guard](gd.tower(SGD, "replica")), mode, gradients(1))


def test_a_guard_of_optax_inside_an_exchange_is_accepted():
    tx = gd.tower(optax.apply_if_finite(optax.sgd(0.5), 3), "replica")
    params, _ = run(tx, "shard_map", gradients(2, [(1, 0)]))
    np.testing.assert_array_equal(params[1], params[0])


def test_a_condition_on_a_count_is_trusted_to_agree():
    tx = optax.MultiSteps(gd.tower(SGD, "replica"), 2)
    params, _ = run(tx, "shard_map", gradients(2))
    expected = -0.5 * gradients(2).mean((0, 1))
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)


def own_condition(agreeing, kind):
    def step(x):
        def total(x):
            return jax.lax.psum(x, "replica")

        def rest(x):
            return x + 0 * jax.lax.psum(x, "replica") if agreeing else 2 * x

        good = jnp.sum(x) > 0
        good = jax.lax.pmin(good.astype(jnp.int32), "replica") > 0 if agreeing else good
        if kind == "cond":
            return jax.lax.cond(good, total, rest, x)
        if kind == "while":
            return jax.lax.while_loop(lambda c: c[0], lambda c: (~c[0], total(c[1])), (good, x))[1]

        def turn(flag, row):  # what decides comes around with the carry
            return jnp.sum(row) > 0, jax.lax.cond(flag, total, rest, row)

        def agreed_turn(flag, row):
            return flag, jax.lax.cond(flag, total, rest, row)

        return jax.jit(lambda: jax.lax.scan(agreed_turn if agreeing else turn, good, x)[1])()

    return step


@pytest.mark.parametrize("kind", ["cond", "while", "scan"])
def test_a_user_written_condition_must_agree_on_all_replicas(kind):
    r = replicas("vmap", N)
    x = np.ones((N, 3, 2), np.float32)
    with pytest.raises(ValueError, match=rf"'replica', at {__file__}.*lax.pmin"):
        r.wrap(own_condition(False, kind))(x)
    np.testing.assert_array_equal(r.wrap(own_condition(True, kind))(x), N * x)


def test_a_condition_on_the_index_of_a_replica_is_refused():
    def step(x):
        mine = jax.lax.axis_index("replica") == 0
        return jax.lax.cond(mine, lambda: jax.lax.pmean(x, "replica"), lambda: x)

    with pytest.raises(ValueError, match="decides from its own numbers"):
        replicas("vmap", N).wrap(step)(np.ones((N, 2), np.float32))


# ------------------------------------------------------------------------- averages with absences

ABSENT = {
    "model_average": lambda **how: gd.model_average(gx.sgd(1.0), "replica", period=2, **how),
    "outer": lambda **how: gd.outer(gx.sgd(1.0), gx.scale(-1.0), "replica", period=2, **how),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", [{}, {"compress": gd.int8(64)}], ids=["whole", "int8"])
@pytest.mark.parametrize("name", ABSENT)
def test_a_replica_that_does_not_contribute_is_left_out_and_gets_the_mean(name, how, mode):
    tx, n = ABSENT[name](**how), 4
    r = gd.Replicas("replica", n=n, **MODES[mode])
    params = r.replicate({"w": jnp.zeros((8, 64))})
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda p, s, g, here: tx.step(g, s, p, contribute=here))
    g = np.random.default_rng(0).normal(size=(n, 8, 64)).astype(np.float32)
    bad = g.copy()
    bad[2] = np.nan
    here = np.array([True, True, False, True])
    params, state = step(params, state, r.place({"w": bad}), r.place(here))
    params, state = step(params, state, r.place({"w": g}), r.place(here))
    mean = -2 * g[here].mean(axis=0)
    got = r.gather(params)["w"]
    np.testing.assert_allclose(got, np.broadcast_to(mean, got.shape), atol=0.05 if how else 1e-5)
    assert all(np.array_equal(x, got[0]) for x in got)


ALONE = ABSENT | {
    "diloco": lambda **how: gd.diloco(gx.sgd(1.0), "replica", period=2, **how),
    "elastic_average": lambda **how: gd.elastic_average(
        gx.sgd(1.0), "replica", period=2, rho=0.0, moving_rate=0.1, **how
    ),
    "agn": lambda **how: gd.agn(gx.sgd(1.0), "replica", period=2, **how),
}


@pytest.mark.parametrize(
    "how", [{}, {"compress": gd.int8(64)}, {"wire_dtype": "bfloat16"}], ids=str
)
@pytest.mark.parametrize("name", ALONE)
def test_without_contributions_every_replica_keeps_its_parameters(name, how):
    tx = ALONE[name](**how)
    r = gd.Replicas("replica", n=4)
    params = r.replicate({"w": jnp.zeros((8, 64))})
    state = r.wrap(tx.init)(params)
    g = np.random.default_rng(0).normal(size=(4, 8, 64)).astype(np.float32)
    step = r.wrap(lambda p, s, g, here: tx.step(g, s, p, contribute=here))
    for _ in range(2):
        params, state = step(params, state, r.place({"w": g}), r.place(np.zeros(4, bool)))
    np.testing.assert_array_equal(params["w"], -2 * g)
    assert int(state.schedule_step) == 2 and int(state.global_step) == 0


def test_a_center_moves_along_what_the_contributors_have():
    n, rate = 4, 0.25
    tx = gd.elastic_average(gx.sgd(1.0), "replica", period=1, rho=0.0, moving_rate=rate)
    r = gd.Replicas("replica", n=n)
    params = r.replicate({"w": jnp.zeros(3)})
    g = np.arange(12, dtype=np.float32).reshape(n, 3)
    g[2] = np.nan
    here = np.array([True, True, False, True])
    step = r.wrap(lambda p, s, g, here: tx.step(g, s, p, contribute=here))
    state = r.wrap(tx.init)(params)
    params, state = step(params, state, r.place({"w": g}), r.place(here))
    center = -rate * g[here].sum(axis=0)
    np.testing.assert_allclose(r.gather(state.center)["w"], np.broadcast_to(center, (n, 3)))
    np.testing.assert_allclose(r.gather(params)["w"][here], -(1 - rate) * g[here])


@pytest.mark.parametrize("name", ["elastic_average", "agn"])
def test_replicas_that_take_turns_all_contribute(name):
    tx = ALONE[name](order="sequential")
    r = gd.Replicas("replica", n=2, mode="vmap")
    params = r.replicate({"w": jnp.zeros(3)})
    step = r.wrap(lambda p, s: tx.step(p, s, p, contribute=jnp.asarray(True)))
    with pytest.raises(ValueError, match=f"{name}: contribute .* order='sequential'"):
        step(params, r.wrap(tx.init)(params))


def test_contributions_are_flags():
    tx = gd.model_average(gx.sgd(1.0), "replica", period=1)
    r = gd.Replicas("replica", n=2, mode="vmap")
    params = r.replicate({"w": jnp.zeros(3)})
    state = r.wrap(tx.init)(params)
    with pytest.raises((TypeError, ValueError), match="model_average: contribute must be"):
        r.wrap(lambda p, s: tx.step(p, s, p, contribute=jnp.zeros(3)))(params, state)

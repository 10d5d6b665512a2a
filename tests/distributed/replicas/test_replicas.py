"""Replicas on eight devices: the rules beside NumPy, and the traps that are closed."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform._jax import versions as _compat
from gradxform.distributed.shares.fragments import Fragments
from tests.distributed.modes import MODES, replicas, step_of
from tests.environment import limit
from tests.public import names_of
from tests.references import distributed as ref

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N, STEPS, SGD = 8, 12, gx.sgd(ref.RATE)


def start():
    return np.random.default_rng(0).normal(size=(5, 2))


def local_grads(steps=STEPS):
    return list(np.random.default_rng(1).normal(size=(steps, N, 5, 2)))


def run(tx, mode="vmap", grads=None, form="update", told=None):
    """The parameters of all replicas and the state after every step."""
    r = replicas(mode, N)
    params = r.replicate({"w": jnp.asarray(start(), jnp.float32)})
    state = r.wrap(tx.init)(params)

    step = r.wrap(step_of(tx, form))
    for t, g in enumerate(local_grads() if grads is None else grads):
        more = {} if told is None else {k: np.asarray(v[t]) for k, v in told.items()}
        g = {"w": np.asarray(g, np.float32)}
        params, state = step(params, state, r.place(g), r.place(more))
        yield np.asarray(params["w"]), state


def wide():
    return np.broadcast_to(start(), (N, 5, 2))


RULES = {
    "model_average": (
        gd.model_average(SGD, "replica", period=3),
        lambda g: ref.model_average(wide(), g, 3),
    ),
    "model_average/warmup": (
        gd.model_average(SGD, "replica", period=4, warmup=2),
        lambda g: ref.model_average(wide(), g, 4, 2),
    ),
    "elastic_average": (
        gd.elastic_average(SGD, "replica", period=3, learning_rate=ref.RATE),
        lambda g: ref.elastic_average(wide(), g, 3, 0.9 / 3 / N, 0.9 / 3 / N / ref.RATE),
    ),
    "elastic_average/paper": (
        gd.elastic_average(SGD, "replica", period=2, moving_rate=0.1, rho=0.0),
        lambda g: ref.elastic_average(wide(), g, 2, 0.1, 0.0),
    ),
    "agn": (gd.agn(SGD, "replica", period=3), lambda g: ref.agn(wide(), g, 3)),
    "diloco": (
        gd.diloco(SGD, "replica", period=3),
        lambda g: ref.outer(wide(), g, 3, 0.7, 0.9, nesterov=True),
    ),
    "diloco/delay": (
        gd.diloco(SGD, "replica", period=4, delay=2),
        lambda g: ref.outer(wide(), g, 4, 0.7, 0.9, nesterov=True, delay=2),
    ),
    "diloco/blend": (
        gd.diloco(SGD, "replica", period=3, delay=1, blend=0.5),
        lambda g: ref.outer(wide(), g, 3, 0.7, 0.9, nesterov=True, delay=1, blend=0.5),
    ),
    "slowmo": (
        gd.slowmo(SGD, "replica", period=3, slow_learning_rate=0.8, slow_momentum=0.6),
        lambda g: ref.outer(wide(), g, 3, 0.8, 0.6),
    ),
    "bmuf": (
        gd.bmuf(SGD, "replica", period=3, block_learning_rate=0.8, block_momentum=0.6),
        lambda g: ref.outer(wide(), g, 3, 0.8, 0.6),
    ),
    "post_local_sgd": (
        gd.post_local_sgd(SGD, "replica", period=4, warmup=2),
        lambda g: ref.model_average(wide(), g, 4, 2),
    ),
}


@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
@pytest.mark.parametrize("name", list(RULES))
def test_every_distributed_rule_follows_its_reference(name, mode):
    tx, reference = RULES[name]
    for (params, state), expected in zip(run(tx, mode), reference(local_grads()), strict=True):
        local, center = expected if isinstance(expected, tuple) else (expected, None)
        np.testing.assert_allclose(params, local, rtol=1e-5, atol=1e-5)
        if center is not None:
            np.testing.assert_allclose(
                gd.eval_params(state)["w"], np.broadcast_to(center, (N, 5, 2)), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("mode", list(MODES))
def test_after_a_step_by_assignment_replicas_are_equal_to_the_last_bit(mode):
    tx = gd.model_average(gx.adam(0.1), "replica", period=4)
    for t, (params, _) in enumerate(run(tx, mode, form="step"), 1):
        equal = bool((params == params[:1]).all())
        assert equal == (t % 4 == 0)


def test_inner_states_are_averaged_only_on_request():
    for average in (False, True):
        tx = gd.model_average(gx.sgd(0.1, 0.9), "replica", period=STEPS, average_state=average)
        *_, (_, state) = run(tx)
        m = np.asarray(state.inner[0].trace["w"])
        assert bool(np.allclose(m, m[:1])) == average


@pytest.mark.parametrize("bits", [8, 4])
def test_states_of_few_bits_are_averaged_as_numbers(bits):
    rng = np.random.default_rng(0)
    scale = np.arange(1.0, N + 1).reshape(N, 1, 1)  # so that the scales of blocks differ
    grads = {"w": (scale * rng.normal(size=(N, 32, 64))).astype(np.float32)}
    r = replicas("vmap", N)
    inner = gx.quantize_state(gx.trace(0.9), bits, min_size=8)

    def traces(average):
        tx = gd.model_average(inner, "replica", period=1, average_state=average)
        params = r.replicate({"w": jnp.zeros((32, 64))})
        step = r.wrap(lambda p, s, g: tx.step(g, s, p)[1].inner.trace["w"].load())
        return np.asarray(step(params, r.wrap(tx.init)(params), r.place(grads)))

    mean = np.mean(traces(False), axis=0)
    assert np.max(np.abs(traces(True) - mean)) < np.max(np.abs(mean)) / 2 ** (bits // 2)


def test_a_transform_of_optax_is_an_inner_one():
    with jax.numpy_dtype_promotion("standard"):
        tx = gd.diloco(optax.sgd(ref.RATE), "replica", period=3)
        *_, (params, _) = run(tx)
    *_, (expected, _) = run(gd.diloco(SGD, "replica", period=3))
    np.testing.assert_allclose(params, expected, rtol=1e-5, atol=1e-6)


def test_the_last_average_is_kept():
    tx = gd.model_average(SGD, "replica", period=4, keep_center=True)
    center = np.broadcast_to(start(), (N, 5, 2))
    for t, (params, state) in enumerate(run(tx, form="step"), 1):
        center = params if t % 4 == 0 else center
        np.testing.assert_allclose(gd.eval_params(state)["w"], center, rtol=1e-6)
    assert np.ptp(params, axis=0).max() == 0 and t == STEPS
    with pytest.raises(ValueError, match=r"keep_center=True"):
        gd.eval_params(gd.model_average(SGD, "replica").init({"w": jnp.zeros(2)}))


@pytest.mark.parametrize("form", ["update", "step"])
@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
@pytest.mark.parametrize(("delay", "blend"), [(0, 0.0), (1, 0.0), (1, 0.25)])
def test_fragments_are_exchanged_one_after_another_with_a_delay(delay, blend, mode, form):
    tx = gd.outer(SGD, gx.sgd(0.7), "replica", period=6, fragments=3, delay=delay, blend=blend)
    rng = np.random.default_rng(2)
    shapes = {"a": (3, 2), "b": (6,), "c": (2, 3)}  # in the order of their turns
    begin = {k: rng.normal(size=s) for k, s in shapes.items()}
    grads = [{k: rng.normal(size=(N, *s)) for k, s in shapes.items()} for _ in range(14)]
    r = replicas(mode, N)
    params = r.replicate(jax.tree.map(jnp.float32, begin))
    state = r.wrap(tx.init)(params)

    step = r.wrap(step_of(tx, form))
    vs = [np.broadcast_to(x, (N, *x.shape)) for x in begin.values()]
    expected = ref.streaming(vs, [g.values() for g in grads], 6, 0.7, delay, blend)
    for g, (local, anchors) in zip(grads, expected, strict=True):
        params, state = step(params, state, r.place(jax.tree.map(np.float32, g)))
        for p, x, v, center in zip(
            params.values(), gd.eval_params(state).values(), local, anchors, strict=True
        ):
            np.testing.assert_allclose(p, v, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(x, [center] * N, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_large_leaf_is_cut_into_fragments(delay):
    outer_optimizer = gx.trace(0.0), gx.scale(-0.7)  # with a state, in which pieces can be counted
    tx = gd.outer(SGD, gx.chain(*outer_optimizer), "replica", period=6, fragments=3, delay=delay)
    rng = np.random.default_rng(2)
    begin = rng.normal(size=(9, 2))
    grads = [rng.normal(size=(N, 9, 2)) for _ in range(14)]
    r = replicas("shard_map", N)
    params = r.replicate({"w": jnp.asarray(begin, jnp.float32)})
    state = r.wrap(tx.init)(params)
    assert [x.shape for x in jax.tree.leaves(state.outer)] == [(N, 3, 2)] * 3
    step = r.wrap(step_of(tx, "step"))
    vs = [np.broadcast_to(x, (N, 3, 2)) for x in np.split(begin, 3)]
    parts = [np.split(g, 3, axis=1) for g in grads]
    expected = ref.streaming(vs, parts, 6, 0.7, delay, 0.0)
    for g, (local, anchors) in zip(grads, expected, strict=True):
        params, state = step(params, state, r.place({"w": np.float32(g)}))
        np.testing.assert_allclose(params["w"], np.concatenate(local, 1), rtol=1e-4, atol=1e-4)
        center = gd.eval_params(state)["w"]
        np.testing.assert_allclose(center[0], np.concatenate(anchors), rtol=1e-4, atol=1e-4)


def test_fragments_have_about_equal_bytes():
    """Within a slice of the mean; and every slice is in one fragment."""
    rng = np.random.default_rng(0)
    for turn in range(100):
        shapes = [rng.integers(1, 40, rng.integers(0, 4)) for _ in range(rng.integers(1, 12))]
        leaves = [jax.ShapeDtypeStruct(tuple(map(int, s)), jnp.float32) for s in shapes]
        count = int(rng.integers(1, 7))
        fragments = Fragments(leaves, count)
        loads = [0.0] * count
        slices = []
        for x, axis, pieces in zip(leaves, fragments.axes, fragments.pieces, strict=True):
            length = x.shape[axis] if x.shape else 1
            slices.append(x.size // length)
            assert sorted(i for p in pieces for i in range(p.start, p.stop)) == list(range(length))
            for p in pieces:
                loads[p.fragment] += x.size / length * (p.stop - p.start)
        assert max(loads) <= sum(loads) / count + max(slices)
        if turn % 10:  # the rest compiles operations for sizes that no other turn has
            continue
        indices = [np.arange(x.size, dtype=np.float32).reshape(x.shape) for x in leaves]
        back = [np.full_like(x, -1) for x in indices]
        for i in range(count):
            back = fragments.merged(back, fragments.split(indices, i), i)
        assert all(np.array_equal(a, b) for a, b in zip(back, indices, strict=True))


# Trees whose first axes are coarse, beside one whose layers are fine enough.
TREES = {
    "3 layers, stacked": [(3, 512, 512), (3, 512, 2048), (3, 2048, 512)],
    "24 layers of 8 experts, stacked": [(24, 8, 512, 1024), (24, 8, 1024, 512), (24, 512, 512)],
    "48 layers, stacked": [(48, 768, 3072), (48, 3072, 768), (48, 768, 2304), (50257, 768)],
    "convolutions": [(3, 3, 3, 64), *[(3, 3, 64, 64)] * 8, *[(3, 3, 512, 512)] * 3, (512, 1000)],
    "one row": [(1, 4096)],
    "layers apart": [(512, 512), (512, 2048), (2048, 512)] * 12,
}


@pytest.mark.parametrize("count", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("name", TREES)
def test_the_largest_fragment_is_a_kth_of_any_tree(name, count):
    leaves = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in TREES[name]]
    fragments = Fragments(leaves, count)
    loads = [0.0] * count
    for x, axis, pieces in zip(leaves, fragments.axes, fragments.pieces, strict=True):
        for p in pieces:
            loads[p.fragment] += x.size / x.shape[axis] * (p.stop - p.start)
    assert max(loads) <= 1.1 * sum(x.size for x in leaves) / count
    if name == "layers apart":  # where rows will do, only these are cut
        assert set(fragments.axes) == {0}


@pytest.mark.parametrize("how", [{}, {"delay": 1, "blend": 0.5}], ids=str)
def test_fragments_along_a_later_axis_are_those_of_the_first_one_moved(how):
    rng = np.random.default_rng(0)
    begin = rng.normal(size=(2, 40, 3)).astype(np.float32)
    grads = rng.normal(size=(17, 2, *begin.shape)).astype(np.float32)

    def trained(order):
        tx = gd.outer(SGD, gx.trace(0.9), "replica", period=8, fragments=4, **how)
        r = replicas("vmap", 2)
        params = r.replicate({"w": jnp.asarray(begin.transpose(order))})
        state, step = r.wrap(tx.init)(params), r.wrap(step_of(tx, "step"))
        for g in grads:
            moved = g.transpose(0, *(i + 1 for i in order))
            params, state = step(params, state, r.place({"w": jnp.asarray(moved)}))
        pieces = [x.shape[1:] for x in jax.tree.leaves(state.outer)]
        assert len(pieces) == 4
        return np.asarray(params["w"])

    later = trained((0, 1, 2))
    np.testing.assert_array_equal(later.transpose(0, 2, 1, 3), trained((1, 0, 2)))
    assert not np.array_equal(later[0], begin)


def test_leaves_are_not_cut_for_an_outer_optimizer_that_looks_at_arrays():
    tx = gd.outer(SGD, gx.lamb(0.1), "replica", period=4, fragments=2)
    r = replicas("vmap", 2)
    state = r.wrap(tx.init)(r.replicate({"w": jnp.ones((8, 4))}))
    assert all(x.shape in ((2, 8, 4), (2,), ()) for x in jax.tree.leaves(state.outer))


def test_fragments_take_turns():
    r = replicas("vmap", N)
    tx = gd.outer(SGD, gx.scale(-1.0), "replica", period=4, fragments=2)
    params = r.replicate({"a": jnp.zeros((4, 4)), "b": jnp.zeros((4, 4))})
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda p, s, g: tx.step(g, s, p))
    equal = []
    for t in range(8):
        g = jax.tree.map(lambda p, t=t: jax.random.normal(jax.random.key(t), p.shape), params)
        params, state = step(params, state, g)
        equal.append([bool((x == x[:1]).all()) for x in params.values()])
    nothing, first, second = [False, False], [True, False], [False, True]
    assert equal == [nothing, first, nothing, second] * 2


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_towers_make_equal_steps(mode, reduction):
    tx = gd.tower(SGD, "replica", reduction=reduction)
    v = start()
    for (params, _), g in zip(run(tx, mode), local_grads(), strict=True):
        v = v - ref.RATE * (g.mean(0) if reduction == "mean" else g.sum(0))
        np.testing.assert_allclose(params, np.broadcast_to(v, params.shape), rtol=1e-4, atol=1e-4)


def test_a_loss_is_scaled_as_towers_scale_it():
    scaled = jax.vmap(lambda x: gd.scale_loss(x, "replica"), axis_name="replica")(jnp.ones(N))
    np.testing.assert_allclose(scaled, np.full(N, 1 / N))


# ------------------------------------------------------------------------------------- quorums


def told(**flags):
    return {k: np.asarray(v) for k, v in flags.items()}


def test_only_contributing_replicas_count_and_below_the_quorum_nothing_moves():
    ok = np.random.default_rng(2).random((STEPS, N)) < 0.5
    grads = local_grads()
    for t in range(STEPS):
        grads[t][~ok[t]] = np.nan  # whatever they hold
    tx = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=4)
    v, total, count, steps = start(), 0.0, 0, 0
    history = list(run(tx, "shard_map", grads, told=told(contribute=ok)))
    for t, (params, _) in enumerate(history):
        total, count = (
            total + np.where(ok[t][:, None, None], grads[t], 0).sum(0),
            count + ok[t].sum(),
        )
        if count >= 4:
            v, total, count, steps = v - ref.RATE * total / count, 0.0, 0, steps + 1
        np.testing.assert_allclose(params, np.broadcast_to(v, params.shape), rtol=1e-5, atol=1e-5)
    state = history[-1][1]
    assert int(state.global_step) == steps and int(state.dropped) == int((~ok).sum())


def test_a_quorum_larger_than_the_replicas_takes_several_calls():
    tx = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=2 * N)
    v, grads = start(), local_grads()
    for t, (params, _) in enumerate(run(tx)):
        if t % 2:
            v = v - ref.RATE * np.concatenate(grads[t - 1 : t + 1]).mean(0)
        np.testing.assert_allclose(params[0], v, rtol=1e-5, atol=1e-5)


def test_stale_gradients_are_dropped():
    begun = np.maximum(np.arange(STEPS)[:, None] - np.arange(N)[None, :] % 3, 0).astype(np.int32)
    tx = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=1, max_staleness=1)
    v = start()
    for t, (params, _) in enumerate(run(tx, told=told(grad_step=begun))):
        fresh = t - begun[t] <= 1
        v = v - ref.RATE * local_grads()[t][fresh].mean(0)
        np.testing.assert_allclose(params[0], v, rtol=1e-5, atol=1e-5)


def test_a_gradient_of_exactly_the_age_that_is_allowed_counts():
    tx, params = gd.drop_stale(gx.sgd(1.0), 1), {"w": jnp.zeros(2)}
    state, moved = tx.init(params), []
    for begun in (0, 0, 0, 1, 2, 1):
        updates, state = tx.update({"w": jnp.ones(2)}, state, params, grad_step=begun)
        moved.append(bool(updates["w"][0]))
    assert moved == [True, True, False, True, True, False]
    assert int(state.global_step) == 4 and int(state.stale_counter) == 2


def test_replicas_of_agn_count_the_steps_of_their_center():
    tx = gd.agn(gx.sgd(gx.linear_schedule(0.5, 0.0, 10)), "replica", period=2)
    counts = [
        [int(np.ravel(n)[0]) for _, n in gx.tree.get_all_with_path(state, "count")]
        for _, state in run(tx)
    ]
    assert counts[:4] == [[1, 0], [3, 3], [4, 3], [6, 6]]


def test_with_backup_replicas_only_the_first_gradients_count():
    arrival = np.random.default_rng(3).random((STEPS, N)).astype(np.float32)
    tx = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=3, count="first_r")
    v = start()
    history = list(run(tx, "shard_map", told=told(arrival=arrival)))
    for t, (params, _) in enumerate(history):
        first = np.argsort(arrival[t])[:3]
        v = v - ref.RATE * local_grads()[t][first].mean(0)
        np.testing.assert_allclose(params[0], v, rtol=1e-5, atol=1e-5)
    assert int(history[-1][1].dropped) == STEPS * (N - 3)


ARRIVALS = {
    "all at once": np.zeros(N, np.float32),
    "some at once": np.asarray([2, 1, 1, 0, 2, 1, 3, 0], np.float32),
    "counted": np.asarray([5, 4, 3, 0, 9, 1, 8, 7], np.int32) + 2**24,  # too many for float32
    "never": np.asarray([np.inf, 1, np.inf, np.nan, np.inf, np.inf, np.nan, 0], np.float32),
}


@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
@pytest.mark.parametrize("name", list(ARRIVALS))
def test_gradients_that_arrive_together_count_in_order_of_their_index(name, mode):
    arrival, offered = ARRIVALS[name], np.asarray([False] + [True] * (N - 1))
    tx = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=3, count="first_r")
    flags = told(arrival=[arrival] * 2, contribute=[offered] * 2)
    *_, (params, state) = run(tx, mode, local_grads(2), told=flags)
    first = [i for i in np.argsort(arrival, kind="stable") if offered[i]][:3]
    v = start() - ref.RATE * sum(g[first].mean(0) for g in local_grads(2))
    np.testing.assert_allclose(params, np.broadcast_to(v, params.shape), rtol=1e-5, atol=1e-5)
    assert int(state.dropped) == 2 * (N - 3)


@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
def test_each_row_is_averaged_over_the_replicas_that_touched_it(mode):
    r = replicas(mode, 2)
    tx = gd.sync_replicas(gx.sgd(1.0), "replica")
    params = r.replicate({"table": jnp.zeros((4, 1))})
    state = r.wrap(tx.init)(params)

    def step(params, state, ids, values):
        grads = {"table": gx.RowSparse(ids, values, 4)}
        return tx.step(grads, state, params)

    ids = np.asarray([[0, 1, 1], [1, 2, 4]], np.int32)  # 4 is padding
    values = np.asarray([[2.0, 3.0, 1.0], [8.0, 10.0, 99.0]], np.float32)[..., None]
    params, _ = r.wrap(step)(params, state, r.place(ids), r.place(values))
    for mine in np.asarray(params["table"])[..., 0]:
        np.testing.assert_allclose(mine, [-2.0, -6.0, -10.0, 0.0], rtol=1e-6)


def check_mean_of_rows(tx):
    """Two replicas touch two rows each, one of them both: the table moves by the mean."""
    r = replicas("shard_map", 2)
    params = r.replicate({"table": jnp.zeros((4, 1))})
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda p, s, i, v: tx.step({"table": gx.RowSparse(i, v, 4)}, s, p))
    ids, values = np.asarray([[0, 1], [1, 2]], np.int32), np.ones((2, 2, 1), np.float32)
    params, _ = step(params, state, r.place(ids), r.place(values))
    np.testing.assert_allclose(np.asarray(params["table"])[:, :, 0], [[-0.5, -1, -0.5, 0]] * 2)


def test_the_rows_of_all_towers_are_concatenated():
    check_mean_of_rows(gd.tower(gx.sgd(1.0), "replica"))


def test_flags_that_differ_between_replicas_never_deadlock():
    """Fifty steps on eight devices, within a time limit."""
    steps = 50
    rng = np.random.default_rng(4)
    flags = told(
        contribute=rng.random((steps, N)) < 0.3,
        grad_step=rng.integers(0, 5, (steps, N)).astype(np.int32),
    )
    grads = list(rng.normal(size=(steps, N, 5, 2)))
    done = []

    def work():
        tx = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=3, max_staleness=50)
        done.append(sum(1 for _ in run(tx, "shard_map", grads, told=flags)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit(40, 120))
    assert done == [steps]


# --------------------------------------------------------------------------------------- traps


def mesh():
    return jax.make_mesh((N,), ("replica",), axis_types=(AxisType.Auto,))


def loss(params, batch):
    return jnp.mean((batch @ params["w"]) ** 2)


WRAPPERS = {
    "model_average": gd.model_average(SGD, "replica", period=1),
    "elastic_average": gd.elastic_average(SGD, "replica", rho=0.0),
    "agn": gd.agn(SGD, "replica"),
    "outer": gd.diloco(SGD, "replica"),
    "tower": gd.tower(SGD, "replica"),
    "sync_replicas": gd.sync_replicas(SGD, "replica"),
}


def one_step(tx, view, check_vma=True):
    """A step on replicated parameters, whose gradients shard_map sums by itself."""

    def step(params, state, batch):
        seen = gd.local_view(params, "replica") if view else params
        grads = jax.grad(loss)(seen, batch)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    params = {"w": jnp.asarray(start(), jnp.float32)}
    batch = jnp.asarray(np.random.default_rng(5).normal(size=(2 * N, 5)), jnp.float32)
    mapped = jax.shard_map(
        step,
        mesh=mesh(),
        in_specs=(P(), P(), P("replica")),
        out_specs=P(),
        check_vma=check_vma,
    )
    new, _ = jax.jit(mapped)(params, tx.init(params), batch)
    expected = params["w"] - ref.RATE * jax.grad(loss)(params, batch)["w"]
    return new["w"], expected


@pytest.mark.parametrize("name", list(WRAPPERS))
def test_gradients_that_are_reduced_already_are_an_error(name):
    with pytest.raises(gd.AlreadyReducedError, match=r"\['w'\].*local_view"):
        one_step(WRAPPERS[name], view=False)


class OtherType:
    """The type of an array as another JAX spells it."""

    def __init__(self, kind):
        self.vma = _compat.varying_axes(kind)


@pytest.mark.parametrize("part", [gd.tower, gd.sync_replicas])
def test_rows_are_local_where_their_places_are(part):
    tx = part(gx.sgd(1.0), "replica")
    r = replicas("shard_map", N)
    params = r.replicate({"a": jnp.zeros(3), "table": jnp.zeros((50, 8))})
    state = r.wrap(tx.init)(params)

    def step(params, state, i):
        rows = gx.RowSparse(i[None], jnp.ones((1, 8)), 50)
        return tx.step({"a": params["a"], "table": rows}, state, params)

    table = np.asarray(r.wrap(step)(params, state, r.place(np.arange(N)))[0]["table"])
    assert np.all(table[:, :N] < 0) and not np.any(table[:, N:])
    same = r.wrap(lambda p, s: step(p, s, jnp.int32(0)))
    with pytest.raises(gd.AlreadyReducedError, match=r"the gradient of \['table'\] is the same"):
        same(params, state)


@pytest.mark.parametrize("name", list(WRAPPERS))
def test_reduced_gradients_are_found_on_every_version_of_jax(name, monkeypatch):
    spelled = jax.typeof
    monkeypatch.setattr(jax, "typeof", lambda x: OtherType(spelled(x)))
    with pytest.raises(gd.AlreadyReducedError, match=r"\['w'\].*local_view"):
        one_step(WRAPPERS[name], view=False)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["tower", "sync_replicas"])
def test_the_local_view_makes_gradients_local(name, check_vma):
    new, expected = one_step(WRAPPERS[name], view=True, check_vma=check_vma)
    np.testing.assert_allclose(new, expected, rtol=1e-5)


def test_a_tower_can_be_told_that_gradients_are_reduced():
    new, expected = one_step(gd.tower(SGD, "replica", reduced="sum"), view=False)
    np.testing.assert_allclose(new, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("reduced", "reduction", "factor"),
    [("mean", "mean", 1), ("mean", "sum", N), ("sum", "mean", 1 / N), ("sum", "sum", 1)],
)
def test_a_reduced_gradient_becomes_the_reduction_that_is_asked_for(reduced, reduction, factor):
    tx = gd.tower(gx.sgd(1.0), "replica", reduction=reduction, reduced=reduced)
    r = replicas("shard_map", N)
    params = r.replicate({"w": jnp.zeros(3)})
    step = r.wrap(lambda p, s: tx.update({"w": jnp.ones(3)}, s, p)[0])
    updates = np.asarray(step(params, r.wrap(tx.init)(params))["w"])
    np.testing.assert_allclose(updates, np.full_like(updates, -factor), rtol=1e-6)


@pytest.mark.parametrize("name", list(WRAPPERS))
def test_an_axis_that_is_not_bound_is_named(name):
    tx, params = WRAPPERS[name], {"w": jnp.ones(3)}
    with pytest.raises(NameError, match=r"'replica' is not bound.*Replicas"):
        tx.update(params, tx.init(params), params)


ROWS = {
    "elastic_average": (
        gd.elastic_average(SGD, "replica", rho=0.1),
        "pulls every row towards the center",
    ),
    "agn": (gd.agn(SGD, "replica"), "adds gradients up in arrays"),
}


@pytest.mark.parametrize("name", list(ROWS))
def test_a_part_that_needs_whole_gradients_refuses_rows_in_both_forms(name):
    tx, why = ROWS[name]
    params = {"table": jnp.zeros((4, 1))}
    g = {"table": gx.RowSparse(jnp.zeros(2, jnp.int32), jnp.ones((2, 1)), 4)}

    def called(form):
        stacked = jax.tree.map(lambda x: jnp.stack([x] * 2), params)
        return jax.vmap(lambda p: form(g, tx.init(p), p), axis_name="replica")(stacked)

    with pytest.raises(TypeError, match=rf"{name}: {why}.*\['table'\].*densify"):
        called(tx.step)
    with pytest.raises(TypeError, match=rf"{name}: .*\['table'\].*densify"):
        called(tx.update)


def test_rows_move_where_only_parameters_are_exchanged():
    check_mean_of_rows(gd.model_average(gx.sgd(1.0), "replica", period=1))


def test_an_explicit_mesh_is_refused():
    explicit = jax.make_mesh((N,), ("replica",), axis_types=(AxisType.Explicit,))
    with pytest.raises(ValueError, match=r"'replica' is Explicit.*axis_types"):
        gd.Replicas("replica", mesh=explicit)


def test_replicas_refuse_wrong_arguments_with_the_reason():
    r = replicas("vmap", 4)
    for call, words in (
        (lambda: r.split({"x": jnp.ones((6, 2))}), ("'x'", "(6, 2)", "4 replicas")),
        (lambda: r.wrap(lambda x: x)(jnp.ones(3)), ("(3,)", "replicate")),
        (lambda: gd.Replicas("other", mesh=mesh()), ("'other'", "replica")),
        (lambda: gd.Replicas("replica", mesh=mesh(), n=3), ("n is 3", "8 devices")),
        (lambda: gd.Replicas(n=99), ("99 replicas", "vmap")),
        (lambda: gd.Replicas(inner_axes=("fsdp",)), ("inner_axes", "mesh")),
    ):
        with pytest.raises(ValueError, match="Replicas") as caught:
            call()
        assert all(word in str(caught.value) for word in words), caught.value


COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|collective-permute)(-start)?\(")


def computations_with_collectives(program: str) -> list[str]:
    found, current = [], ""
    for line in program.splitlines():
        if line and not line.startswith(" ") and line.rstrip().endswith("{"):
            current = line.split()[1] if line.startswith("ENTRY") else line.split()[0]
            current = "ENTRY" if line.startswith("ENTRY") else current
        if COLLECTIVE.search(line):
            found.append(current)
    return found


@pytest.mark.parametrize("mode", ["jit", "shard_map"])
@pytest.mark.parametrize(
    "name", ["model_average", "elastic_average", "agn", "outer", "outer/delay"]
)
def test_nothing_is_sent_between_exchanges(name, mode):
    r = replicas(mode, N)
    kinds = {
        "model_average": gd.model_average(gx.adam(0.1), "replica", period=10),
        "elastic_average": gd.elastic_average(gx.adam(0.1), "replica", rho=0.1),
        "agn": gd.agn(gx.adam(0.1), "replica"),
        "outer": gd.diloco(gx.adam(0.1), "replica", period=10),
        "outer/delay": gd.diloco(gx.adam(0.1), "replica", period=10, delay=3, blend=0.5),
    }
    tx = kinds[name]
    params = r.replicate({"w": jnp.ones((64, 8))})
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda p, s, g: tx.step(g, s, p))
    where = computations_with_collectives(step.lower(params, state, params).compile().as_text())
    assert where and "ENTRY" not in where
    for sync in (False, True):  # two programs without a condition
        static = r.wrap(lambda p, s, g, sync=sync: tx.step(g, s, p, sync=sync))
        program = static.lower(params, state, params).compile().as_text()
        # What comes after a delay stays under a condition of its own, without an exchange.
        assert ("conditional" in program) == (name == "outer/delay")
        assert bool(computations_with_collectives(program)) == sync


@pytest.mark.parametrize("form", ["step", "update"])
@pytest.mark.parametrize("fragments", [1, 2])
def test_steps_without_conditions_land_as_the_schedule_does(fragments, form):
    tx = gd.diloco(SGD, "replica", period=4, fragments=fragments, delay=1, blend=0.25)
    r, every = replicas("shard_map", N), 4 // fragments
    start = r.replicate({"w": jnp.ones((8, 2)), "b": jnp.ones(4)})
    rng, ends = np.random.default_rng(0), []
    grads = [{k: np.float32(rng.normal(size=p.shape)) for k, p in start.items()} for _ in range(9)]
    for static in (False, True):
        params, state = start, r.wrap(tx.init)(start)
        programs = {}
        for t, g in enumerate(grads, 1):
            how = {"sync": t % every == 0, "land": t > every and t % every == 1} if static else {}

            def one(p, s, g, how=how):
                if form == "step":
                    return tx.step(g, s, p, **how)
                u, s = tx.update(g, s, p, **how)
                return gx.apply_updates(p, u), s

            args, key = (params, state, r.place(g)), tuple(how.values())
            if key not in programs:
                programs[key] = r.wrap(one).lower(*args).compile()
                if static and fragments == 1:
                    assert "conditional" not in programs[key].as_text()
            params, state = programs[key](*args)
        ends.append((params, state))
    for x, y in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)


def test_the_flag_sync_must_not_be_traced():
    tx = gd.model_average(SGD, "replica")
    r = replicas("vmap", N)
    params = r.replicate({"w": jnp.ones(3)})
    state = r.wrap(tx.init)(params)
    with pytest.raises(TypeError, match="sync must be True, False or None"):
        r.wrap(lambda p, s: tx.update(p, s, p, sync=jnp.asarray(True)))(params, state)
    with pytest.raises(TypeError, match="model_average: land must be True, False or None"):
        r.wrap(lambda p, s: tx.update(p, s, p, land=jnp.asarray(True)))(params, state)
    with pytest.raises(ValueError, match=r"model_average: land=True needs .* delay > 0"):
        r.wrap(lambda p, s: tx.update(p, s, p, land=True))(params, state)


def test_a_slow_axis_carries_one_slice_of_each_replica():
    both = jax.make_mesh((2, 4), ("slow", "fast"), axis_types=(AxisType.Auto,) * 2)
    tx = gd.model_average(SGD, "slow", period=1, inner_axes=("fast",))
    flat = gd.model_average(SGD, "slow", period=1)

    params = {"w": jnp.asarray(np.random.default_rng(6).normal(size=(2, 5, 2)), jnp.float32)}
    grads = {"w": jnp.ones((2, 5, 2))}

    def wrapped(tx):
        def inner(params, g):
            p = {"w": params["w"][0]}
            out, _ = tx.step({"w": g["w"][0]}, tx.init(p), p, sync=True)
            return {"w": out["w"][None]}

        return jax.jit(
            jax.shard_map(inner, mesh=both, in_specs=(P("slow"), P("slow")), out_specs=P("slow"))
        )

    np.testing.assert_allclose(
        wrapped(tx)(params, grads)["w"], wrapped(flat)(params, grads)["w"], rtol=1e-6
    )


@pytest.mark.parametrize("mode", ["shard_map", "jit"])
def test_a_replica_may_be_divided_over_devices_of_its_own(mode):
    both = jax.make_mesh((2, 4), ("replica", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    tx = gd.diloco(gx.sgd(0.1, momentum=0.9), "replica", period=3)
    rng = np.random.default_rng(7)
    params = {"w": np.float32(rng.normal(size=(32, 16))), "b": np.zeros(16, np.float32)}
    batches = np.float32(rng.normal(size=(7, 8, 32)))

    def train_step(params, state, x):
        def loss(p):
            return jnp.mean(jnp.tanh(x @ p["w"] + p["b"][None]) ** 2)

        return tx.step(jax.grad(loss)(params), state, params)

    def train(r, specs=None):
        carry = r.replicate(params, specs)
        carry = carry, r.wrap(tx.init)(carry)
        step = r.wrap(train_step, donate_argnums=(0, 1))
        lowered = step.lower(*carry, r.split(batches[0])) if r.mesh else None
        for x in batches:
            carry = step(*carry, r.split(x))
        return carry, lowered

    r = gd.Replicas("replica", ("fsdp",), both, mode=mode)
    (new, state), lowered = train(r, {"w": P(None, "fsdp"), "b": P("fsdp")})
    (expected, of_one), _ = train(gd.Replicas("replica", n=2, mode="vmap"))
    for tree, other in ((new, expected), (gd.eval_params(state), gd.eval_params(of_one))):
        for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    for x in (new["w"], state.inner[0].trace["w"], state.anchor["w"], state.outer[0].trace["w"]):
        assert x.sharding.is_equivalent_to(NamedSharding(both, P("replica", None, "fsdp")), 3)
    # Two replicas exchange their quarters; beside that, only sums over a replica's devices travel.
    wire, copy = gd.hlo.wire_bytes(lowered.compile()), gd.hlo.copy_bytes(params)
    assert wire.peak - wire.always == pytest.approx(copy / 4, rel=1e-6)

    with pytest.raises(ValueError, match=r"\['w'\] names \['replica'\].*'fsdp'"):
        r.replicate(params, {"w": P("replica"), "b": P()})
    with pytest.raises(ValueError, match="lacks a sharding"):
        r.replicate(params, {"w": P()})


def test_the_parameters_to_evaluate_are_found_in_any_chain():
    params = {"w": jnp.ones(3)}
    state = gx.chain(gx.clip(1.0), gd.diloco(SGD, "replica")).init(params)
    np.testing.assert_array_equal(gd.eval_params(state)["w"], params["w"])
    with pytest.raises(ValueError, match="a center or an anchor"):
        gd.eval_params(gx.adam(0.1).init(params))


@pytest.mark.parametrize("name", list(RULES))
def test_distributed_transforms_are_values(name):
    tx, _ = RULES[name]
    assert gx.from_config(gx.to_config(tx)) == tx and hash(tx) == hash(tx)
    assert eval(repr(tx), {**names_of(gx), **names_of(gd)}) == tx

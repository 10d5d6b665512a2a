"""Guards in each other: one agreed check of the gradients, the same decision everywhere."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform._jax.jaxprs import jaxprs_of
from gradxform.testing import hlo
from tests.distributed.modes import MODES, replicas
from tests.distributed.replicas.test_guards import SHAPE, N, gradients, run, without

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

SGD = gx.sgd(0.5)
EXCHANGES = {
    "tower": lambda tx: gd.tower(tx, "replica"),
    "sync_replicas": lambda tx: gd.sync_replicas(tx, "replica"),
    "zero1": lambda tx: gd.zero1(tx, "replica"),
    "model_average": lambda tx: gd.model_average(tx, "replica", period=1),
    "diloco": lambda tx: gd.diloco(tx, "replica", period=1),
}
GUARDS = {
    "finite": lambda tx: gx.apply_if_finite(tx, 3),
    "scale": lambda tx: gx.loss_scale(tx, 4.0, None),
    "spikes": lambda tx: gx.skip_loss_spikes(tx, warmup_steps=2),
    "fresh": lambda tx: gd.drop_stale(tx, 0),
    "mask": lambda tx: gx.conditionally_mask(tx, lambda step: step < 100),
    "accumulate": lambda tx: gx.accumulate(tx, 1),
    "weighted": lambda tx: gx.accumulate(tx, 1, "weighted"),
}
STACKS = [
    *itertools.permutations(["finite", "scale"]),
    *itertools.permutations(["spikes", "scale", "finite"]),
    ("fresh", "mask", "finite"),
    ("accumulate", "finite", "scale"),
    ("finite", "mask", "accumulate"),
    ("scale", "weighted", "finite"),
    ("spikes", "fresh"),
]


def stacked(names, tx):
    for name in reversed(names):
        tx = GUARDS[name](tx)
    return tx


def told(names, steps=1):
    """The extra arguments that a stack of guards needs, as `run` takes them."""
    values = {"spikes": ("value", np.float32), "fresh": ("grad_step", np.int32)}
    values["weighted"] = "weight", np.float32
    chosen = [values[name] for name in names if name in values]
    return {k: np.ones((steps, N), d) if k != "grad_step" else None for k, d in chosen}


def step_of(tx, names):
    """A step of all replicas, and shapes and numbers that it takes."""
    r = replicas("shard_map", N)
    params = r.replicate({"w": jnp.zeros((64, 8)), "b": jnp.zeros(8)})
    state = jax.eval_shape(r.wrap(tx.init), params)
    more = {k: np.zeros(N, np.float32 if x is not None else np.int32) for k, x in names.items()}
    step = r.wrap(lambda p, s, g, more: tx.update(g, s, p, **more))
    return step, params, state, params, r.place(more)


def compiled(tx, names):
    step, *args = step_of(tx, names)
    return hlo.collectives(step.lower(*args).compile())


@functools.cache
def requests(exchange):
    """How many collectives an exchange asks for without guards."""
    return len(hlo.count_jaxpr(*step_of(EXCHANGES[exchange](SGD), {})))


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("names", STACKS, ids="-".join)
def test_all_guards_of_a_step_share_one_small_collective(names, exchange):
    # A compiler only puts together what it is asked for: nothing needs to be compiled to count.
    tx = EXCHANGES[exchange](SGD)
    guarded = hlo.count_jaxpr(*step_of(stacked(names, tx), told(names)))
    assert len(guarded) == requests(exchange) + 1
    (first,) = [c for c in guarded if not c.conditions]
    assert first.kind == "all-reduce" and first.bytes <= 32


@pytest.mark.parametrize("names", [s for s in STACKS if "fresh" not in s], ids="-".join)
def test_all_guards_inside_zero1_share_one_small_collective(names):
    alone = compiled(gd.zero1(SGD, "replica"), {})
    guarded = compiled(gd.zero1(stacked(names, SGD), "replica"), told(names))
    assert len(guarded) == len(alone) + 1
    extra = [c for c in guarded if c.kind == "all-reduce"]
    assert sum(c.bytes for c in extra) <= 32 + sum(c.bytes for c in alone if c.kind == "all-reduce")


def passes(closed):
    """How many operations of a program find the largest entry of an array, without its loops."""
    count = 0
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        count += eqn.primitive.name == "reduce_max" and eqn.invars[0].aval.size == 512
        count += sum(passes(inner) for _, inner in jaxprs_of(eqn))
    return count


def test_gradients_are_read_once_without_replicas_too():
    params = {"w": jnp.zeros((64, 8))}
    tx = gx.apply_if_finite(gx.loss_scale(gx.accumulate(SGD, 1), growth_interval=None), 3)
    program = jax.make_jaxpr(tx.update)(params, tx.init(params), params)
    assert passes(program) == 1
    again = gx.apply_if_finite(gx.chain(gx.clip(1.0), gx.apply_if_finite(SGD, 3)), 3)
    assert passes(jax.make_jaxpr(again.update)(params, again.init(params), params)) == 2


# ----------------------------------------------------------------------------- the same decision


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_one_bad_gradient_is_seen_alike_by_every_guard_on_every_replica(exchange, mode):
    grads = gradients(4, [(1, 2), (2, 0)])
    names = "spikes", "scale", "finite"
    tx = stacked(names, EXCHANGES[exchange](SGD))
    params, state = run(tx, mode, 4 * grads, **told(names, 4))
    good = grads[without(4, [1, 2])]
    if exchange == "diloco":
        assert np.isfinite(params).all()
    else:
        expected = -0.5 * good.mean(1).sum(0)
        np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)
    np.testing.assert_array_equal(params[0], params[2])
    scale, finite = state.inner_state, state.inner_state.inner_state
    np.testing.assert_array_equal(scale.total_skipped, np.full(N, 2))
    np.testing.assert_array_equal(scale.loss_scale, np.full(N, 4.0))
    np.testing.assert_array_equal(finite.total_notfinite, np.zeros(N))  # it did not run
    np.testing.assert_array_equal(state.total_skipped, np.zeros(N))


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("names", [("finite", "scale"), ("scale", "finite")], ids="-".join)
def test_guards_inside_zero1_see_the_bad_shard_of_another_device(names, mode):
    grads = gradients(4, [(1, 2)])
    tx = gd.zero1(stacked(names, gx.sgd(0.5, 0.9)), "replica")
    params, state = run(tx, mode, 4 * grads)
    reference = gx.sgd(0.5, 0.9)
    p = {"w": jnp.zeros(SHAPE)}
    s = reference.init(p)
    for t in without(4, [1]):
        u, s = reference.update({"w": grads[t].mean(0)}, s, p)
        p = gx.apply_updates(p, u)
    np.testing.assert_allclose(params[-1], np.broadcast_to(p["w"], (N, *SHAPE)), rtol=1e-5)
    assert all(len(set(np.ravel(x))) == 1 for x in jax.tree.leaves(state.inner) if x.ndim == 1)


@pytest.mark.parametrize("mode", list(MODES))
def test_a_loss_that_stands_out_on_one_device_skips_the_step_of_all_shards(mode):
    value = np.ones((4, N), np.float32)
    value[2, 1] = np.nan
    shape = 4, 2  # of which every device has a row
    grads = np.random.default_rng(0).normal(size=(4, N, *shape)).astype(np.float32)
    tx = gd.zero1(gx.skip_loss_spikes(SGD, warmup_steps=2), "replica")
    r = replicas(mode, N)
    params = r.replicate({"w": jnp.zeros(shape)})
    state = r.wrap(tx.init)(params)

    def step(params, state, g, value):
        return tx.step({"w": g}, state, params, value=value)

    wrapped, expected = r.wrap(step), np.zeros(shape)
    for t in range(4):
        params, state = wrapped(params, state, r.place(grads[t]), r.place(value[t]))
        expected = expected - (0.5 * grads[t].mean(0) if t != 2 else 0)
        got = np.asarray(params["w"])
        np.testing.assert_allclose(got, np.broadcast_to(expected, (N, *shape)), atol=1e-5)
    np.testing.assert_array_equal(state.inner.total_skipped, np.ones(N))


@pytest.mark.parametrize("mode", list(MODES))
def test_a_guard_inside_a_replica_does_not_see_what_others_have(mode):
    """The outer guard accepts what it must; the inner one keeps it from one replica alone."""
    tx = gd.model_average(gx.apply_if_finite(SGD, 3), "replica", period=100)
    grads = gradients(1, [(0, 1)])
    params, state = run(gx.apply_if_finite(tx, 0), mode, grads)
    expected = -0.5 * grads[0]
    expected[1] = 0
    np.testing.assert_allclose(params[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(state.total_notfinite, np.ones(N))
    np.testing.assert_array_equal(state.inner_state.inner.total_notfinite, [0, 1, 0, 0])


@pytest.mark.parametrize("mode", list(MODES))
def test_a_scale_that_makes_an_infinity_is_seen_by_the_inner_guard_alone(mode):
    inner = gx.loss_scale(gd.tower(SGD, "replica"), 2.0**-10, None, min_scale=2.0**-12)
    grads = gradients(2)
    grads[0, 3, 0, 0] = 1e37
    params, state = run(gx.apply_if_finite(inner, 3), mode, grads)
    assert not params[0].any() and params[1].any() and np.isfinite(params).all()
    np.testing.assert_array_equal(state.total_notfinite, np.zeros(N))
    np.testing.assert_array_equal(state.inner_state.total_skipped, np.ones(N))


@pytest.mark.parametrize("mode", ["shard_map", "jit"])
@pytest.mark.parametrize("outside", [False, True])
def test_a_bad_entry_in_one_piece_of_a_replica_skips_its_step(outside, mode):
    both = jax.make_mesh((2, 4), ("replica", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    r = gd.Replicas("replica", ("fsdp",), both, mode=mode)
    inner = gd.model_average(SGD if outside else gx.apply_if_finite(SGD, 3), "replica", period=100)
    tx = gx.apply_if_finite(gx.loss_scale(inner, 1.0, None), 3) if outside else inner
    params = r.replicate({"w": np.zeros((8, 4), np.float32)}, {"w": P("fsdp")})
    state = r.wrap(tx.init)(params)

    def one(p, s, g):
        u, s = tx.update({"w": g}, s, p)
        return gx.apply_updates(p, u), s

    step = r.wrap(one)
    grads = np.ones((2, 8, 4), np.float32)
    grads[1, 7, 0] = np.inf  # in the last piece of the second replica
    params, state = step(params, state, r.place(grads))
    moved = np.asarray(params["w"])
    assert not moved[1].any() and (moved[0] == (0 if outside else -0.5)).all()


@pytest.mark.parametrize("mode", list(MODES))
def test_a_weight_that_is_wrong_on_one_replica_leaves_out_the_micro_batch_for_all(mode):
    tx = gx.accumulate(gd.tower(SGD, "replica"), 2, "weighted")
    grads, weight = gradients(4, [(3, 1)]), np.ones((4, N), np.float32)
    weight[0, 2] = np.nan
    weight[3, 1] = 0  # its NaN does not matter
    params, state = run(tx, mode, grads, weight=weight)
    assert np.isfinite(params).all()
    first = grads[1].mean(0)
    rest = grads[2:].copy()
    rest[1, 1] = 0
    share = np.full(N, 0.5)[:, None, None]
    share[1] = 1
    second = (share * rest[0] + (1 - share) * rest[1]).mean(0)
    expected = -0.5 * (first + second)
    np.testing.assert_allclose(params[-1], np.broadcast_to(expected, (N, *SHAPE)), rtol=1e-5)
    np.testing.assert_array_equal(state.total_skipped, np.ones(N))

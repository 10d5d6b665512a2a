"""Weighted means over replicas, against NumPy; an argument that nobody takes is an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd

pytestmark = pytest.mark.numeric

N = 4
RNG = np.random.default_rng(0)
GRADS = RNG.normal(size=(N, 3, 2)).astype(np.float32)
WEIGHTS = np.array([3.0, 1.0, 0.0, 12.0], np.float32)
PARAMS = jnp.ones((3, 2))
TOWER = gd.tower(gx.sgd(1.0), "r")
SYNC = gd.sync_replicas(gx.sgd(1.0), "r", weighted=True)


def weighted_mean(gs, ws):
    counted = [i for i, w in enumerate(ws) if w]
    if not counted:
        return np.zeros_like(gs[0])
    return sum(ws[i] * gs[i].astype(np.float64) for i in counted) / sum(ws[i] for i in counted)


def first_update(tx):
    def one(g, w):
        return tx.update(g, tx.init(PARAMS), PARAMS, weight=w)[0]

    return one


def by_vmap(tx, gs, ws):
    return jax.vmap(first_update(tx), axis_name="r")(jnp.asarray(gs), jnp.asarray(ws))


def by_shard_map(tx, gs, ws):
    mesh = jax.make_mesh((N,), ("r",), axis_types=(AxisType.Auto,), devices=jax.devices()[:N])
    one = first_update(tx)
    run = jax.shard_map(
        lambda g, w: one(g[0], w[0])[None], mesh=mesh, in_specs=P("r"), out_specs=P("r")
    )
    return jax.jit(run)(jnp.asarray(gs), jnp.asarray(ws))


@pytest.mark.parametrize("run", [by_vmap, lambda *a: jax.jit(by_vmap, static_argnums=0)(*a)])
@pytest.mark.parametrize("tx", [TOWER, SYNC], ids=repr)
def test_the_mean_is_that_of_the_weights(tx, run):
    for ws in (WEIGHTS, np.ones(N, np.float32), WEIGHTS.astype(np.int32), np.zeros(N)):
        us = run(tx, GRADS, ws)
        for u in us:
            np.testing.assert_allclose(u, -weighted_mean(GRADS, ws), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tx", [TOWER, SYNC], ids=repr)
def test_devices_agree_on_the_mean(tx, eight_devices):
    us = by_shard_map(tx, GRADS, WEIGHTS)
    for u in us:
        np.testing.assert_allclose(u, -weighted_mean(GRADS, WEIGHTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tx", [TOWER, SYNC], ids=repr)
def test_a_replica_without_weight_does_not_count_even_if_it_is_nan(tx):
    gs = GRADS.copy()
    gs[2] = np.nan
    for u in by_vmap(tx, gs, WEIGHTS):
        np.testing.assert_allclose(u, -weighted_mean(GRADS, WEIGHTS), rtol=1e-5, atol=1e-6)


def test_sums_are_weighted_too():
    tx = gd.tower(gx.sgd(1.0), "r", reduction="sum")
    expected = -sum(w * g for w, g in zip(WEIGHTS, GRADS, strict=True))
    np.testing.assert_allclose(by_vmap(tx, GRADS, WEIGHTS)[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "options, rtol", [({"wire_dtype": "bfloat16"}, 0.02), ({"compress": gd.int8(2)}, 0.05)]
)
@pytest.mark.parametrize("kind", [gd.tower, gd.sync_replicas])
def test_weighted_gradients_travel_in_few_bits(kind, options, rtol):
    more = {"weighted": True} if kind is gd.sync_replicas else {}
    tx = kind(gx.sgd(1.0), "r", **options, **more)
    expected = -weighted_mean(GRADS, WEIGHTS)
    u = by_vmap(tx, GRADS, WEIGHTS)[0]
    np.testing.assert_allclose(u, expected, atol=rtol * np.abs(expected).max())


def test_huge_weights_do_not_overflow_16_bits():
    gs, ws = jnp.full((N, 2), 100.0, jnp.float16), jnp.full((N,), 1e6)

    def one(g, w):
        params = jnp.ones(2, jnp.float16)
        return TOWER.update(g, TOWER.init(params), params, weight=w)[0]

    us = jax.jit(jax.vmap(one, axis_name="r"))(gs, ws)
    np.testing.assert_allclose(us, -100.0, rtol=1e-2)


def test_rows_are_weighted():
    def one(i, g, w):
        rows = gx.RowSparse(i[None], g[None], 3)
        return TOWER.update(rows, TOWER.init(PARAMS), PARAMS, weight=w)[0].to_dense()

    indices, values = jnp.array([0, 1, 1, 2]), jnp.asarray(GRADS[:, 0])
    us = jax.jit(jax.vmap(one, axis_name="r"))(indices, values, jnp.asarray(WEIGHTS))
    dense = np.zeros((N, 3, 2), np.float32)
    dense[np.arange(N), np.asarray(indices)] = values
    np.testing.assert_allclose(us[0], -weighted_mean(dense, WEIGHTS), rtol=1e-5, atol=1e-6)


def test_weights_add_up_over_the_calls_of_a_quorum():
    """Eight contributions of four replicas make a step."""
    tx = gd.sync_replicas(gx.sgd(1.0), "r", replicas_to_aggregate=8, weighted=True)
    later = RNG.normal(size=GRADS.shape).astype(np.float32)
    ws = np.array([1.0, 0.0, 2.0, 5.0], np.float32)

    def two(g, h, w, v):
        first, state = tx.update(g, tx.init(PARAMS), PARAMS, weight=w)
        second, state = tx.update(h, state, PARAMS, weight=v)
        return first, second, state.weight

    first, second, left = jax.vmap(two, axis_name="r")(
        *map(jnp.asarray, (GRADS, later, WEIGHTS, ws))
    )
    assert not np.any(first) and not np.any(left)
    expected = -weighted_mean(np.concatenate([GRADS, later]), np.concatenate([WEIGHTS, ws]))
    np.testing.assert_allclose(second[0], expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_contribute_does_not_weigh():
    tx = gd.sync_replicas(gx.sgd(1.0), "r", replicas_to_aggregate=2, weighted=True)

    def one(g, w, ok):
        return tx.update(g, tx.init(PARAMS), PARAMS, weight=w, contribute=ok)[0]

    oks = np.array([True, True, False, False])
    us = jax.vmap(one, axis_name="r")(*map(jnp.asarray, (GRADS, WEIGHTS, oks)))
    np.testing.assert_allclose(us[0], -weighted_mean(GRADS, WEIGHTS * oks), rtol=1e-5, atol=1e-6)


def alone(tx, **extra):
    def one(g):
        return tx.update(g, tx.init(PARAMS), PARAMS, **extra)[0]

    return jax.vmap(one, axis_name="r")(jnp.asarray(GRADS))


REFUSED = {
    "negative": (TOWER, -1.0, ValueError, "tower: weight must be at least 0, got -1.0"),
    "not a number": (TOWER, "much", TypeError, "tower: weight must be one real number"),
    "not a scalar": (TOWER, jnp.ones(2), TypeError, "tower: weight must be one real number"),
    "reduced": (gd.tower(gx.sgd(1.0), "r", reduced="sum"), 1.0, TypeError, "own gradients"),
    "undeclared": (gd.sync_replicas(gx.sgd(1.0), "r"), 1.0, TypeError, "weighted=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_that_cannot_be_meant_are_refused(name):
    tx, weight, error, match = REFUSED[name]
    with pytest.raises(error, match=match):
        alone(tx, weight=weight)
    with pytest.raises(TypeError, match="needs the extra argument 'weight'"):
        alone(SYNC)


OTHERS = {
    "model_average": gd.model_average(gx.sgd(1.0), "r", period=1),
    "diloco": gd.diloco(gx.sgd(1.0), "r"),
    "elastic_average": gd.elastic_average(gx.sgd(1.0), "r", period=1, rho=0.1),
    "agn": gd.agn(gx.sgd(1.0), "r", period=1),
    "zero1": gd.zero1(gx.sgd(1.0), "r"),
    "drop_stale": gd.drop_stale(gx.sgd(1.0), 1),
    "chain": gx.chain(gx.clip(1.0), gd.zero1(gx.sgd(1.0), "r")),
    "loss_scale": gx.loss_scale(gx.sgd(1.0), axis_name="r"),
}


@pytest.mark.parametrize("name", [*OTHERS, "tower", "sync_replicas"])
def test_an_argument_that_nobody_takes_is_refused(name):
    tx = {**OTHERS, "tower": TOWER, "sync_replicas": SYNC}[name]
    extra = {"grad_step": 0} if name == "drop_stale" else {}
    extra = {"weight": 1.0} if name == "sync_replicas" else extra
    wrong = "examples" if name in ("tower", "sync_replicas") else "weight"
    with pytest.raises(TypeError, match=rf"no part takes the extra argument '{wrong}'"):
        alone(tx, **extra, **{wrong: 1.0})
    # What a loop gives to all is not a mistake.
    if name not in ("loss_scale", "drop_stale", "sync_replicas"):
        alone(tx, value=1.0)

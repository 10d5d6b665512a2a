"""What exchanges have done: the bytes of compiled programs, and the counts of runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.testing import hlo
from tests.distributed.modes import replicas

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N, STEPS = 8, 7
SGD = gx.sgd(0.1, 0.9)
WAYS = {"as they are": {}, "int8": {"compress": gd.int8(64)}, "sign": {"compress": gd.sign(64)}}
WAYS |= {"top_k": {"compress": gd.top_k(0.1)}, "rank 2": {"compress": gd.powersgd(2)}}
WAYS |= {"bfloat16": {"wire_dtype": "bfloat16"}}
PARTS = {
    "tower": (lambda **how: gd.tower(SGD, "replica", **how), STEPS),
    "sync_replicas": (lambda **how: gd.sync_replicas(SGD, "replica", **how), STEPS),
    "model_average": (lambda **how: gd.model_average(SGD, "replica", period=3, **how), 2),
    "warm": (lambda **how: gd.model_average(SGD, "replica", period=3, warmup=4, **how), 5),
    "elastic_average": (
        lambda **how: gd.elastic_average(SGD, "replica", period=2, rho=0.0, **how),
        3,
    ),
    "agn": (lambda **how: gd.agn(SGD, "replica", period=2, **how), 3),
    "diloco": (lambda **how: gd.diloco(SGD, "replica", period=3, **how), 2),
    "fragments": (lambda **how: gd.diloco(SGD, "replica", period=4, fragments=2, **how), 3),
    "delay": (lambda **how: gd.diloco(SGD, "replica", period=3, delay=2, **how), 2),
}
MORE = {
    "zero1": (gd.zero1(SGD, "replica"), STEPS),
    "state too": (gd.model_average(SGD, "replica", period=2, average_state=True), 3),
    "guarded": (gd.diloco(gx.apply_if_finite(SGD, 3), "replica", period=2), 3),
    "in a chain": (gx.chain(gx.clip(1.0), gd.model_average(SGD, "replica", period=2)), 3),
    "in turns": (gd.agn(SGD, "replica", period=2, order="sequential"), 3),
    "elastic in turns": (
        gd.elastic_average(SGD, "replica", period=2, rho=0.0, order="sequential"),
        3,
    ),
}
ALL = {name: (made(), count) for name, (made, count) in PARTS.items()} | MORE


def tree(dtype=jnp.float32):
    return {"w": jnp.zeros((64, 32), dtype), "v": jnp.zeros((128, 8), dtype), "b": jnp.zeros(7)}


def total_sent(tx, params, mode="shard_map"):
    """The bytes of all collectives of a compiled step, in all branches of its conditions."""
    r = replicas(mode, N)
    params = r.replicate(params)
    state = r.wrap(tx.init)(params)

    def step(p, s, g):
        return tx.update(g, s, p)

    compiled = r.wrap(step).lower(params, state, params).compile()
    return sum(c.sent for c in hlo.collectives(compiled)), state, params


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PARTS)
def test_bytes_of_an_exchange_are_those_of_the_compiled_program(name, way):
    tx = PARTS[name][0](**WAYS[way])
    sent, state, params = total_sent(tx, tree())
    found = gd.exchange_metrics(tx, state, params, {"replica": N}, steps=0)
    # The program has the bytes of all fragments.
    assert found["bytes_per_exchange"] * getattr(tx, "fragments", 1) == pytest.approx(sent)
    assert found["bytes_sent"] == 0 and sent > 0


@pytest.mark.parametrize("name", ["tower", "model_average", "diloco"])
def test_bytes_of_sixteen_bits(name):
    tx = PARTS[name][0]()
    sent, state, params = total_sent(tx, tree(jnp.bfloat16))
    found = gd.exchange_metrics(tx, state, params, {"replica": N})
    assert found["bytes_per_exchange"] == pytest.approx(sent)


@pytest.mark.parametrize("name", MORE)
def test_bytes_of_compositions_are_those_of_the_compiled_program(name):
    tx = MORE[name][0]
    sent, state, params = total_sent(tx, tree())
    found = gd.exchange_metrics(tx, state, params, {"replica": N})
    assert found["bytes_per_exchange"] == pytest.approx(sent)


def trained(tx, steps, **more):
    r = replicas("vmap", N)
    params = r.replicate(tree())
    state = r.wrap(tx.init)(params)
    step, rng = r.wrap(lambda p, s, g, more: tx.update(g, s, p, **more)), np.random.default_rng(0)
    for _ in range(steps):
        g = jax.tree.map(lambda p: np.float32(rng.normal(size=p.shape)), params)
        updates, state = step(params, state, r.place(g), r.place(more))
        params = gx.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("name", ALL)
def test_exchanges_are_counted_as_they_happen(name):
    tx, count = ALL[name]
    params, state = trained(tx, STEPS)
    mesh = {"replica": N}
    found = gd.exchange_metrics(tx, state, params, mesh, steps=STEPS)
    assert found["exchanges"] == count
    assert found["bytes_sent"] == pytest.approx(count * found["bytes_per_exchange"], rel=0.05)
    traced = jax.jit(lambda s, p: gd.exchange_metrics(tx, s, p, mesh, steps=STEPS))(state, params)
    assert traced.keys() == found.keys()
    assert float(traced["bytes_sent"]) == pytest.approx(float(found["bytes_sent"]), rel=1e-6)
    if name in ("tower", "zero1", "sync_replicas"):
        without = gd.exchange_metrics(tx, state, params, mesh)
        assert "bytes_sent" not in without and "exchanges" not in without


def test_fragments_are_counted_one_by_one():
    tx = gd.diloco(SGD, "replica", period=2, fragments=2)
    params = {"large": jnp.zeros((1, 65)), "small": jnp.zeros((1, 40))}  # an odd sum
    stacked = jax.tree.map(lambda p: jnp.broadcast_to(p, (N, *p.shape)), params)
    state = tx.init(params)
    one = gd.exchange_metrics(tx, state, stacked, {"replica": N})["bytes_per_exchange"]
    sums = []
    for n in range(5):
        counted = state._replace(global_step=jnp.asarray(n))
        sums.append(gd.exchange_metrics(tx, counted, stacked, {"replica": N})["bytes_sent"])
    first, second = sums[1], sums[2] - sums[1]
    assert first != second and first + second == 2 * one == 1.75 * hlo.copy_bytes(params)
    assert sums == [0, first, first + second, 2 * first + second, 2 * (first + second)]


def test_many_bytes_are_exact_outside_of_jit():
    tx = gd.model_average(SGD, "replica")
    state = tx.init({"w": jnp.zeros(2)})._replace(global_step=jnp.asarray(10**9 + 1))
    shapes = {"w": jax.ShapeDtypeStruct((1 << 16, 1 << 12), jnp.float32)}
    found = gd.exchange_metrics(tx, state, shapes, {"replica": N}, replicas=False)
    assert found["bytes_sent"] == (10**9 + 1) * 1.75 * 2**30


def test_replicas_in_slices_count_both_networks():
    mesh = jax.make_mesh((2, 4), ("dcn", "ici"), axis_types=(AxisType.Auto,) * 2)
    tx = gd.diloco(gd.zero1(gx.adam(0.1), "ici"), "dcn", period=5, inner_axes=("ici",))
    params = {"w": jnp.zeros((64, 32))}

    def mapped(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))

    state = mapped(tx.init)(params)
    step = mapped(lambda p: tx.update(p, tx.init(p), p)[0])
    compiled = step.lower(params).compile()
    found = gd.exchange_metrics(tx, state, params, mesh, replicas=False, steps=3)
    copy = hlo.copy_bytes(params)
    assert found["zero1/bytes_per_exchange"] == 2 * 3 / 4 * copy
    assert found["outer/bytes_per_exchange"] == copy / 4 + 3 / 4 * copy
    each = found["zero1/bytes_per_exchange"] + found["outer/bytes_per_exchange"]
    assert sum(c.sent for c in hlo.collectives(compiled)) == pytest.approx(each)
    assert found["bytes_sent"] == 3 * found["zero1/bytes_per_exchange"]
    assert "distance_to_mean" not in found


def test_distances_to_the_mean_of_the_replicas():
    tx = gd.model_average(SGD, "replica", period=4)
    params, state = trained(tx, 3)
    found = gd.exchange_metrics(tx, state, params, {"replica": N})
    flat = np.concatenate([np.asarray(p).reshape(N, -1) for p in jax.tree.leaves(params)], axis=1)
    each = np.linalg.norm(flat - flat.mean(0), axis=1)
    np.testing.assert_allclose(found["distance_to_mean"], each.mean(), rtol=1e-5)
    np.testing.assert_allclose(found["distance_to_mean/min"], each.min(), rtol=1e-5)
    np.testing.assert_allclose(found["distance_to_mean/max"], each.max(), rtol=1e-5)
    assert found["steps_since_exchange"] == 3
    params, state = trained(tx, 4)
    found = gd.exchange_metrics(tx, state, params, {"replica": N})
    assert found["distance_to_mean/max"] < 1e-4 and found["steps_since_exchange"] == 0


def test_replicas_that_do_not_contribute_and_stale_gradients_are_shown():
    tx = gd.sync_replicas(SGD, "replica", replicas_to_aggregate=2 * N)
    here = np.arange(N) > 0
    params, state = trained(tx, 1, contribute=here)
    found = gd.exchange_metrics(tx, state, params, {"replica": N}, steps=1)
    assert found["contributing"] == N - 1
    assert gx.metrics(state, replicas=True)["dropped"] == 1
    tx = gd.drop_stale(gd.tower(SGD, "replica"), 0)
    params, state = trained(tx, 2, grad_step=np.zeros(N, np.int32))
    found = gd.exchange_metrics(tx, state, params, {"replica": N}, steps=1)
    assert found["exchanges"] == 1 and gx.metrics(state, replicas=True)["stale_counter"] == 1


def test_what_an_update_requires_is_given_as_an_example():
    inner = gx.skip_loss_spikes(SGD)
    tx = gd.tower(inner, "replica")
    shapes = tree()
    with pytest.raises(TypeError, match="value"):
        gd.exchange_metrics(tx, tx.init(shapes), shapes, {"replica": N}, replicas=False)
    found = gd.exchange_metrics(
        tx, tx.init(shapes), shapes, {"replica": N}, replicas=False, extra={"value": 1.0}
    )
    assert found["bytes_per_exchange"] == 1.75 * hlo.copy_bytes(shapes)


def test_an_exchange_inside_another_is_counted_once():
    tx = gd.sync_replicas(gd.tower(SGD, "outside"), "inside")
    shapes, sizes = tree(), {"inside": 2, "outside": 4}
    found = gd.exchange_metrics(tx, tx.init(shapes), shapes, sizes, replicas=False, steps=2)
    copy = hlo.copy_bytes(shapes)
    assert found["tower/bytes_per_exchange"] == 2 * 3 / 4 * copy
    # Its own sum, and a few numbers about who contributes.
    assert copy <= found["sync_replicas/bytes_per_exchange"] <= copy + 16
    both = found["tower/bytes_sent"] + found["sync_replicas/bytes_sent"]
    assert found["bytes_sent"] == both

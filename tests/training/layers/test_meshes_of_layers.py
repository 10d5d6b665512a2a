"""Layers that are divided over devices, and replicas, go where one device goes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from tests.training.layers.models import check_equal, drawn

pytestmark = pytest.mark.numeric

LAYERS, WIDTH, DEVICES = 3, 16, 4
SPECS = {
    "embed": P(),
    "layers": {"up": P(None, "d", None), "down": P(None, "d", None), "b": P()},
}
KINDS = {
    "adamw": gx.adamw(1e-2),
    "8 bits": gx.quantize_state(gx.adamw(1e-2), min_size=0),
    "clip": gx.chain(gx.clip_by_global_norm(0.01), gx.adamw(1e-2)),
    "lamb": gx.stacked(gx.lamb(1e-2), "layers"),
}


def params_of():
    return {
        "embed": drawn(0, WIDTH, WIDTH),
        "layers": {
            "up": drawn(1, LAYERS, WIDTH, 2 * WIDTH),
            "down": drawn(2, LAYERS, 2 * WIDTH, WIDTH),
            "b": drawn(3, LAYERS, WIDTH),
        },
    }


BATCH = drawn(4, 8, WIDTH)


def loss_of(gather):
    def block(p, x):
        p = jax.tree.map(gather, p)  # as in FSDP: a layer is whole where it is used
        return x + jnp.tanh(x @ p["up"]) @ p["down"] + p["b"][None]

    def loss(params, batch):
        x = gx.scan_layers(block, params["layers"], batch @ params["embed"])
        return jnp.mean(x**2)

    return loss


def run(step, tx, params, batch):
    state = jax.jit(tx.init)(params)
    for _ in range(3):
        params, state, loss = step(params, state, batch)
    return params, loss


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", KINDS)
def test_shards_of_layers(name, kind):
    tx = KINDS[name]
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(kind,))
    is_explicit = kind == AxisType.Explicit

    def gather(x):
        if is_explicit:
            return jax.sharding.reshard(x, P())
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))

    alone = run(gx.make_step(tx, loss_of(lambda x: x)), tx, params_of(), BATCH)
    with jax.set_mesh(mesh):
        places = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), SPECS, is_leaf=lambda x: isinstance(x, P)
        )
        params = jax.device_put(params_of(), places)
        batch = jax.device_put(BATCH, NamedSharding(mesh, P("d")))
        step = gx.make_step(tx, loss_of(gather), update_in_backward=True)
        ours = run(step, tx, params, batch)
    check_equal(jax.device_get(ours), jax.device_get(alone), rtol=2e-5)
    for x, place in zip(jax.tree.leaves(ours[0]), jax.tree.leaves(places), strict=True):
        assert x.sharding.is_equivalent_to(place, x.ndim)


@pytest.mark.parametrize("name", ["adamw", "clip"])
def test_replicas(name):
    tx = KINDS[name]
    mesh = jax.make_mesh((DEVICES,), ("r",), axis_types=(AxisType.Auto,))
    for both in gd.tower(tx, "r"), gd.sync_replicas(tx, "r"):
        step = gx.make_step(both, loss_of(lambda x: x), update_in_backward=True)

        def of_replica(params, state, batch, step=step):
            params = jax.tree.map(lambda x: jax.lax.pcast(x, "r", to="varying"), params)
            return step(params, state, batch)

        mapped = jax.shard_map(
            of_replica,
            mesh=mesh,
            in_specs=(P(), P(), P("r")),
            out_specs=(P(), P(), P()),
            check_vma=False,
        )
        ours = run(jax.jit(mapped), both, params_of(), BATCH)
        alone = run(gx.make_step(tx, loss_of(lambda x: x)), tx, params_of(), BATCH)
        check_equal(ours[0], alone[0], rtol=2e-5)


@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
def test_replicas_of_a_wrapped_step(mode):
    tx = gd.tower(KINDS["clip"], "replicas")
    replicas = gd.Replicas("replicas", n=DEVICES, mode=mode)
    ours = []
    for kind in (True, False):
        step = replicas.wrap(gx.make_step(tx, loss_of(lambda x: x), update_in_backward=kind))
        params, state = replicas.init(params_of, tx=tx)
        for _ in range(3):
            params, state, _ = step(params, state, replicas.split(BATCH))
        ours.append(params)
    check_equal(*ours, rtol=1e-6)

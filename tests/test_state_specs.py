"""How a state lies in a `shard_map`: programs with these specs beside runs without a mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.distributed.shared_leaves import is_shared
from tests.catalogue import CASES, params as catalogue_params

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

STEPS = 4  # in two calls
SHAPES = {"w": (16, 24), "b": (24,), "odd": (5, 4), "scale": ()}
MATRICES = gx.ndim_at_least(2)
BOTH = "dcn", "ici"


def mesh_of():
    return jax.make_mesh((2, 4), BOTH, axis_types=(AxisType.Auto,) * 2)


def start(shapes=SHAPES):
    rng = np.random.default_rng(0)
    return {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}


def gradients(shape, shapes=SHAPES):
    """Gradients of all steps, for devices of that shape."""
    rng = np.random.default_rng(1)
    return {
        k: np.asarray(rng.normal(size=(STEPS, *shape, *s)), np.float32) for k, s in shapes.items()
    }


def loop(tx, params, state, grads):
    def one(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        return (gx.apply_updates(params, updates), state), None

    return jax.lax.scan(one, (params, state), grads)[0]


def through_the_host(tree):
    """Write and read arrays as a checkpoint does, so that nothing but what specs say is kept."""
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x), x.sharding), tree)


def without_axis(tree, specs, axes):
    return jax.tree.map(lambda x, s: x[0] if axes and len(s) else x, tree, specs)


def with_axis(tree, specs, axes):
    return jax.tree.map(lambda x, s: jnp.asarray(x)[None] if axes and len(s) else x, tree, specs)


def is_small(p):
    return jnp.ndim(p) < 2


# ---------------------------------------------------------------------------- replicas

# A composition; the axes along which replicas have their own parameters; those along which they
# have their own gradients.
ADAMW = gx.adamw(1e-2, weight_decay=0.1)
COMPOSED = {
    "model_average": (
        gd.model_average(ADAMW, "dcn", period=3, keep_center=True),
        ("dcn",),
        ("dcn",),
    ),
    "in a chain": (
        gx.chain(gx.trace(0.9), gd.model_average(gx.sgd(0.1), "dcn", period=3), gx.clip(5.0)),
        ("dcn",),
        ("dcn",),
    ),
    "accumulated": (
        gx.MultiSteps(gd.model_average(gx.adam(0.1), "dcn", period=1), 2),
        ("dcn",),
        ("dcn",),
    ),
    "elastic": (gd.elastic_average(gx.adam(0.1), "dcn", period=3, rho=0.1), ("dcn",), ("dcn",)),
    "elastic, in turns": (
        gd.elastic_average(gx.adam(0.1), "dcn", period=3, rho=0.1, order="sequential"),
        ("dcn",),
        ("dcn",),
    ),
    "agn": (gd.agn(gx.adam(0.1), "dcn", period=3), ("dcn",), ("dcn",)),
    "diloco of zero1": (gd.diloco(gd.zero1(ADAMW, "ici"), "dcn", period=3), ("dcn",), BOTH),
    "delayed": (
        gd.diloco(gd.tower(ADAMW, "ici"), "dcn", period=2, fragments=1, delay=1),
        ("dcn",),
        BOTH,
    ),
    "nested": (
        gd.model_average(gd.model_average(ADAMW, "ici", period=2), "dcn", period=4),
        BOTH,
        BOTH,
    ),
    "tower": (gd.tower(gx.chain(gx.clip_by_global_norm(1.0), ADAMW), BOTH), (), BOTH),
    "sync_replicas": (gd.sync_replicas(ADAMW, "dcn", replicas_to_aggregate=4), (), ("dcn",)),
    "accumulated tower": (gx.accumulate(gd.tower(ADAMW, BOTH), 2), BOTH, BOTH),
    "accumulated zero1": (gx.MultiSteps(gd.zero1(ADAMW, ("ici", "dcn")), 2), BOTH, BOTH),
    "zero1": (gd.zero1(gx.chain(gx.clip_by_global_norm(1.0), ADAMW), BOTH), (), BOTH),
    "guarded zero1": (gx.apply_if_finite(gd.zero1(ADAMW, ("ici", "dcn")), 3), (), BOTH),
    "guarded and accumulated": (
        gd.zero1(gx.apply_if_finite(gx.MultiSteps(ADAMW, 2), 3), ("ici", "dcn")),
        (),
        BOTH,
    ),
    "momentum after a tower": (
        gx.chain(gd.tower(gx.clip(1.0), "dcn"), gx.trace(0.9)),
        (),
        ("dcn",),
    ),
    "zero1 of matrices": (gd.zero1(gx.muon(1e-2), BOTH), (), BOTH),
    "zero1 for some": (
        gx.partition(
            {"m": gd.zero1(ADAMW, "ici"), "rest": gd.tower(gx.sgd(0.1, 0.9), "ici")},
            gx.label_by(("m", MATRICES), ("rest", True)),
        ),
        (),
        ("ici",),
    ),
    "masked zero1": (
        gx.chain(
            gx.masked(gd.zero1(ADAMW, BOTH), MATRICES),
            gx.masked(gd.tower(gx.sgd(0.1), BOTH), lambda params: jax.tree.map(is_small, params)),
        ),
        (),
        BOTH,
    ),
    "in 8 bits": (
        gd.model_average(
            gd.zero1(gx.quantize_state(gx.adam(0.1), 8, 2, min_size=8), "ici"),
            "dcn",
            period=3,
        ),
        ("dcn",),
        BOTH,
    ),
    "in the host's memory": (
        gd.model_average(gx.offload_state(gx.adam(0.1)), "dcn", period=3),
        ("dcn",),
        ("dcn",),
    ),
}


@pytest.mark.parametrize("name", list(COMPOSED))
def test_each_device_has_what_its_replica_has_alone(name):
    tx, apart, data = COMPOSED[name]
    mesh, params = mesh_of(), start()
    one = gd.state_specs(tx, params, P(), mesh=mesh, replicas=apart)
    lead = P(apart) if apart else P()
    # JAX takes what a guard returns for different on all devices.
    smap = functools.partial(jax.shard_map, mesh=mesh, check_vma=name != "guarded zero1")

    def init(params):
        params = without_axis(params, jax.tree.map(lambda _: lead, params), apart)
        return with_axis(tx.init(params), one, apart)

    def steps(params, state, grads):
        grads = jax.tree.map(lambda g: jnp.squeeze(g, (1, 2)), grads)
        of_params = jax.tree.map(lambda _: lead, params)
        params = without_axis(params, of_params, apart)
        params, state = loop(tx, params, without_axis(state, one, apart), grads)
        return with_axis(params, of_params, apart), with_axis(state, one, apart)

    n = int(np.prod([mesh.shape[a] for a in apart])) if apart else None
    ours = jax.tree.map(lambda p: jnp.broadcast_to(p, (n, *p.shape)) if n else p, params)
    grads = gradients([mesh.shape[a] if a in data else 1 for a in BOTH])
    of_grads = P(None, *[a if a in data else None for a in BOTH])
    state = jax.jit(smap(init, in_specs=lead, out_specs=one))(ours)
    run = jax.jit(smap(steps, in_specs=(lead, one, of_grads), out_specs=(lead, one)))
    for half in np.split(np.arange(STEPS), 2):
        state = through_the_host(state)
        ours, state = run(ours, state, {k: g[half] for k, g in grads.items()})

    def alone(grads):
        return loop(tx, params, tx.init(params), grads)

    every = {
        k: np.broadcast_to(g, (STEPS, 2, 4, *g.shape[3:])).astype(np.float32)
        for k, g in grads.items()
    }
    of_all = jax.vmap(jax.vmap(alone, in_axes=1, axis_name="ici"), in_axes=1, axis_name="dcn")
    theirs = jax.jit(of_all)(every)
    assert jax.tree.structure(one) == jax.tree.structure(theirs[1])
    places = jax.tree.map(lambda _: lead, params), one
    rows = zip(*map(jax.tree.leaves, ((ours, state), theirs, places)), strict=True)
    for x, y, spec in rows:
        for shard in x.addressable_shards:
            i, j = np.argwhere(mesh.devices == shard.device)[0]
            mine = shard.data[0] if apart and len(spec) else shard.data
            assert mine.shape == y[i, j].shape
            np.testing.assert_allclose(
                np.asarray(mine, np.float32), np.asarray(y[i, j], np.float32), rtol=2e-5, atol=2e-6
            )


def test_a_leaf_that_differs_is_not_called_shared():
    params = start()
    for tx in (
        gx.MultiSteps(gd.tower(gx.adam(0.1), "r"), 2),
        gx.chain(gx.trace(0.9), gd.tower(gx.sgd(0.1), "r")),
        gx.chain(gx.clip(1.0), gx.trace(0.9), gd.sync_replicas(gx.sgd(0.1), "r")),
    ):
        with pytest.raises(ValueError, match="replicas='r'") as error:
            gd.state_specs(tx, params)
        assert "acc_grads" in str(error.value) or "trace" in str(error.value)
        specs = gd.state_specs(tx, params, replicas="r")
        state = jax.eval_shape(tx.init, params)
        for spec, shared in zip(jax.tree.leaves(specs), is_shared(state), strict=True):
            assert spec == (P() if shared else P("r"))

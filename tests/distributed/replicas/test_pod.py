"""Replicas of several devices, whose steps name the axes inside: a pod without a `shard_map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

BOTH = "dcn", "ici"
STEPS = 7
X = np.random.default_rng(1).normal(size=(STEPS, 16, 16)).astype(np.float32)
ADAMW = gx.adamw(1e-2, weight_decay=0.1)


def mesh_of():
    return jax.make_mesh((2, 4), BOTH, axis_types=(AxisType.Auto,) * 2)


def pod(**more):
    return gd.Replicas(("dcn",), inner_axes=("ici",), mesh=mesh_of(), manual=True, **more)


def make(key):
    w, b = jax.random.split(key)
    draw = {"w": jax.random.normal(w, (16, 8)), "b": jax.random.normal(b, (8,))}
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), draw)


def loss_of(params, x):
    y = x @ params["w"].astype(jnp.float32) + params["b"].astype(jnp.float32)[None]
    return jnp.mean(jnp.tanh(y) ** 2)


CLIPPED = gx.chain(gx.clip_by_global_norm(0.5), ADAMW)
METHODS = {
    "zero1 in diloco": gd.diloco(gd.zero1(CLIPPED, "ici"), "dcn", period=3),
    "in 8 bits": gd.diloco(gd.zero1(ADAMW, "ici"), "dcn", period=3, compress=gd.int8()),
    "slices": gd.diloco(
        gd.zero1(ADAMW, "ici"), "dcn", period=3, compress=gd.int8(), inner_axes=("ici",)
    ),
    "tower in model_average": gd.model_average(gd.tower(CLIPPED, "ici"), "dcn", period=3),
    "tower in elastic_average": gd.elastic_average(
        gd.tower(ADAMW, "ici"), "dcn", period=3, rho=0.1
    ),
    "guarded": gx.apply_if_finite(gd.diloco(gd.zero1(ADAMW, "ici"), "dcn", period=3), 3),
    "guarded inside": gd.diloco(
        gx.apply_if_finite(gd.zero1(ADAMW, "ici"), 3), "dcn", period=3, compress=gd.int8()
    ),
}


def advance(tx, grads, state, params):
    if hasattr(tx, "step"):
        return tx.step(grads, state, params)
    updates, state = tx.update(grads, state, params)
    return gx.apply_updates(params, updates), state


def by_hand(tx, start, check_vma):
    """The same training in a `shard_map` that is written by hand."""
    mesh, lead = mesh_of(), jax.tree.map(lambda _: P("dcn"), start)
    specs = gd.state_specs(tx, start, P(), mesh=mesh)

    def without(tree, specs):
        return jax.tree.map(lambda x, s: x[0] if len(s) else x, tree, specs)

    def with_axis(tree, specs):
        return jax.tree.map(lambda x, s: jnp.asarray(x)[None] if len(s) else x, tree, specs)

    def init(params):
        return with_axis(tx.init(without(params, lead)), specs)

    def step(params, state, x):
        params, state = without(params, lead), without(state, specs)
        loss, grads = jax.value_and_grad(loss_of)(gd.local_view(params, "ici"), x)
        params, state = advance(tx, grads, state, params)
        return with_axis(params, lead), with_axis(state, specs), lax.pmean(loss, BOTH)

    def smap(f, ins, outs):
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=check_vma)
        )

    params = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape)), start)
    state = smap(init, (lead,), specs)(params)
    run = smap(step, (lead, specs, P(BOTH)), (lead, specs, P()))
    losses = []
    for x in X:
        params, state, loss = run(params, state, x)
        losses.append(float(loss))
    return params, state, losses


@pytest.mark.parametrize("name", list(METHODS))
def test_a_pod_trains_as_a_shard_map_by_hand(name):
    tx, check_vma = METHODS[name], "guarded" not in name
    r = pod(check_vma=check_vma)

    def train_step(params, state, x):
        loss, grads = jax.value_and_grad(loss_of)(gd.local_view(params, "ici"), x)
        return advance(tx, grads, state, params), {"loss": loss}

    params, state = r.init(make, jax.random.key(0), tx=tx)
    step = r.wrap(train_step, donate_argnums=(0, 1), has_aux=True)
    losses = []
    for x in X:
        (params, state), metrics = step(params, state, r.split(x))
        losses.append(float(metrics["loss"]))
    start = jax.jit(make)(jax.random.key(0))
    theirs, their_state, their_losses = by_hand(tx, start, check_vma)
    np.testing.assert_allclose(losses, their_losses, rtol=1e-5)
    assert loss_of(r.unreplicate(params), X[0]) < losses[0]
    pairs = zip(
        jax.tree.leaves((params, state)), jax.tree.leaves((theirs, their_state)), strict=True
    )
    for x, y in pairs:
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim) and x.dtype == y.dtype
        np.testing.assert_allclose(np.float32(x), np.float32(y), rtol=1e-5, atol=1e-6)


def test_parameters_in_shards_train_as_whole_ones():
    """FSDP: each device of a slice keeps a quarter of the weights and gathers them to compute."""
    r, specs = pod(), {"w": P("ici"), "b": P()}
    tx = gd.diloco(gx.adam(1e-2), "dcn", period=3)

    def start(key):
        return jax.tree.map(lambda x: x.astype(jnp.float32), make(key))

    def train_step(params, state, x):
        def loss(params):
            whole = lax.all_gather(params["w"], "ici", tiled=True)
            return lax.pmean(loss_of(params | {"w": whole}, x), "ici")

        value, grads = jax.value_and_grad(loss)(params)
        return *tx.step(grads, state, params), lax.pmean(value, "dcn")

    params, state = r.init(start, jax.random.key(0), tx=tx, specs=specs)
    assert params["w"].addressable_shards[0].data.shape == (1, 4, 8)
    assert state.inner[0].mu["w"].sharding.spec == P("dcn", "ici")
    step = r.wrap(train_step, shared_outputs=2)
    simple = gd.Replicas("dcn", n=2, mode="vmap")

    def one_step(params, state, x):
        value, grads = jax.value_and_grad(loss_of)(params, x)
        return *tx.step(grads, state, params), lax.pmean(value, "dcn")

    theirs = simple.init(start, jax.random.key(0), tx=tx)
    one_step = simple.wrap(one_step, shared_outputs=2)
    for x in X:
        params, state, loss = step(params, state, r.split(x))
        *theirs, expected = one_step(*theirs, simple.split(x))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(theirs[0]), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def test_arrays_are_made_and_moved_without_a_host():
    r, specs = pod(), {"w": P("ici"), "b": P()}
    assert r.mesh is not None
    key = jax.device_put(jax.random.key(0), NamedSharding(r.mesh, P()))
    tx = gd.diloco(gd.tower(gx.sgd(0.1), "ici"), "dcn", period=3)
    sharded = jax.device_put(make(jax.random.key(1)), NamedSharding(r.mesh, P()))
    sharded["w"] = jax.device_put(sharded["w"], NamedSharding(r.mesh, P("ici")))
    with jax.transfer_guard("disallow_explicit"):
        params = r.init(make, key, specs=specs)
        copies = r.replicate(sharded, specs)
        moved = r.place(copies, {"w": P(None, "ici"), "b": P("ici")})
        assert r.init(make, key, tx=tx)[1].anchor["w"].shape == (2, 16, 8)
    assert params["w"].addressable_shards[0].data.shape == (1, 4, 8)
    assert copies["w"].addressable_shards[0].data.shape == (1, 4, 8)
    assert moved["w"].addressable_shards[0].data.shape == (1, 16, 2)
    for x, y in zip(jax.tree.leaves(copies), jax.tree.leaves(sharded), strict=True):
        np.testing.assert_array_equal(np.float32(x), np.float32(np.stack([y, y])))


def test_a_pod_whose_steps_need_extra_arguments_is_made():
    r = pod(check_vma=False)
    tx = gd.drop_stale(gd.diloco(gd.zero1(ADAMW, "ici"), "dcn", period=1), 2)
    step = {"grad_step": jnp.int32(0)}
    state = r.init(make, jax.random.key(0), tx=tx, extra=step)[1]
    saved = r.abstract(make, jax.random.key(0), tx=tx, extra=step)[1]
    assert jax.tree.map(lambda x: (x.shape, x.sharding.spec), state) == jax.tree.map(
        lambda x: (x.shape, x.sharding.spec), saved
    )
    with pytest.raises(TypeError, match=r"extra=\{"):
        r.init(make, jax.random.key(0), tx=tx)


def refusals():
    mesh, r, key = mesh_of(), pod(), jax.random.key(0)
    unchecked = pod(check_vma=False)
    b = {"w": jnp.ones((16, 8))}
    one, cut = r.replicate(b), r.replicate(b, {"w": P("ici")})
    nested = gd.model_average(gd.model_average(ADAMW, "ici", period=2), "dcn", period=4)

    def mine(params):
        return params["w"][0, 0] + lax.axis_index("ici").astype(jnp.float32)

    return {
        "axis not in the mesh": (
            lambda: gd.Replicas("dcn", ("icy",), mesh, manual=True),
            ("lacks the axis 'icy'", "'ici'"),
        ),
        "another tree": (
            lambda: r.init(make, key, specs={"w": P()}),
            ("the parameter ['b']", "lacks a sharding"),
        ),
        "not a spec": (
            lambda: r.init(make, key, specs={"w": "ici", "b": P()}),
            ("['w']", "PartitionSpec", "'ici'"),
        ),
        "the outer axis": (
            lambda: r.init(make, key, specs={"w": P("dcn"), "b": P()}),
            ("['w']", "['dcn']", "leave out"),
        ),
        "too many entries": (
            lambda: r.init(make, key, specs={"w": P(), "b": P(None, "ici")}),
            ("['b']", "(8,)", "more entries"),
        ),
        "uneven": (
            lambda: r.init(lambda key: {"w": jnp.ones(6)}, key, specs=P("ici")),
            ("['w']", "(6,)", "4 equal pieces"),
        ),
        "batch": (lambda: r.split({"x": X[0][:12]}), ("['x']", "(12, 16)", "4 devices")),
        "one batch": (lambda: r.split(X[0][:12]), ("an array of shape (12, 16)", "4 devices")),
        "another replica": (lambda: r.unreplicate(one, 2), ("index of one of 2", "got 2")),
        "batch over": (lambda: r.split(X[0], over=("tensor",)), ("over", "'tensor'", "inner_axes")),
        "replicas inside": (lambda: r.init(make, key, tx=nested), ("['ici']", "inner_axes")),
        "out_specs": (lambda: gd.Replicas().wrap(mine, out_specs=P()), ("out_specs", "manual")),
        "differs": (lambda: r.wrap(mine)(one), ("'ici'", "pmean", "out_specs")),
        "differs, unchecked": (lambda: unchecked.wrap(mine)(one), ("'ici'", "pmean", "out_specs")),
        "lie differently": (
            lambda: r.wrap(lambda a, b: {"c": {"w": a["w"]}})(
                one, r.place({"w": jnp.ones((2, 64, 8))}, {"w": P("ici")})
            ),
            ("several arguments", "out_specs"),
        ),
        "a state of pieces": (
            lambda: r.wrap(gd.zero1(ADAMW, "ici").init)(one),
            ("mu['w']", "'ici'", "out_specs"),
        ),
        "in pieces": (lambda: r.wrap(lambda p: p["w"].sum())(cut), ("'ici'", "pmean")),
    }


REFUSED = [
    *("axis not in the mesh", "another tree", "not a spec", "the outer axis", "too many entries"),
    *(
        "uneven",
        "batch",
        "one batch",
        "another replica",
        "batch over",
        "replicas inside",
        "out_specs",
        "differs",
        "differs, unchecked",
    ),
    *("lie differently", "a state of pieces", "in pieces"),
]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    call, words = refusals()[name]
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    message = str(error.value)
    assert message.startswith("Replicas: ")
    assert [word for word in words if word not in message] == []

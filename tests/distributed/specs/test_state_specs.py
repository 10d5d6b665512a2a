"""How a state lies in a `shard_map`: programs with these specs beside runs without a mesh."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.distributed.shares.shared_leaves import is_shared
from tests.catalogue import CASES, params as catalogue_params
from tests.catalogue.distributed import alone

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


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert jax.tree.leaves(ours) == jax.tree.leaves(theirs)


def is_small(p):
    return jnp.ndim(p) < 2


# ---------------------------------------------------------------------------- replicas

# A composition; the axes along which replicas have their own parameters; those along which they
# have their own gradients.
ADAMW = gx.adamw(1e-2, weight_decay=0.1)
SHAMPOO = gx.shampoo(0.1, 16, gbar_decay=0.5, epsilon=1e-1)
IN_MEANS = gx.factor_state(gx.adam(0.1), min_dim_size_to_factor=4)
GALORE = gx.galore(0.1, 4, 3)
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
    "compressed": (
        gd.diloco(
            gd.zero1(ADAMW, "ici"), "dcn", period=3, inner_axes=("ici",), compress=gd.int8(64)
        ),
        ("dcn",),
        BOTH,
    ),
    "compressed in parts": (
        gd.diloco(
            gd.zero1(ADAMW, "ici"),
            "dcn",
            period=4,
            fragments=2,
            inner_axes=("ici",),
            shard_anchor=True,
            compress=gd.sign(64),
        ),
        ("dcn",),
        BOTH,
    ),
    "lookahead in slices": (
        gd.diloco(gx.lookahead(gd.zero1(ADAMW, "ici"), 2, 0.5), "dcn", period=3),
        ("dcn",),
        BOTH,
    ),
    "scheduled": (
        gd.diloco(
            gd.zero1(gx.inject_hyperparams(gx.adam)(gx.linear_schedule(0.1, 0.01, 9)), "ici"),
            "dcn",
            period=3,
        ),
        ("dcn",),
        BOTH,
    ),
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
    "zero1 of shampoo": (gd.zero1(SHAMPOO, BOTH), (), BOTH),
    "diloco of shampoo": (gd.diloco(gd.zero1(SHAMPOO, "ici"), "dcn", period=3), ("dcn",), BOTH),
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
    "in means": (
        gd.model_average(gx.factor_state(gx.adam(0.1), min_dim_size_to_factor=4), "dcn", period=3),
        ("dcn",),
        ("dcn",),
    ),
    "zero1 of galore": (gd.zero1(GALORE, BOTH), (), BOTH),
    "diloco of galore": (gd.diloco(gd.zero1(GALORE, "ici"), "dcn", period=3), ("dcn",), BOTH),
    "zero1 in means": (gd.zero1(IN_MEANS, BOTH), (), BOTH),
    "averages of zero1 in means": (
        gd.model_average(gd.zero1(IN_MEANS, "ici"), "dcn", period=3, average_state=True),
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
    ours = jax.device_put(ours, NamedSharding(mesh, lead))  # as what comes back: one program
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
    theirs = jax.device_get(jax.jit(of_all)(every))
    assert jax.tree.structure(one) == jax.tree.structure(theirs[1])
    places = jax.tree.map(lambda _: lead, params), one
    rows = zip(*map(jax.tree.leaves, ((ours, state), theirs, places)), strict=True)
    for x, y, spec in rows:
        for shard in x.addressable_shards:
            i, j = np.argwhere(mesh.devices == shard.device)[0]
            mine = np.asarray(shard.data)
            mine = mine[0] if apart and len(spec) else mine
            assert mine.shape == y[i, j].shape
            np.testing.assert_allclose(
                np.asarray(mine, np.float32), np.asarray(y[i, j], np.float32), rtol=2e-5, atol=2e-6
            )


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
@pytest.mark.parametrize("how", [{}, {"shard_anchor": True}], ids=str)
def test_what_is_still_to_be_sent_of_a_few_entries_is_per_device(shape, how):
    tx = gd.diloco(gd.zero1(ADAMW, "ici"), "dcn", inner_axes=("ici",), compress=gd.int8(), **how)
    specs = gd.state_specs(tx, {"scale": jnp.zeros(shape)}, mesh=mesh_of())
    assert set(jax.tree.leaves(specs.feedback)) == {P("dcn", "ici")}


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


def test_what_replicas_decide_together_is_shared():
    params, extra = start(), {"grad_step": jnp.int32(0)}
    for tx in (
        gd.drop_stale(gd.tower(ADAMW, "r"), 1),
        gx.apply_if_finite(gd.drop_stale(gd.sync_replicas(gx.sgd(0.1), "r"), 1), 3),
    ):
        specs = gd.state_specs(tx, params, extra=extra)
        assert all(spec == P() for spec in jax.tree.leaves(specs))
    alone = gd.state_specs(gd.drop_stale(ADAMW, 1), params, replicas="r")
    assert alone.stale_counter == P("r")


def test_an_axis_along_which_replicas_are_given_alike_needs_no_rows():
    tx = gd.model_average(gx.adam(0.1), "dcn", inner_axes=("ici",))
    assert gd.state_specs(tx, start(), mesh=mesh_of()).inner[0].count == P("dcn")


@pytest.mark.parametrize("name", ["model_average", "diloco", "tower", "sync_replicas", "zero1"])
def test_these_are_the_layouts_of_replicas(name):
    tx = getattr(gd, name)(gx.adam(0.1), "replica")
    params = start()
    r = gd.Replicas(n=8)
    state = r.wrap(tx.init)(r.replicate(params))
    assert r.mesh is not None
    specs = gd.state_specs(tx, params, mesh=r.mesh, replicas="replica")
    assert jax.tree.structure(specs) == jax.tree.structure(state)
    for x, spec in zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True):
        assert x.sharding.is_equivalent_to(NamedSharding(r.mesh, spec), x.ndim)


# ------------------------------------------------------------------------ as the parameters

PLACES = {"w": P("dcn", "ici"), "b": P("ici"), "odd": P(None, BOTH), "scale": P()}
DIVIDED = {"w": (16, 24), "b": (24,), "odd": (5, 16), "scale": ()}
ENTRYWISE = {
    "adamw": ADAMW,
    "named and injected": gx.named_chain(
        ("clip", gx.clip(1.0)), ("adam", gx.inject_hyperparams(gx.adam)(gx.constant_schedule(0.1)))
    ),
    "masked": gx.chain(gx.trace(0.9), gx.masked(gx.adam(0.1), MATRICES)),
    "partition": gx.partition(
        {"m": gx.ademamix(0.1), "rest": gx.sgd(0.1, 0.9)},
        gx.label_by(("m", MATRICES), ("rest", True)),
    ),
    "accumulating": gx.MultiSteps(gx.lookahead(gx.lion(0.1), 2, 0.5), 2),
    "averaged": gx.moving_average(gx.schedule_free_sgd(0.1), 0.5),
    "in 8 bits": gx.quantize_state(gx.adam(0.1), 8, 2, min_size=4),
    "in float16": gx.state_dtype(gx.adam(0.1), "float16"),
    "offloaded": gx.offload_state(gx.adam(0.1), min_size=4),
    "master weights": gx.master_weights(gx.adam(0.1)),
    "optax": optax.chain(optax.trace(0.9), optax.adamw(0.1)),
}


@pytest.mark.parametrize("name", list(ENTRYWISE))
def test_slots_of_divided_parameters_are_divided_like_them(name):
    tx, mesh = ENTRYWISE[name], mesh_of()
    dtype = jnp.bfloat16 if name == "master weights" else jnp.float32
    params = jax.tree.map(lambda p: p.astype(dtype), start(DIVIDED))
    placed = jax.device_put(params, {k: NamedSharding(mesh, s) for k, s in PLACES.items()})
    grads = {k: g.astype(dtype) for k, g in gradients((), DIVIDED).items()}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        specs = gd.state_specs(tx, params, PLACES, mesh=mesh)
        smap = functools.partial(jax.shard_map, mesh=mesh)
        state = jax.jit(smap(tx.init, in_specs=(PLACES,), out_specs=specs))(placed)
        assert jax.tree.structure(state) == jax.tree.structure(specs)
        of_grads = {k: P(None, *spec) for k, spec in PLACES.items()}
        run = functools.partial(loop, tx)
        both = PLACES, specs
        run = jax.jit(smap(run, in_specs=(*both, of_grads), out_specs=both))
        ours = placed
        for half in np.split(np.arange(STEPS), 2):
            if name != "offloaded":
                state = through_the_host(state)
            ours, state = run(ours, state, {k: g[half] for k, g in grads.items()})
        theirs, whole = jax.jit(lambda p, g: loop(tx, p, tx.init(p), g))(params, grads)
    for x, y in zip(jax.tree.leaves((ours, state)), jax.tree.leaves((theirs, whole)), strict=True):
        if jnp.issubdtype(x.dtype, jnp.integer) and x.ndim:
            np.testing.assert_array_equal(x, y)  # codes
            continue
        x, y = (np.asarray(a, np.float32) for a in (x, y))
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def test_named_shardings_and_the_current_mesh_say_the_mesh():
    mesh, params, tx = mesh_of(), start(), gd.zero1(gx.adam(0.1), "ici")
    given = gd.state_specs(tx, params, mesh=mesh)
    with jax.set_mesh(mesh):
        assert gd.state_specs(tx, params) == given
    place = NamedSharding(mesh, P())
    assert gd.state_specs(tx, params, place) == given
    assert gd.state_specs(tx, jax.device_put(params, place)) == given
    placed = jax.device_put(start(DIVIDED), {k: NamedSharding(mesh, s) for k, s in PLACES.items()})
    assert gd.state_specs(gx.trace(0.9), placed).trace == PLACES


@pytest.mark.parametrize(
    "inner",
    [
        gx.muon(0.1),
        SHAMPOO,
        IN_MEANS,
        GALORE,
        gx.galore(0.1, 2, weight_dimension_numbers=gx.GaLoreDimensionNumbers(-2, -1)),
        gx.apollo(0.1, 2),
        gx.scale_by_factored_rms(min_dim_size_to_factor=4),
        gx.chain(
            gx.clip_by_global_norm(1.0), gx.MultiSteps(gx.moving_average(gx.adam(0.1), 0.5), 2)
        ),
        gx.quantize_state(gx.adam(0.1), 4, 2, min_size=2),
        gx.partition(
            {"m": gx.muon(0.1), "r": gx.adam(0.1)}, gx.label_by(("m", MATRICES), ("r", True))
        ),
        gx.scale_by_rowwise_rss(),
    ],
)
def test_the_specs_of_zero1_and_shard_matrices_are_the_same_by_both_ways(inner):
    mesh, params = mesh_of(), start(SHAPES | {"stack": (8, 3, 6)})
    for axes in "ici", BOTH, ("ici", "dcn"):
        tx = gd.zero1(inner, axes)
        assert_same(gd.state_specs(tx, params, mesh=mesh), tx.state_specs(params, mesh))
    specs = {"w": P("ici"), "b": P(), "odd": P(), "scale": P(), "stack": P("ici")}
    tx = gd.shard_matrices(inner, "ici", specs)
    given = tx.state_specs(params, mesh)
    assert_same(gd.state_specs(tx, params, specs, mesh=mesh), given)
    chained = gd.state_specs(gx.chain(gx.clip(1.0), tx), params, specs, mesh=mesh)
    assert_same(chained[1], given)
    apart = gd.state_specs(gd.tower(tx, "dcn"), params, specs, mesh=mesh, replicas="dcn").inner
    assert_same(apart, jax.tree.map(lambda spec: P("dcn", *spec), given))


# ------------------------------------------------------------------------- the catalogue, refusals


@pytest.mark.parametrize("name", list(CASES))
def test_every_part_has_specs_with_the_structure_of_its_state(name):
    case = CASES[name]
    params = case.tree if case.tree is not None else catalogue_params()
    grads = jax.tree.map(jnp.ones_like, params)
    extra: Any = case.extra
    extra = extra(grads, params) if callable(extra) else extra
    mesh = AbstractMesh((1,), ("replica",))
    tx = case.tx.inner if isinstance(case.tx, alone) else case.tx
    specs = gd.state_specs(tx, params, P(), mesh=mesh, extra=extra)
    state = jax.eval_shape(case.tx.init, params)
    assert jax.tree.structure(specs) == jax.tree.structure(state)
    for x, spec, shared in zip(
        jax.tree.leaves(state), jax.tree.leaves(specs), is_shared(state), strict=True
    ):
        lead = 0 if shared else int(spec[:1] == ("replica",))
        assert len(spec) - lead <= x.ndim

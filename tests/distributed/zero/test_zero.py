"""Optimizer state divided over eight devices: the numbers of the undivided one, and who may not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.values import config
from tests.distributed.modes import MODES, replicas, step_of
from tests.public import names_of

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N, STEPS = 8, 4
MESHES = {"8": ((8,), ("x",)), "2x4": ((2, 4), ("x", "y"))}
SHAPES = {"w": (16, 24), "b": (24,), "odd": (5, 4), "scale": ()}
CLIPPED = gx.chain(gx.clip_by_global_norm(0.3), gx.adamw(1e-2, weight_decay=0.1))
MATRICES = gx.ndim_at_least(2)


def on_meshes(names):
    """Rows of a name, a mesh, and `check_vma`, which have every pair of two of these.

    Each name has both meshes and both ways of checking, and all names together have both ways on
    each mesh: where the axes are and what JAX checks are decided apart from each other.
    """
    return [
        (name, kind, (i + j) % 2 == 0)
        for i, name in enumerate(names)
        for j, kind in enumerate(MESHES)
    ]


def mesh_of(kind):
    shape, names = MESHES[kind]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def start(dtype=jnp.float32, shapes=SHAPES):
    rng = np.random.default_rng(0)
    return {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}


def local_grads(dtype=jnp.float32, shapes=SHAPES, steps=STEPS):
    rng = np.random.default_rng(1)
    return {k: jnp.asarray(rng.normal(size=(steps, N, *s)), dtype) for k, s in shapes.items()}


def divided(tx, kind, params, grads, check_vma=True, form="step"):
    """The parameters and the state after all steps, one loop over them in one program."""
    mesh = mesh_of(kind)
    axes = MESHES[kind][1]
    specs = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)

    def loop(grads, state, params):
        def one(carry, g):
            params, state = carry
            g = jax.tree.map(lambda x: x[0], g)
            return step_of(tx, form)(params, state, g), None

        return jax.lax.scan(one, (params, state), grads)[0]

    state = jax.jit(smap(tx.init, in_specs=P(), out_specs=specs))(params)
    run = smap(loop, in_specs=(P(None, axes), specs, P()), out_specs=(P(), specs))
    return jax.jit(run, donate_argnums=1)(grads, state, params)


def whole(tx, params, grads):
    """The same by the inner optimizer alone, on mean gradients."""

    def one(carry, g):
        params, state = carry
        g = jax.tree.map(lambda x: jnp.mean(x.astype(jnp.float32), 0), g)
        updates, state = tx.update(g, state, params)
        return (gx.apply_updates(params, updates), state), None

    run = jax.jit(lambda params, grads: jax.lax.scan(one, (params, tx.init(params)), grads)[0])
    return run(params, grads)


def assert_close(ours, theirs, rtol=1e-5, atol=2e-6):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=atol
        )


INNER = {
    "adam": gx.adam(1e-2),
    "adamw on matrices": gx.adamw(1e-2, weight_decay=0.1, mask=MATRICES),
    "sgd": gx.sgd(1e-2, momentum=0.9, nesterov=True),
    "lion": gx.lion(1e-2),
    "clip + adamw": CLIPPED,
    "schedule": gx.chain(
        gx.normalize_by_update_norm(), gx.sgd(gx.cosine_decay_schedule(1e-2, STEPS))
    ),
    "injected": gx.inject_hyperparams(gx.adamw)(gx.linear_schedule(1e-2, 0.0, STEPS)),
    "partition": gx.partition(
        {"m": CLIPPED, "rest": gx.sgd(1e-2)}, gx.label_by(("m", MATRICES), ("rest", True))
    ),
    "accumulating": gx.MultiSteps(CLIPPED, 2),
    "guarded": gx.apply_if_finite(CLIPPED, 3),
    "lookahead": gx.lookahead(gx.adam(1e-2), 2, 0.5),
    "averaged": gx.moving_average(CLIPPED, 0.5, "count"),
    "schedule-free": gx.schedule_free_sgd(1e-2),
    "optax": optax.adamw(1e-2),
    "muon": gx.chain(gx.clip_by_global_norm(0.3), gx.muon(1e-2, weight_decay=0.1)),
    "by rows": gx.chain(gx.centralize(), gx.scale_by_rowwise_rss(), gx.scale(-0.1)),
}
BOTH = ("clip + adamw", "partition", "muon")


@pytest.mark.parametrize("name", list(INNER))
def test_zero1_equals_the_undivided_optimizer(name):
    params, grads = start(), local_grads()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        ours, state = divided(gd.zero1(INNER[name], "x"), "8", params, grads)
        theirs, inner = whole(INNER[name], params, grads)
    assert_close(ours, theirs)
    assert_close(state.inner, inner)


@pytest.mark.parametrize("form", ["step", "update"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_zero1_divides_over_two_axes_one_after_the_other(check_vma, form):
    params, grads = start(), local_grads()
    tx = gd.zero1(CLIPPED, ("x", "y"))
    ours, state = divided(tx, "2x4", params, grads, check_vma, form)
    theirs, inner = whole(CLIPPED, params, grads)
    assert_close(ours, theirs)
    assert_close(state.inner, inner)


@pytest.mark.parametrize("mode", list(MODES))
def test_zero1_runs_in_every_mode(mode):
    shapes = {"w": (8, 3), "odd": (5,)}
    r = replicas(mode, N)
    tx = gd.zero1(CLIPPED, "replica")
    params = r.replicate(start(shapes=shapes))
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda g, s, p: tx.step(g, s, p))
    grads = local_grads(shapes=shapes, steps=2)
    for t in range(2):
        params, state = step(
            r.place({k: np.asarray(g[t]) for k, g in grads.items()}), state, params
        )
    theirs, _ = whole(CLIPPED, start(shapes=shapes), grads)
    for ours, one in zip(jax.tree.leaves(params), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(ours, np.broadcast_to(one, ours.shape), rtol=1e-5, atol=1e-6)
        assert len({np.asarray(row).tobytes() for row in ours}) == 1, "equal to the last bit"


# ------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("how", [{}, {"reduce_dtype": "float32"}], ids=str)
def test_narrow_parameters_are_the_rounding_of_wide_copies(how):
    params, grads = start(jnp.bfloat16), local_grads(jnp.bfloat16)
    widened = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    theirs, _ = whole(CLIPPED, widened, grads)
    for form in ("step", "update"):
        tx = gd.zero1(CLIPPED, "x", **how)
        ours, state = divided(tx, "8", params, grads, form=form)
        assert_close(state.master, theirs)
        for p, copy in zip(jax.tree.leaves(ours), jax.tree.leaves(state.master), strict=True):
            assert p.dtype == jnp.bfloat16 and copy.dtype == jnp.float32
            np.testing.assert_array_equal(np.asarray(p), np.asarray(copy.astype(jnp.bfloat16)))


@pytest.mark.parametrize("form", ["step", "update"])
def test_a_parameter_that_is_set_to_zero_stays_there(form):
    tx, r = gd.zero1(gx.sgd(0.1), "replica"), replicas("vmap", N)
    params = r.replicate(start(jnp.bfloat16))
    step, state = r.wrap(step_of(tx, form)), r.wrap(tx.init)(params)
    grads = r.replicate(start(jnp.bfloat16))
    params, state = step(params, state, grads)
    pruned = {**params, "w": params["w"].at[:, 3:7].set(0)}
    none = jax.tree.map(jnp.zeros_like, grads)
    moved, _ = step(pruned, state, none)
    jax.tree.map(np.testing.assert_array_equal, moved, pruned)


def test_without_copies_narrow_parameters_move_by_themselves():
    params, grads = start(jnp.bfloat16), local_grads(jnp.bfloat16)
    ours, state = divided(gd.zero1(CLIPPED, "x", master_dtype=None), "8", params, grads)
    theirs, _ = whole(CLIPPED, params, grads)
    assert {x.shape for x in jax.tree.leaves(state.master)} == {(1,)}
    assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("form", ["step", "update"])
def test_updates_may_travel_in_fewer_bits(form):
    params, grads = start(), local_grads()
    ours, _ = divided(
        gd.zero1(CLIPPED, "x", gather_dtype="bfloat16"), "8", params, grads, form=form
    )
    theirs, _ = whole(CLIPPED, params, grads)
    moved = max(float(jnp.max(jnp.abs(theirs[k] - params[k]))) for k in params)
    assert_close(ours, theirs, rtol=0, atol=2**-8 * moved)
    assert any(np.any(np.asarray(ours[k]) != np.asarray(theirs[k])) for k in params)


@pytest.mark.parametrize("name", ["reduce_dtype", "wire_dtype"])
def test_complex_parameters_are_divided(name):
    rng = np.random.default_rng(0)
    params = {
        "z": jnp.asarray(rng.normal(size=(8, 3)) + 1j * rng.normal(size=(8, 3)), jnp.complex64)
    }
    grads = {"z": jnp.asarray(rng.normal(size=(STEPS, N, 8, 3)) * (1 - 2j), jnp.complex64)}
    tx = gx.chain(gx.clip_by_global_norm(0.3), gx.adam(1e-2))
    how = {"gather_dtype": "bfloat16", name: "bfloat16"}
    ours, _ = divided(gd.zero1(tx, "x", **how), "8", params, grads)
    mean = {"z": jnp.mean(grads["z"], 1, keepdims=True)}

    def one(carry, g):
        updates, state = tx.update({"z": g["z"][0]}, carry[1], carry[0])
        return (gx.apply_updates(carry[0], updates), state), None

    theirs = jax.lax.scan(one, (params, tx.init(params)), mean)[0][0]
    np.testing.assert_allclose(ours["z"], theirs["z"], rtol=1e-5)


# ---------------------------------------------------------------------------------- what lies where


def test_a_device_holds_its_share_of_the_state():
    params = start()
    tx = gd.zero1(gx.adam(1e-2), ("x", "y"))
    _, state = divided(tx, "2x4", params, local_grads())
    adam = state.inner[0]
    for k, p in params.items():
        assert adam.mu[k].shape == p.shape, "put together, what the undivided one has"
    assert {k: m.sharding.shard_shape(m.shape) for k, m in adam.mu.items()} == {
        "w": (8, 6),  # 16 / 2 rows, and 24 / 4 columns
        "b": (3,),
        "odd": (5, 2),  # 4 divides neither 5 nor 2: all four along "y" have the same
        "scale": (),
    }


def test_the_program_needs_the_state_of_one_share_only():
    mesh, tx = mesh_of("8"), gd.zero1(gx.adam(1e-3), "x")
    params = {"w": jax.ShapeDtypeStruct((512, 256), jnp.float32)}
    specs = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh)
    state = jax.eval_shape(smap(tx.init, in_specs=P(), out_specs=specs), params)
    grads = {"w": jax.ShapeDtypeStruct((N, 512, 256), jnp.float32)}

    def step(g, s, p):
        return tx.step({"w": g["w"][0]}, s, p)

    run = jax.jit(smap(step, in_specs=(P("x"), specs, P()), out_specs=(P(), specs)))
    compiled = run.lower(grads, state, params).compile()
    p = gd.hlo.copy_bytes(params)
    given = compiled.memory_analysis().argument_size_in_bytes - p  # without the gradients
    assert given <= 1.3 * p
    sent = gd.hlo.wire_bytes(compiled)
    assert sent.per_step == sent.peak <= 1.76 * p
    kinds = [c.kind for c in gd.hlo.collectives(compiled)]
    assert kinds == ["reduce-scatter", "all-gather"]


# ------------------------------------------------------------------------------------- training


def test_zero1_trains_on_the_gradients_of_a_local_view():
    """Through `local_view`, as a user writes it."""
    mesh, params = mesh_of("8"), {"w": jnp.ones((3, 8))}
    x = jnp.asarray(np.random.default_rng(2).normal(size=(16, 3)), jnp.float32)
    tx = gd.zero1(gx.adam(0.1), "x")
    specs = tx.state_specs(params, mesh)

    def loss(params, x):
        return jnp.mean((x @ params["w"] - 1) ** 2)

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), specs, P("x")), out_specs=(P(), specs)
    )
    def step(params, state, x):
        grads = jax.grad(loss)(gd.local_view(params, "x"), x)
        return tx.step(grads, state, params)

    init = jax.jit(jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=specs))
    ours, _ = step(params, init(params), x)
    inner = gx.adam(0.1)
    updates, _ = inner.update(jax.grad(loss)(params, x), inner.init(params), params)
    assert_close(ours, gx.apply_updates(params, updates))


def test_one_bad_gradient_on_one_device_stops_all():
    tx = gd.zero1(gx.apply_if_finite(gx.sgd(0.1), 5), "x")
    grads = local_grads()
    grads["w"] = grads["w"].at[1, 3, 0, 0].set(jnp.nan)
    _, state = divided(tx, "8", start(), grads)
    assert int(state.inner.total_notfinite) == 1
    grads["w"] = grads["w"].at[1].set(0.0)
    kept = {k: g.at[1].set(0.0) for k, g in grads.items()}
    ours, _ = divided(tx, "8", start(), kept)
    assert all(bool(jnp.all(jnp.isfinite(p))) for p in ours.values())


def in_vmap(function, *args):
    return jax.vmap(lambda _: function(*args), axis_name="x")(jnp.zeros(4))


def test_a_hole_freezes_its_parameter():
    tx, params = gd.zero1(CLIPPED, "x"), {"a": jnp.ones(8), "b": jnp.ones((3, 4))}

    def step():
        return tx.step({"a": jnp.ones(8), "b": None}, tx.init(params), params)

    new, state = in_vmap(step)
    assert np.all(np.asarray(new["b"]) == 1) and np.all(np.asarray(new["a"]) < 1)
    assert np.all(np.asarray(state.inner[1][0].mu["b"]) == 0)


def test_extra_arguments_reach_the_inner_transform():
    inner = gx.chain(gx.scale_by_polyak(max_learning_rate=10.0), gx.scale(-1.0))
    tx, params, g = gd.zero1(inner, "x"), {"a": jnp.arange(8.0)}, {"a": jnp.ones(8)}
    ours, _ = in_vmap(lambda: tx.update(g, tx.init(params), params, value=jnp.asarray(4.0)))
    theirs, _ = inner.update(g, inner.init(params), params, value=jnp.asarray(4.0))
    np.testing.assert_allclose(ours["a"][2], theirs["a"], rtol=1e-6)


def test_zero1_is_a_value():
    tx = gd.zero1(gx.adam(1e-3), ("x", "y"), gather_dtype=jnp.bfloat16)
    assert tx == eval(repr(tx), names_of(gx) | names_of(gd)) and hash(tx) == hash(tx)
    assert config.from_config(config.to_config(tx)) == tx
    assert "gather_dtype='bfloat16'" in repr(tx)

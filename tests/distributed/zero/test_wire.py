"""What `zero1` sends: 16 bits summed in float32, and compressions that lose nothing."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.distributed.wire.feedback import is_nothing
from gradxform.testing import hlo
from gradxform.values import config
from tests.distributed.modes import MODES, replicas, step_of
from tests.distributed.zero.test_zero import MESHES, divided, local_grads, mesh_of, start, whole
from tests.public import names_of
from tests.references import compression as ref

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N = 8
SHAPE = (64, 96)  # eight pieces of rows, each a multiple of the blocks
CODES = {
    "int8": (gd.int8(64), ref.int8, 64),
    "float8": (gd.float8(block=64), ref.float8, 64),
    "sign": (gd.sign(64), ref.sign, 64),
    "top_k": (gd.top_k(0.05, 128), lambda x: ref.top_k(x, 6), 128),
}
FORMS = {name: row[0] for name, row in CODES.items()} | {"powersgd": gd.powersgd(3)}


def gradients(steps=4, shape=SHAPE):
    rng = np.random.default_rng(0)
    g = rng.normal(size=(steps, 1, *shape)) + 0.5 * rng.normal(size=(steps, N, *shape))
    return (g * np.exp(rng.normal(size=shape))).astype(np.float32)


def run(tx, params, grads, kind="8", check_vma=True, form="step"):
    """Yield the parameters and the state after every step."""
    mesh, axes = mesh_of(kind), MESHES[kind][1]
    specs = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)

    def one(g, state, params):
        return step_of(tx, form)(params, state, jax.tree.map(lambda x: x[0], g))

    step = jax.jit(smap(one, in_specs=(P(axes), specs, P()), out_specs=(P(), specs)))
    state = jax.jit(smap(tx.init, in_specs=P(), out_specs=specs))(params)
    for t in range(len(jax.tree.leaves(grads)[0])):
        params, state = step(jax.tree.map(lambda x, t=t: x[t], grads), state, params)
        yield params, state


def zeros(shape=SHAPE, dtype=jnp.float32):
    return {"w": jnp.zeros(shape, dtype)}


# --------------------------------------------------------------------------------------- 16 bits


@pytest.mark.parametrize("how", [{}, {"wire_dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_narrow_gradients_are_summed_in_float32(mode, how):
    """Of 256 and seven times 1, bfloat16 would add nothing to 256."""
    g = np.ones((N, 16, 16), np.float32)
    g[0] = 256
    tx, r = gd.zero1(gx.scale(-1.0), "replica", **how), replicas(mode, N)
    params = r.replicate({"w": jnp.zeros((16, 16)), "odd": jnp.zeros(5)})
    grads = {"w": r.place(g.astype(jnp.bfloat16)), "odd": r.place(g[:, 0, :5].astype(jnp.bfloat16))}
    new, _ = r.wrap(lambda g, s, p: tx.step(g, s, p))(grads, r.wrap(tx.init)(params), params)
    for x in jax.tree.leaves(new):
        np.testing.assert_array_equal(np.asarray(x), np.full_like(x, -263 / 8))


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize(
    "how", [{}, {"wire_dtype": "bfloat16"}, {"wire_dtype": "bfloat16", "gather_dtype": "bfloat16"}]
)
def test_16_bits_travel_as_16_bits(kind, how):
    is_wide = "gather_dtype" in how
    dtype = jnp.float32 if is_wide else jnp.bfloat16
    params = {
        "w": jax.ShapeDtypeStruct((256, 128), dtype),
        "b": jax.ShapeDtypeStruct((128,), dtype),
    }
    wire, copy = wire_of(gd.zero1(gx.adam(1e-3), MESHES[kind][1], **how), kind, params)
    assert wire.per_step <= 1.7501 * copy / (2 if is_wide else 1)


def wire_of(tx, kind, params):
    compiled, copy = program(tx, kind, params)
    return hlo.wire_bytes(compiled), copy


def program(tx, kind, params):
    """The compiled step, and the bytes of the parameters."""
    mesh, axes = mesh_of(kind), MESHES[kind][1]
    specs = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh)
    state = jax.eval_shape(smap(tx.init, in_specs=P(), out_specs=specs), params)
    grads = jax.tree.map(lambda p: jax.ShapeDtypeStruct((N, *p.shape), p.dtype), params)

    def step(g, state, params):
        return tx.step(jax.tree.map(lambda x: x[0], g), state, params)

    f = jax.jit(
        smap(step, in_specs=(P(axes), specs, P()), out_specs=(P(), specs)), donate_argnums=(1, 2)
    )
    return f.lower(grads, state, params).compile(), hlo.copy_bytes(params)


@pytest.mark.parametrize("kind", MESHES)
def test_one_array_at_a_time_is_sent_on_cpus(kind):
    """So no two all-to-alls wait at the same time, and one array in 16 bits is in memory."""
    params = {f"w{i}": jax.ShapeDtypeStruct((256, 256), jnp.bfloat16) for i in range(8)}
    params["wide"] = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    compiled, copy = program(gd.zero1(gx.adam(1e-3), MESHES[kind][1]), kind, params)
    sending = r"(all-to-all|reduce-scatter|collective-permute)\("
    assert in_order(compiled.as_text(), sending) == (9 if kind == "8" else 18)
    array = 256 * 256 * 2
    # An eighth of all in float32, of one array what is sent and what comes, and some numbers. Over
    # two axes XLA of jax 0.12 keeps nearly a copy of the parameters.
    few = copy / 8 * 2 + 3 * array + 4096
    most = few if kind == "8" or jax.__version_info__ < (0, 12) else copy
    assert compiled.memory_analysis().temp_size_in_bytes <= most


def in_order(text, kind):
    """How many instructions of a kind there are; each needs the result of the one before."""
    entry = text[text.index("\nENTRY ") :]
    needs, last, count = {}, None, 0
    for line in entry.splitlines():
        name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
        mine = {b for a in re.findall(r"%[\w.-]+", rest) for b in needs.get(a, {a})}
        if re.search(rf"[\])}}] {kind}", rest):
            assert last is None or last in mine, line
            mine, last, count = mine | {name}, name, count + 1
        needs[name] = mine
    return count


def test_small_arrays_travel_together():
    params = {f"b{i}": jax.ShapeDtypeStruct((64 + 8 * i,), jnp.bfloat16) for i in range(6)}
    mesh, tx = mesh_of("8"), gd.zero1(gx.adam(1e-3), "x")
    specs = tx.state_specs(params, mesh)
    state = jax.eval_shape(jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=specs), params)
    f = jax.shard_map(
        tx.step, mesh=mesh, in_specs=(P(), specs, P()), out_specs=(P(), specs), check_vma=False
    )
    counted = [c.kind for c in hlo.count_jaxpr(f, params, state, params)]
    assert counted.count("all-to-all") == 1


# ---------------------------------------------------------------------------------- compressions


@pytest.mark.parametrize("form", ["step", "update"])
@pytest.mark.parametrize("name", CODES)
def test_a_compression_follows_its_paper(name, form):
    """Device i owns the i-th piece of rows, and codes its steps as what is added up."""
    compress, code, block = CODES[name]
    grads, params = gradients(), zeros()
    flat = grads.reshape(*grads.shape[:2], -1).astype(np.float64)
    wanted = ref.in_two_exchanges(flat, code, block)
    tx, before = gd.zero1(gx.identity(), "x", compress=compress), params["w"]
    for (p, _), want in zip(run(tx, params, {"w": grads}, form=form), wanted, strict=True):
        step = np.asarray(p["w"] - before).reshape(-1)
        close = np.isclose(step, want, rtol=1e-4, atol=2e-5)
        assert np.mean(close) > 0.99
        before = p["w"]


def test_powersgd_compresses_gradients_and_owners_get_whole_steps():
    grads, params = gradients(), zeros()
    tx = gd.zero1(gx.scale(-1.0), "x", compress=gd.powersgd(3))
    towers = gd.tower(gx.scale(-1.0), "replica", compress=gd.powersgd(3))
    r = replicas("vmap", N)
    p = r.replicate(params)
    state, step = r.wrap(towers.init)(p), r.wrap(lambda p, s, g: towers.step({"w": g}, s, p))
    for (ours, _), g in zip(run(tx, params, {"w": grads}), grads, strict=True):
        p, state = step(p, state, r.place(g))
        np.testing.assert_allclose(ours["w"], p["w"][0], rtol=1e-3, atol=1e-4)


def owed(state, name, kind):
    """The sum of what all devices still have to send of their gradients."""
    own = jax.tree.map(np.asarray, state.feedback.own)
    if name == "powersgd":
        return own["w"].sum(axis=0)
    first, *others = MESHES[kind][1]
    assert own[first]["w"].shape == (N, *SHAPE)
    assert all(np.any(x != own[first]["w"][0]) for x in own[first]["w"][1:])
    total = own[first]["w"].sum(axis=0)
    for axis in others:  # two pieces of rows, each cut among four devices
        total = total + own[axis]["w"].reshape(2, 4, *own[axis]["w"].shape[1:]).sum(axis=1).reshape(
            SHAPE
        )
    return total


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_lost(name, check_vma, kind):
    """The way gone and what is still to be sent make the sum of all mean gradients."""
    tx = gd.zero1(gx.identity(), MESHES[kind][1], compress=FORMS[name])
    grads = gradients(6)
    *_, (params, state) = run(tx, zeros(), {"w": grads}, kind, check_vma)
    rest = owed(state, name, kind) / N
    if name != "powersgd":
        rest = rest + np.asarray(state.feedback.mean["w"])
    total = np.mean(grads, axis=1).sum(axis=0)
    np.testing.assert_allclose(rest + np.asarray(params["w"]), total, rtol=1e-3, atol=3e-5)
    assert np.max(np.abs(rest)) > 1e-3


@pytest.mark.parametrize("name", FORMS)
def test_narrow_parameters_follow_their_masters(name):
    """A master tells what is still to be sent of a parameter, so that nothing else remembers it."""
    tx = gd.zero1(gx.scale(-0.1), "x", compress=FORMS[name])
    grads = gradients(1).astype(jnp.bfloat16)
    still = np.concatenate([grads, np.zeros((8, *grads.shape[1:]), jnp.bfloat16)])
    runs = list(run(tx, zeros(dtype=jnp.bfloat16), {"w": still}))
    params, state = runs[-1]
    assert state.master["w"].dtype == jnp.float32 and params["w"].dtype == jnp.bfloat16
    mean = np.mean(grads[0].astype(np.float32), axis=0)
    far, near = (
        np.linalg.norm(np.asarray(state.master["w"]) - np.asarray(p["w"], np.float32))
        for p, state in (runs[0], runs[-1])
    )
    if name == "powersgd":
        return
    assert is_nothing(state.feedback.mean["w"]) and state.feedback.mean["w"].shape == (1,)
    assert near <= far and near <= 0.7 * 0.1 * np.linalg.norm(mean)


def test_every_step_of_an_accumulator_sends_gradients_and_one_sends_parameters():
    inner = gx.MultiSteps(gx.identity(), 2)
    tx, grads = gd.zero1(inner, "x", compress=gd.int8(64)), gradients(4)
    runs = list(run(tx, zeros(), {"w": grads}))
    assert not np.any(runs[0][0]["w"]) and np.any(runs[1][0]["w"])
    np.testing.assert_array_equal(runs[1][0]["w"], runs[2][0]["w"])
    np.testing.assert_array_equal(runs[1][1].feedback.mean["w"], runs[2][1].feedback.mean["w"])
    rest = owed(runs[-1][1], "int8", "8") / N / 2
    rest = rest + np.asarray(runs[-1][1].feedback.mean["w"])
    total = grads.mean(1).sum(0) / 2
    np.testing.assert_allclose(rest + np.asarray(runs[-1][0]["w"]), total, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FORMS)
def test_a_step_with_nan_is_skipped_and_forgotten(name):
    tx = gd.zero1(gx.apply_if_finite(gx.scale(-1.0), 100), "x", compress=FORMS[name])
    grads = gradients(4)
    grads[1, 2, 5, 7], grads[2, 6, 1, 1] = np.nan, np.inf
    (first, _), (second, _), (third, _), (last, state) = run(tx, zeros(), {"w": grads})
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((last, state)))
    assert np.any(first["w"]) and np.any(np.asarray(last["w"]) != np.asarray(third["w"]))
    assert int(state.inner.total_notfinite) == 2
    del second


SHARES = {"int8": 1 / 3.8, "float8": 1 / 3.8, "sign": 1 / 28, "top_k": 1 / 40}
DEFAULTS = {"int8": gd.int8(), "float8": gd.float8(), "sign": gd.sign(), "top_k": gd.top_k(0.01)}


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("name", SHARES)
def test_what_a_compression_sends(name, kind):
    params = {f"w{i}": jax.ShapeDtypeStruct((128, 512), jnp.float32) for i in range(3)}
    params["b"] = jax.ShapeDtypeStruct((512,), jnp.float32)
    tx = gd.zero1(gx.adam(1e-3), MESHES[kind][1], compress=DEFAULTS[name])
    wire, copy = wire_of(tx, kind, params)
    assert wire.per_step <= 1.75 * SHARES[name] * copy


@pytest.mark.parametrize("name", ["int8", "float8"])
def test_training_comes_near_that_without_a_compression(name):
    params, grads = start(), local_grads()
    inner = gx.chain(gx.clip_by_global_norm(0.3), gx.adam(1e-2))
    ours, _ = divided(gd.zero1(inner, "x", compress=FORMS[name]), "8", params, grads)
    theirs, _ = whole(inner, params, grads)
    for k, p in params.items():
        moved = np.max(np.abs(np.asarray(theirs[k] - p)))
        np.testing.assert_allclose(ours[k], theirs[k], atol=0.1 * moved)


def test_holes_and_arrays_that_nothing_divides_keep_their_place():
    params = {"a": jnp.ones((16, 8)), "hole": None, "odd": jnp.ones((5, 3)), "s": jnp.ones(())}
    tx = gd.zero1(gx.scale(-1.0), "x", compress=gd.int8(16))
    grads = {k: None if p is None else jnp.ones((2, N, *p.shape)) for k, p in params.items()}
    *_, (new, state) = run(tx, params, grads)
    assert new["hole"] is None and not np.any(state.feedback.own["x"]["odd"])
    for k in ("a", "odd", "s"):
        np.testing.assert_allclose(new[k], params[k] - 2.0, atol=1e-5)


# ------------------------------------------------------------------------------ inside of a pod


def pod(slices, devices, **how):
    used = np.array(jax.devices()[: slices * devices]).reshape(slices, devices)
    mesh = jax.sharding.Mesh(used, ("dcn", "ici"), axis_types=(AxisType.Auto,) * 2)
    return gd.Replicas(("dcn",), inner_axes=("ici",), mesh=mesh, manual=True, **how)


@pytest.mark.parametrize("name", ["int8", "sign", "powersgd"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_pod_compresses_inside_of_slices_and_between_them(name, check_vma):
    tx = gd.diloco(
        gd.zero1(gx.adamw(0.03), "ici", compress=FORMS[name]),
        "dcn",
        period=2,
        compress=gd.int8(16),
        inner_axes=("ici",),
    )
    r, losses = pod(2, 4, check_vma=check_vma), []
    params, state = r.init(lambda: zeros((16, 32), jnp.bfloat16), tx=tx)
    own = state.inner.feedback.own
    own = own["w"] if name == "powersgd" else own["ici"]["w"]
    assert own.shape == (2, 4, 16, 32) and own.addressable_shards[0].data.shape == (1, 1, 16, 32)

    def train_step(params, state, x):
        loss = lambda p: jnp.mean((x @ p["w"] - x[:, :1]) ** 2, dtype="float32")  # noqa: E731
        value, grads = jax.value_and_grad(loss)(gd.local_view(params, "ici"))
        return tx.step(grads, state, params), {"loss": value}

    step = r.wrap(train_step, has_aux=True)
    for t in range(20):
        x = np.random.default_rng(t).normal(size=(64, 16)).astype(jnp.bfloat16)
        (params, state), metrics = step(params, state, r.split(x))
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.5 * losses[0]
    fewer = pod(1, 4, check_vma=check_vma)
    made = fewer.init(lambda: zeros((16, 32), jnp.bfloat16), tx=tx)
    saved = jax.tree.map(np.asarray, (params, state))
    params, state = gd.resize_replicas(saved, 1, fresh=jax.tree.map(np.asarray, made))
    own = state.inner.feedback.own
    own = own["w"] if name == "powersgd" else own["ici"]["w"]
    assert own.shape == (1, 4, 16, 32) and not np.any(own)
    assert np.any(state.inner.inner[0].mu["w"])


# ------------------------------------------------------------------------------------ wrong calls


def test_wrong_forms_are_refused():
    adam = gx.adam(0.1)
    for make, kind, words in [
        (lambda: gd.zero1(adam, "x", compress="int8"), TypeError, "compress must be"),
        (
            lambda: gd.zero1(adam, "x", compress=gd.int8(), wire_dtype="bfloat16"),
            ValueError,
            "give wire_dtype or compress",
        ),
        (
            lambda: gd.zero1(adam, "x", compress=gd.int8(), gather_dtype="bfloat16"),
            ValueError,
            "give gather_dtype or compress",
        ),
        (
            lambda: gd.zero1(adam, "x", compress=gd.int8(), reduce_dtype="float32"),
            ValueError,
            "give reduce_dtype or compress",
        ),
        (
            lambda: gd.zero1(adam, "x", wire_dtype="bfloat16", reduce_dtype="float32"),
            ValueError,
            "give reduce_dtype or wire_dtype",
        ),
        (lambda: gd.zero1(adam, "x", wire_dtype="int8"), ValueError, "a floating dtype, got .int8"),
    ]:
        with pytest.raises(kind, match=f"zero1: .*{words}"):
            make()
    narrow, mesh = {"w": jnp.zeros((8, 8), jnp.bfloat16)}, mesh_of("8")
    with pytest.raises(ValueError, match=r"zero1: wire_dtype float32 is wider .*\['w'\]"):
        gd.zero1(adam, "x", wire_dtype="float32").state_specs(narrow, mesh)
    tx = gd.zero1(adam, "x", compress=gd.powersgd(9))
    with pytest.raises(ValueError, match=r"powersgd: rank must be at most 8 for \['w'\]"):
        tx.state_specs({"w": jnp.zeros((8, 40))}, mesh)


def test_a_state_of_another_compression_is_refused():
    params, grads = zeros((16, 32)), {"w": gradients(1, (16, 32))}
    tx, other = (gd.zero1(gx.sgd(0.1), "x", compress=gd.int8(16)) for _ in range(2))
    *_, (_, state) = run(tx, params, grads)
    wider = zeros((32, 32))

    def step(own):
        feedback = state.feedback._replace(own={"x": {"w": own}})
        mine = gd.Zero1State(other.inner.init(wider), {"w": jnp.zeros((1,))}, feedback)
        return other.step(wider, mine, wider)[0]

    with pytest.raises(ValueError, match=r"feedback of \['w'\] has shape \(1, 16, 32\), this"):
        jax.vmap(step, axis_name="x")(state.feedback.own["x"]["w"][:, None])


def test_zero1_with_a_compression_is_a_value():
    tx = gd.zero1(gx.sgd(0.1), "x", compress=gd.sign(64))
    assert config.from_config(config.to_config(tx)) == tx
    assert eval(repr(tx), names_of(gx) | names_of(gd)) == tx

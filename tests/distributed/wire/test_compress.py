"""What replicas send: narrow dtypes summed in float32, and compressions beside their papers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.distributed.wire.feedback import is_nothing
from gradxform.testing import hlo
from tests.distributed.modes import MODES, replicas
from tests.references import compression as ref

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N = 8
SHAPE = (40, 100)  # not a multiple of the blocks of eight replicas
CODES = {
    "int8": (gd.int8(64), ref.int8, 64),
    "float8": (gd.float8(block=64), ref.float8, 64),
    "sign": (gd.sign(64), ref.sign, 64),
    "top_k": (gd.top_k(0.05, 128), lambda x: ref.top_k(x, 6), 128),
}


def gradients(steps=4, shape=SHAPE, seed=0):
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(steps, 1, *shape))
    g = common + 0.5 * rng.normal(size=(steps, N, *shape))
    g *= np.exp(rng.normal(size=shape))
    return g.astype(np.float32)


def updates_of(tx, grads, mode="vmap", told=None):
    """The updates of all replicas and the states, step by step; the parameters stay."""
    r = replicas(mode, N)
    params = r.replicate({"w": jnp.zeros(grads.shape[2:], grads.dtype)})
    state = r.wrap(tx.init)(params)
    step = r.wrap(lambda p, s, g, more: tx.update({"w": g}, s, p, **more))
    for t, g in enumerate(grads):
        more = {} if told is None else {k: np.asarray(v[t]) for k, v in told.items()}
        updates, state = step(params, state, r.place(g), r.place(more))
        yield np.asarray(updates["w"]), r.gather(state)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CODES)
def test_a_compression_follows_its_paper(name, mode):
    compress, code, block = CODES[name]
    tx = gd.tower(gx.identity(), "replica", compress=compress)
    grads = gradients()
    flat = grads.reshape(*grads.shape[:2], -1).astype(np.float64)
    wanted = ref.in_two_exchanges(flat, code, block)
    for (u, _), want in zip(updates_of(tx, grads, mode), wanted, strict=True):
        assert all(np.array_equal(u[0], x) for x in u)
        # Where a sum lies between two codes, float32 may choose the other one.
        close = np.isclose(u[0].reshape(-1), want, rtol=1e-4, atol=1e-6)
        assert np.mean(close) > 0.995


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_cosine_coefficients_follow_their_paper(mode, decay):
    """Of the coefficients: a rounding to bfloat16 of one of them changes a whole block."""
    tx = gd.tower(gx.identity(), "replica", compress=gd.dct_top_k(0.05, 128, decay))
    grads = gradients()
    flat = grads.reshape(*grads.shape[:2], -1).astype(np.float64)
    wanted = ref.in_two_exchanges(flat, lambda x: ref.dct_top_k(x, 6), 128, decay)
    for (u, _), want in zip(updates_of(tx, grads, mode), wanted, strict=True):
        assert all(np.array_equal(u[0], x) for x in u)
        blocks = [x[: x.size // 128 * 128].reshape(-1, 128) for x in (u[0].reshape(-1), want)]
        ours, theirs = (block @ ref.cosines(128).T for block in blocks)
        assert np.mean(np.isclose(ours, theirs, rtol=1e-4, atol=1e-5)) > 0.99


@pytest.mark.parametrize("mode", MODES)
def test_demo_steps_by_the_signs_of_a_momentum_that_fades(mode):
    tx = gd.demo(0.1, "replica", decay=0.5, fraction=0.05, block=128)
    grads = gradients()
    flat = grads.reshape(*grads.shape[:2], -1).astype(np.float64)
    wanted = ref.in_two_exchanges(flat, lambda x: ref.dct_top_k(x, 6), 128, decay=0.5)
    for (u, _), want in zip(updates_of(tx, grads, mode), wanted, strict=True):
        assert all(np.array_equal(u[0], x) for x in u)
        same = np.isclose(u[0].reshape(-1), -0.1 * np.sign(want))
        assert np.mean(same) > 0.99  # a sum near 0 has the other sign in float32


@pytest.mark.parametrize("mode", MODES)
def test_powersgd_follows_its_paper(mode):
    tx = gd.tower(gx.identity(), "replica", compress=gd.powersgd(3))
    grads = gradients()
    first = replicas(mode, N)
    state = first.gather(first.wrap(tx.init)(first.replicate({"w": jnp.zeros(SHAPE)})))
    right = state.feedback.right["w"]
    assert all(np.array_equal(x, right[0]) for x in right)
    wanted = ref.powersgd(grads.astype(np.float64), right[0].astype(np.float64))
    for (u, _), want in zip(updates_of(tx, grads, mode), wanted, strict=True):
        np.testing.assert_allclose(u[0], want, rtol=1e-3, atol=1e-4)


def test_powersgd_takes_the_last_two_dimensions_for_matrices_and_sends_vectors_whole():
    grads = gradients(3, (2, 30, 20))
    tx = gd.tower(gx.identity(), "replica", compress=gd.powersgd(2))
    stacked = [u[0] for u, _ in updates_of(tx, grads)]
    for u in stacked:
        assert np.linalg.matrix_rank(u[0], tol=1e-4) == np.linalg.matrix_rank(u[1], tol=1e-4) == 2
    vectors = gradients(1, (300,))
    ((u, state),) = updates_of(tx, vectors)
    np.testing.assert_allclose(u[0], vectors[0].mean(0), rtol=1e-5, atol=1e-6)
    assert is_nothing(state.feedback.own["w"]) and state.feedback.own["w"].shape == (N, 1)


ALL = {name: row[0] for name, row in CODES.items()}
ALL |= {"dct_top_k": gd.dct_top_k(0.05, 128), "powersgd": gd.powersgd(3)}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("part", [gd.tower, gd.sync_replicas])
@pytest.mark.parametrize("name", ALL)
def test_nothing_is_lost(name, part, reduction):
    """What was sent so far and what is still to be sent make the sum of all mean gradients."""
    tx = part(gx.identity(), "replica", reduction=reduction, compress=ALL[name])
    grads = gradients(6)
    *_, (_, state) = run = list(updates_of(tx, grads))
    sent = np.sum([u[0] for u, _ in run], axis=0)
    n = N if reduction == "sum" else 1
    rest = n * np.mean(state.feedback.own["w"], axis=0)
    if name != "powersgd":
        # Of what travels together: sums, but for `sync_replicas`, which always sends means.
        mean = state.feedback.mean["w"].reshape(-1)[: rest.size].reshape(rest.shape)
        rest = rest + (n if part is gd.sync_replicas else 1) * mean
    total = n * np.mean(grads, axis=1).sum(axis=0)
    np.testing.assert_allclose(sent + rest, total, rtol=1e-3, atol=n * 2e-5)
    assert np.max(np.abs(rest)) > 1e-3  # there is something to remember


METHODS = {
    "tower": lambda **how: gd.tower(gx.sgd(0.1), "replica", **how),
    "sync_replicas": lambda **how: gd.sync_replicas(gx.sgd(0.1), "replica", **how),
    "model_average": lambda **how: gd.model_average(gx.sgd(0.1), "replica", period=2, **how),
    "elastic_average": lambda **how: gd.elastic_average(
        gx.sgd(0.1), "replica", period=2, rho=0.0, moving_rate=0.1, **how
    ),
    "agn": lambda **how: gd.agn(gx.sgd(0.1), "replica", period=2, **how),
    "outer": lambda **how: gd.diloco(gx.sgd(0.1), "replica", period=2, **how),
    "outer/fragments": lambda **how: gd.diloco(
        gx.sgd(0.1), "replica", period=2, fragments=2, **how
    ),
    "outer/delay": lambda **how: gd.diloco(gx.sgd(0.1), "replica", period=2, delay=1, **how),
}


def trained(tx, mode="shard_map", dtype=jnp.float32, steps=6):
    """The parameters of all replicas and the state after a few steps towards a common point."""
    r = replicas(mode, N)
    rng = np.random.default_rng(3)
    start = {"w": rng.normal(size=(64, 48)), "v": rng.normal(size=(24,)), "s": np.ones(())}
    params = r.replicate(jax.tree.map(lambda x: jnp.asarray(x, dtype), start))
    state = r.wrap(tx.init)(params)

    def step(params, state, noise):
        grads = jax.tree.map(lambda p, e: (p + e).astype(p.dtype), params, noise)
        return tx.step(grads, state, params)

    step = r.wrap(step)
    for _ in range(steps):
        noise = {k: 0.3 * rng.normal(size=(N, *np.shape(x))) for k, x in start.items()}
        noise = r.place(jax.tree.map(lambda x: jnp.asarray(x, dtype), noise))
        params, state = step(params, state, noise)
    return r.gather(params), r.gather(state)


@functools.cache
def uncompressed(name, mode):
    """The parameters of all replicas, of a method that sends all its numbers."""
    return trained(METHODS[name](), mode)[0]


@pytest.mark.parametrize("mode", ["shard_map", "shard_map unchecked", "pmap", "vmap"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_compression(name, mode):
    plain = uncompressed(name, mode)
    near, state = trained(METHODS[name](compress=gd.int8(64)), mode)
    for key, x in plain.items():
        assert not np.array_equal(near[key], x) or key == "s"
        np.testing.assert_allclose(near[key], x, atol=0.03 * np.max(np.abs(x)))
    assert np.any(state.feedback.own["w"])
    if name in ("tower", "sync_replicas", "model_average", "agn", "outer"):
        assert all(np.array_equal(near[k][0], row) for k in near for row in near[k])


@pytest.mark.parametrize("name", METHODS)
def test_the_wire_is_as_narrow_as_the_parameters(name):
    """Sixteen bits lose nothing of bfloat16 gradients and parameters, whose sums are in float32."""
    plain, wide = uncompressed(name, "vmap"), uncompressed(name, "shard_map")
    for key, x in plain.items():
        np.testing.assert_allclose(wide[key], x, rtol=1e-4, atol=1e-5)
    narrow, _ = trained(METHODS[name](wire_dtype="bfloat16"), "shard_map")
    for key, x in plain.items():
        np.testing.assert_allclose(narrow[key], x, atol=0.01 * np.max(np.abs(x)))


@pytest.mark.parametrize("mode", MODES)
def test_narrow_gradients_are_summed_in_float32(mode):
    """Of 256 and seven times 1, bfloat16 would add nothing to 256."""
    g = np.ones((1, N, 16, 16), np.float32)
    g[:, 0] = 256
    for tx, want in (
        (gd.tower(gx.identity(), "replica"), 33),  # 263 / 8, in 8 binary digits
        (gd.tower(gx.identity(), "replica", reduction="sum"), 264),  # of 263
    ):
        ((u, _),) = updates_of(tx, g.astype(jnp.bfloat16), mode)
        np.testing.assert_array_equal(u.astype(np.float32), np.full_like(u, want, np.float32))


@pytest.mark.parametrize("mode", MODES)
def test_averages_of_bfloat16_parameters_are_rounded_once(mode):
    tx = gd.model_average(gx.sgd(1.0), "replica", period=1)
    r = replicas(mode, N)
    params = r.replicate({"w": jnp.zeros((48, 64), jnp.bfloat16)})
    state = r.wrap(tx.init)(params)
    g = np.random.default_rng(0).normal(size=(N, 48, 64)).astype(jnp.bfloat16)
    after, _ = r.wrap(lambda p, s, g: tx.step({"w": g}, s, p))(params, state, r.place(g))
    mean = np.mean(-g.astype(np.float32), axis=0, dtype=np.float32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(r.gather(after)["w"], np.broadcast_to(mean, (N, 48, 64)))


def test_a_replica_that_does_not_contribute_keeps_what_it_has_to_send():
    tx = gd.sync_replicas(gx.identity(), "replica", replicas_to_aggregate=1, compress=gd.sign(64))
    grads = gradients(2)
    grads[1, 3] = np.nan
    contribute = np.ones((2, N), bool)
    contribute[1, 3] = False
    (_, first), (u, second) = updates_of(tx, grads, told={"contribute": contribute})
    np.testing.assert_array_equal(first.feedback.own["w"][3], second.feedback.own["w"][3])
    assert not np.array_equal(first.feedback.own["w"][2], second.feedback.own["w"][2])
    assert np.all(np.isfinite(u)) and np.all(np.isfinite(second.feedback.own["w"]))


@pytest.mark.parametrize("mode", ["shard_map", "vmap"])
def test_contributors_share_what_powersgd_sends(mode):
    tx = gd.sync_replicas(
        gx.identity(), "replica", replicas_to_aggregate=4, compress=gd.powersgd(2)
    )
    steps = 40
    g = np.random.default_rng(0).normal(size=(16, 12)).astype(np.float32)
    told = {"contribute": np.broadcast_to(np.arange(N) < 4, (steps, N))}
    results = updates_of(tx, np.broadcast_to(g, (steps, N, *g.shape)), mode, told)
    mean = np.mean([u[0] for u, _ in results], axis=0)
    assert np.linalg.norm(mean - g) < 0.1 * np.linalg.norm(g)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
@pytest.mark.parametrize("part", [gd.tower, gd.sync_replicas])
def test_a_sum_that_is_too_large_for_the_dtype_of_a_gradient_does_not_travel(part, dtype):
    largest = float(jnp.finfo(dtype).max) / 4  # all eight together are twice the maximum
    r = replicas("shard_map", N)
    params = r.replicate({"w": jnp.zeros(16)})
    tx = part(gx.identity(), "replica")
    g = r.place(jnp.full((N, 16), largest, dtype))
    step = r.wrap(lambda p, s, g: tx.update({"w": g}, s, p)[0])
    u = np.asarray(step(params, r.wrap(tx.init)(params), g)["w"].astype("float32"))
    np.testing.assert_array_equal(u, np.full((N, 16), largest, np.float32))


@pytest.mark.parametrize("name", ALL)
def test_a_gradient_that_is_not_finite_is_seen(name):
    tx = gd.tower(gx.identity(), "replica", compress=ALL[name])
    grads = gradients(1)
    grads[0, 2, 5, 7] = np.nan
    ((u, _),) = updates_of(tx, grads)
    assert not np.all(np.isfinite(u))


@pytest.mark.parametrize("name", ["model_average", "outer", "elastic_average", "agn"])
@pytest.mark.parametrize("how", [{}, {"compress": gd.int8(64)}, {"wire_dtype": "bfloat16"}])
@pytest.mark.parametrize("check_vma", [True, False])
def test_devices_inside_a_replica_share_an_exchange(name, how, check_vma):
    mesh = jax.make_mesh((2, 4), ("replica", "inner"), axis_types=(AxisType.Auto,) * 2)
    rng = np.random.default_rng(0)
    start = jnp.asarray(rng.normal(size=(48, 60)), jnp.float32)
    grads = jnp.asarray(rng.normal(size=(2, 48, 60)), jnp.float32)

    def moved(tx):
        def run(p, g):
            state, p = tx.init({"w": p}), {"w": p}
            for _ in range(4):
                p, state = tx.step({"w": g[0]}, state, p)
            return p["w"][None]

        return jax.jit(
            jax.shard_map(
                run,
                mesh=mesh,
                in_specs=(P(), P("replica")),
                out_specs=P("replica"),
                check_vma=check_vma,
                axis_names={"replica", "inner"},
            )
        )(start, grads)

    whole = moved(METHODS[name](**how))
    slices = moved(METHODS[name](**how, inner_axes=("inner",)))
    scale = 0.02 if how else 1e-5
    np.testing.assert_allclose(slices, whole, atol=scale * float(np.max(np.abs(whole))))


def test_a_state_of_another_number_of_replicas_is_refused():
    tx = gd.tower(gx.identity(), "replica", compress=gd.int8(64))
    r = replicas("vmap", N)
    state = r.wrap(tx.init)(r.replicate({"w": jnp.zeros(SHAPE)}))
    fewer = replicas("vmap", 2)
    state = fewer.place(jax.tree.map(lambda x: np.asarray(x)[:2], state))
    params = fewer.replicate({"w": jnp.zeros(SHAPE)})
    with pytest.raises(ValueError, match=r"tower: the state's feedback of \['w'\] has the shapes"):
        fewer.wrap(lambda p, s: tx.update(p, s, p))(params, state)


def test_a_wire_wider_than_a_parameter_is_refused():
    params = {"a": jnp.zeros(3), "b": jnp.zeros(3, jnp.bfloat16)}
    for tx in (
        gd.tower(gx.sgd(0.1), "replica", wire_dtype="float32"),
        gd.diloco(gx.sgd(0.1), "replica", wire_dtype="float32"),
    ):
        with pytest.raises(ValueError, match=r"wire_dtype float32 is wider than .* \['b'\]"):
            tx.init(params)


def test_a_rank_above_a_matrix_is_refused():
    tx = gd.tower(gx.sgd(0.1), "replica", compress=gd.powersgd(9))
    r = replicas("vmap", 2)
    with pytest.raises(ValueError, match=r"powersgd: rank must be at most 8 for \['w'\] of shape"):
        r.wrap(tx.init)(r.replicate({"w": jnp.zeros((8, 40))}))


def test_row_sparse_gradients_travel_as_rows_beside_a_compression():
    tx = gd.tower(gx.sgd(1.0), "replica", compress=gd.int8(64))
    r = replicas("vmap", N)
    params = r.replicate({"table": jnp.zeros((50, 8)), "w": jnp.zeros(SHAPE)})
    state = r.wrap(tx.init)(params)

    def step(params, state, i):
        rows = gx.RowSparse(i[None], jnp.ones((1, 8)), 50)
        return tx.step({"table": rows, "w": params["w"] + 1.0}, state, params)

    params, state = r.wrap(step)(params, state, r.place(np.arange(N)))
    table = np.asarray(params["table"])
    assert np.all(table[:, :N] == -1 / N) and not np.any(table[:, N:])


@pytest.mark.parametrize("part", [gd.tower, gd.sync_replicas])
@pytest.mark.parametrize("dtype, how", [("bfloat16", {}), ("float32", {"wire_dtype": "bfloat16"})])
def test_rows_travel_in_the_dtype_of_the_wire(part, dtype, how):
    tx = part(gx.sgd(1.0), "replica", **how)
    r = replicas("shard_map", N)
    params = r.replicate({"table": jnp.zeros((1024, 64), dtype)})

    def step(params, state, i, row):
        return tx.step({"table": gx.RowSparse(i[None], row, 1024)}, state, params)

    rows = r.place(jnp.ones((N, 1, 64), dtype))
    args = params, r.wrap(tx.init)(params), r.place(np.arange(N)), rows
    found = hlo.collectives(r.wrap(step).lower(*args).compile())
    assert max(one.bytes for one in found) == N * 64 * 2
    table = np.asarray(r.wrap(step)(*args)[0]["table"], np.float32)
    assert np.all(table[:, :N] == (-1 / N if part is gd.tower else -1)) and not np.any(table[:, N:])


def test_a_run_with_a_compression_goes_on_with_fewer_replicas():
    tx = gd.model_average(gx.sgd(0.1, 0.9), "replica", period=1, compress=gd.int8(64))
    r, fewer = replicas("vmap", N), replicas("vmap", 2)
    params = r.replicate({"w": jnp.zeros(SHAPE)})
    state = r.wrap(tx.init)(params)
    params, state = r.wrap(lambda p, s, g: tx.step({"w": g}, s, p))(
        params, state, r.place(gradients(1)[0])
    )
    saved = r.gather({"params": params, "state": state})
    with pytest.raises(ValueError, match=r"resets .*feedback.*pass fresh="):
        gd.resize_replicas(saved, 2)
    new = {"params": fewer.replicate({"w": jnp.zeros(SHAPE)})}
    new["state"] = fewer.wrap(tx.init)(new["params"])
    carry = fewer.place(gd.resize_replicas(saved, 2, fresh=new))
    np.testing.assert_array_equal(carry["state"].center["w"][1], saved["state"].center["w"][0])
    step = fewer.wrap(lambda p, s: tx.step(p, s, p))
    moved, _ = step(carry["params"], carry["state"])
    assert np.all(np.isfinite(moved["w"]))
    whole = jax.tree.map(lambda x: x[0] if jnp.ndim(x) else x, new)  # of one replica
    with pytest.raises(ValueError, match=r"feedback.*must have an axis of 2 replicas"):
        gd.resize_replicas(saved, 2, fresh=whole)


@pytest.mark.parametrize("name", ALL)
def test_a_step_with_nan_is_skipped_and_forgotten(name):
    tx = gd.tower(gx.apply_if_finite(gx.sgd(1.0), 100), "replica", compress=ALL[name])
    grads = gradients(4)
    grads[1, 2, 5, 7], grads[2, 6, 1, 1] = np.nan, np.inf
    first, *bad, last = (u for u, _ in updates_of(tx, grads))
    assert np.any(first) and not np.any(bad) and np.any(last)
    assert np.all(np.isfinite(last))
    if name in ("int8", "float8"):
        mean = grads[3].mean(axis=0)
        np.testing.assert_allclose(-last[0], mean, atol=0.2 * np.max(np.abs(mean)))

"""Muon's kin: stacked layers equal single ones, odd gradients stay finite, and they compose."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.projections import projection_box
from tests import references as ref
from tests.references.orthogonal import newton_schulz

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(0)
AXES = gx.MuonDimensionNumbers
RULES = {
    "normuon": gx.scale_by_normuon,
    "adamuon": gx.scale_by_adamuon,
    "adamuon/plain": lambda **k: gx.scale_by_adamuon(signs=False, **k),
    "dion": lambda **k: gx.scale_by_dion(0.5, **k),
    "dion/whole": lambda **k: gx.scale_by_dion(1.0, **k),
    "dion2": lambda **k: gx.scale_by_dion2(0.5, **k),
    "orthogonal": gx.orthogonalize_updates,
}
OPTIMIZERS = {
    "normuon": gx.normuon,
    "adamuon": gx.adamuon,
    "dion": gx.dion,
    "dion2": gx.dion2,
    "scion": gx.scion,
    "scion/constrained": lambda rate: gx.scion(rate, constrained=True),
}


def run(tx, params, grads):
    """The sum of three updates, which an average carries from one to the next."""
    state, total = tx.init(params), jax.tree.map(jnp.zeros_like, params)
    for g in grads:
        u, state = tx.update(g, state, params)
        total = jax.tree.map(jnp.add, total, u)
    return total, state


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 4)])
def test_stacked_layers_move_as_single_ones(name, shape):
    draws = [jnp.asarray(RNG.normal(size=(3, *shape)), jnp.float32) for _ in range(3)]
    stacked, _ = run(
        RULES[name](weight_dimension_numbers=AXES(1, 2)),
        {"w": jnp.zeros((3, *shape))},
        [{"w": g} for g in draws],
    )
    single, _ = run(
        RULES[name](),
        {str(i): jnp.zeros(shape) for i in range(3)},
        [{str(i): g[i] for i in range(3)} for g in draws],
    )
    for i in range(3):
        np.testing.assert_allclose(stacked["w"][i], single[str(i)], rtol=0, atol=2e-5)
    assert np.abs(stacked["w"]).max() > 1e-3


ONE = np.outer(RNG.normal(size=6), RNG.normal(size=4))
ODD = {
    "zeros": np.zeros((6, 4)),
    "rank one": ONE,
    "1e-30": 1e-30 * RNG.normal(size=(6, 4)),
    "1e30": 1e30 * RNG.normal(size=(6, 4)),
    "rank one, 1e30": 1e30 * ONE,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("odd", ODD)
def test_odd_gradients_leave_finite_parameters(name, odd):
    params = {"w": jnp.ones((6, 4)), "b": jnp.ones(4)}
    g = {"w": jnp.asarray(ODD[odd], jnp.float32), "b": jnp.asarray(ODD[odd][0], jnp.float32)}
    usual = {k: jnp.asarray(RNG.normal(size=p.shape), jnp.float32) for k, p in params.items()}
    moved, _ = run(OPTIMIZERS[name](0.01), params, [g, g, usual])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(moved))


def test_dion_moves_on_after_a_gradient_of_zeros():
    tx, params = gx.scale_by_dion(0.5), {"w": jnp.ones((6, 4))}
    _, state = tx.update({"w": jnp.zeros((6, 4))}, tx.init(params))
    g = {"w": jnp.asarray(ODD["rank one"], jnp.float32)}
    u, _ = tx.update(g, state)
    # Of a gradient of rank one, the update keeps the direction.
    assert float(jnp.vdot(u["w"], g["w"])) == pytest.approx(float(jnp.linalg.norm(g["w"])), 1e-4)


def test_what_dion_leaves_out_comes_later():
    """With a constant gradient of rank two, rank one alternates between its directions."""
    left, _ = np.linalg.qr(RNG.normal(size=(6, 2)))
    right, _ = np.linalg.qr(RNG.normal(size=(4, 2)))
    g = {"w": jnp.asarray(left @ np.diag([1.0, 0.9]) @ right.T, jnp.float32)}
    moved, _ = run(gx.scale_by_dion(0.25, 0.5), {"w": jnp.zeros((6, 4))}, [g] * 20)
    along = np.diag(left.T @ np.asarray(moved["w"]) @ right)
    assert along.min() > 5 and along.sum() == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("rule", [gx.scale_by_dion, gx.scale_by_dion2])
def test_the_share_decides_how_much_is_orthogonalized(rule):
    g = {"w": jnp.asarray(RNG.normal(size=(8, 16)), jnp.float32)}
    for share, rank in ((0.25, 2), (0.3, 3), (0.5, 4), (1.0, 8)):
        u, _ = rule(share).update(g, rule(share).init(g))
        values = np.linalg.svd(np.asarray(u["w"]), compute_uv=False)
        assert (values > 1e-3).sum() == rank


def test_dion2_multiplies_only_the_rows_that_it_picks():
    """The largest product in the program falls with the fraction."""

    def flops(fraction):
        tx, g = gx.scale_by_dion2(fraction), {"w": jnp.ones((64, 256))}
        program = str(jax.make_jaxpr(tx.update)(g, tx.init(g)))
        # The turns are a loop, with three products.
        return program.count(f"[1,{int(64 * fraction)},256]"), program.count("dot_general")

    for fraction in (0.25, 0.5):
        batches, dots = flops(fraction)
        assert batches >= 5 and dots == 3


def test_all_neurons_of_normuon_move_alike():
    """The mean square of every column is the same on the first step, and the norm at every one."""
    g = np.asarray(RNG.normal(size=(16, 8)) * np.geomspace(1, 100, 8), np.float32)
    tx = gx.scale_by_normuon(eps=0.0)
    state = tx.init({"w": jnp.zeros((16, 8))})
    for size in (1.0, 1e-3, 1e3):
        u, state = tx.update({"w": jnp.asarray(size * g)}, state)
        assert float(jnp.sqrt(jnp.mean(u["w"] ** 2))) == pytest.approx(0.2, 1e-4)
        if size == 1.0:
            columns = np.mean(np.square(u["w"]), axis=0)
            np.testing.assert_allclose(columns, columns.mean(), rtol=1e-4)


def test_scion_stays_in_its_balls():
    """Frank-Wolfe steps are convex combinations of points of the ball."""
    params = {"w": jnp.zeros((6, 4)), "b": jnp.zeros(4)}
    tx = gx.scion(0.3, radii={"spectral": 2.0, "rms": 3.0}, constrained=True)
    state = tx.init(params)
    for _ in range(20):
        g = {k: jnp.asarray(RNG.normal(size=p.shape), jnp.float32) for k, p in params.items()}
        u, state = tx.update(g, state, params)
        params = gx.apply_updates(params, u)
    # Newton-Schulz brings singular values up to 1.2.
    assert np.linalg.norm(params["w"], 2) <= 1.21 * 2 * (4 / 6) ** 0.5
    assert np.sqrt(np.mean(np.square(params["b"]))) <= 3.001


def test_scion_moves_kernels_of_both_layouts_alike():
    draws = [RNG.normal(size=(3, 2, 4, 5)) for _ in range(3)]  # height, width, inputs, outputs
    last, _ = run(
        gx.scion(0.1, "convolution"), jnp.zeros((3, 2, 4, 5)), list(map(jnp.asarray, draws))
    )
    order = (3, 2, 0, 1)
    first, _ = run(
        gx.scion(0.1, "convolution", weight_dimension_numbers=AXES((2, 3, 1), 0)),
        jnp.zeros((5, 4, 3, 2)),
        [jnp.asarray(np.transpose(g, order)) for g in draws],
    )
    np.testing.assert_allclose(np.transpose(last, order), first, rtol=1e-4, atol=1e-5)
    # Three steps of 0.1 and the radius of 50, in the norm of a matrix, and places are 3 x 2.
    assert np.linalg.norm(np.reshape(last, (24, 5)), 2) < 1.3 * 15 * np.sqrt(5 / 4) / 6


@pytest.mark.parametrize("kind", ["frobenius", "rows", "columns", "spectral"])
def test_matrices_keep_their_norm_over_many_steps(kind):
    start = {"w": jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)}
    sizes = {"frobenius": None, "rows": 1, "columns": 0}

    def norm(w):
        if kind == "spectral":
            return np.linalg.norm(w, 2)
        return np.linalg.norm(w, axis=sizes[kind])

    tx = gx.chain(
        gx.orthogonalize_updates(),
        gx.scale_by_trust_ratio(),
        gx.scale_by_learning_rate(0.1),
        gx.keep_matrix_norms(kind),
    )
    params, state = start, tx.init(start)
    for _ in range(50):
        g = {"w": jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)}
        u, state = tx.update(g, state, params)
        params = gx.apply_updates(params, u)
    np.testing.assert_allclose(norm(params["w"]), norm(start["w"]), rtol=1e-5)
    assert np.linalg.norm(params["w"] - start["w"]) > 0.1


@pytest.mark.parametrize("kind", ["frobenius", "rows", "columns", "spectral"])
@pytest.mark.parametrize("is_function", [False, True])
def test_norms_are_kept_where_there_are_numbers_only(kind, is_function):
    w, b = np.eye(3, 2, dtype=np.float32) + 1, np.arange(4.0, dtype=np.float32)
    params, none = {"w": w, "b": b, "hole": None}, {"w": AXES(0, 1), "b": None, "hole": None}
    updates = {"w": -0.5 * w[::-1], "b": b + 1, "hole": None}
    tx = gx.keep_matrix_norms(kind, (lambda params: none) if is_function else none)
    u, state = tx.update(updates, tx.init(params), params)
    alone = gx.keep_matrix_norms(kind, AXES(0, 1))
    expected, _ = alone.update({"w": updates["w"]}, alone.init({"w": w}), {"w": w})
    np.testing.assert_allclose(u["w"], expected["w"], rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(u["w"] - updates["w"])) > 0.1
    np.testing.assert_array_equal(u["b"], b + 1)  # as without this part
    assert u["hole"] is None and state == gx.EmptyState()
    # A parameter without a gradient stays, also among those with numbers.
    u, _ = tx.update({"w": None, "b": b, "hole": None}, tx.init(params), params)
    assert u["w"] is None and u["b"] is not None


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_a_huge_or_tiny_step_keeps_the_norm(size):
    p = {"w": jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)}
    tx = gx.keep_matrix_norms()
    u, _ = tx.update(jax.tree.map(lambda x: size * x[::-1], p), tx.init(p), p)
    new = np.asarray(p["w"] + u["w"])
    assert np.linalg.norm(new) == pytest.approx(np.linalg.norm(p["w"]), rel=1e-5)


def test_matrices_without_a_norm_to_keep_stay():
    tx, zero = gx.keep_matrix_norms(), {"w": jnp.zeros((2, 3))}
    g = {"w": jnp.ones((2, 3))}
    assert not np.any(tx.update(g, tx.init(g), zero)[0]["w"])
    assert not np.any(tx.update({"w": -g["w"]}, tx.init(g), g)[0]["w"])


def test_muon_takes_the_cautious_decay_of_the_wrapper():
    """A weight decays only where the step of Muon leads towards 0; `cautious` masks the step."""
    p, g = (RNG.normal(size=(4, 6)) for _ in range(2))
    params, grads = ({"w": jnp.asarray(x, jnp.float32)} for x in (p, g))
    step = -0.1 * np.sqrt(6 / 4) * newton_schulz(g)
    inner = gx.muon(0.1, nesterov=False)
    decayed = gx.decoupled_weight_decay(inner, 0.2, cautious=True)
    u, _ = decayed.update(grads, decayed.init(params), params)
    np.testing.assert_allclose(u["w"], step - 0.2 * p * (step * p <= 0), atol=2e-5)
    careful = gx.cautious(inner)
    u, _ = careful.update(grads, careful.init(params), params)
    agrees = step * g < 0
    np.testing.assert_allclose(
        u["w"], step * agrees * p.size / (agrees.sum() + 1), rtol=1e-3, atol=2e-5
    )


# -------------------------------------------------------------------------------- queries and keys


def attention(w, x):
    """The largest logit of every head, of kernels (inputs, heads, size)."""
    q, k = (jnp.einsum("td,dhs->ths", x, w[n]) for n in ("q", "k"))
    return jnp.max(jnp.abs(jnp.einsum("ths,uhs->htu", q, k)), axis=(1, 2))


LAYERS = {"a": gx.query_key("q", "k", 1)}


def test_the_logits_of_a_head_fall_to_the_threshold():
    w = {n: jnp.asarray(RNG.normal(size=(8, 3, 4)), jnp.float32) for n in ("q", "k", "v")}
    x = jnp.asarray(RNG.normal(size=(5, 8)), jnp.float32)
    s = attention(w, x)
    threshold = float(jnp.sort(s)[1])
    for share in (0.5, 0.2):
        tx = gx.qk_clip(gx.sgd(0.0), LAYERS, threshold, share)
        zeros = jax.tree.map(jnp.zeros_like, w)
        u, _ = tx.update(zeros, tx.init(w), w, max_logits={"a": s})
        new = gx.apply_updates(w, u)
        np.testing.assert_allclose(attention(new, x), jnp.minimum(s, threshold), rtol=1e-5)
        assert not np.any(u["v"])


@pytest.mark.parametrize("axes", [(0, 2), (0, -2)])
def test_stacked_layers_are_clipped_one_by_one(axes):
    stacked = {n: jnp.asarray(RNG.normal(size=(2, 8, 3, 4)), jnp.float32) for n in ("q", "k")}
    s = jnp.asarray(RNG.uniform(1, 9, (2, 3)), jnp.float32)
    tx = gx.qk_clip(gx.sgd(0.1), {"all": gx.query_key("q", "k", axes)}, 3.0)
    u, _ = tx.update(stacked, tx.init(stacked), stacked, max_logits={"all": s})
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i], stacked)
        tx = gx.qk_clip(gx.sgd(0.1), LAYERS, 3.0)
        expected, _ = tx.update(one, tx.init(one), one, max_logits={"a": s[i]})
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), u, expected)


def test_muonclip_runs_in_a_jitted_step_and_is_last():
    w = {n: jnp.asarray(RNG.normal(size=(8, 12)), jnp.float32) for n in ("q", "k", "v")}
    layers = {"a": gx.query_key("q", "k", 1)}
    tx = gx.muonclip(0.01, layers, 2.0, weight_dimension_numbers=AXES())
    plain = gx.muon(0.01, weight_decay=0.1, consistent_rms=0.2, adam_weight_decay=0.1)
    s = jnp.asarray([1.0, 8.0, 3.0])
    u, _ = jax.jit(tx.update)(w, tx.init(w), w, max_logits={"a": s})
    v, _ = plain.update(w, plain.init(w), w)
    factor = np.repeat(np.minimum(1, 2 / s) ** 0.5, 4)[None]
    for n in ("q", "k"):
        np.testing.assert_allclose(w[n] + u[n], factor * (w[n] + v[n]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(u["v"], v["v"], atol=1e-6)
    with pytest.raises(ValueError, match="put it before qk_clip, or inside"):
        gx.chain(tx, gx.add_decayed_weights(0.1))
    gx.project(tx, projection_box, arguments={"lower": -1.0, "upper": 1.0})  # sets them, too


def test_the_references_of_the_kin_are_those_of_muon():
    """With nothing added, they are Muon's orthogonalization."""
    g = RNG.normal(size=(4, 6))
    (a, _), (b, _) = (
        r.step(g, r.start(g), g, 1) for r in (ref.orthogonalized(), ref.muon(0.0, nesterov=False))
    )
    np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("rule", [gx.scale_by_dion2, gx.scale_by_lmo, gx.keep_matrix_norms])
def test_parts_of_several_sizes_are_refused(rule):
    numbers = gx.matrix_split(1, (2, 4))
    params = {"w": jnp.ones((3, 6))}
    tx = rule(weight_dimension_numbers=numbers)
    with pytest.raises(ValueError, match=r"\['w'\] is split into parts of several sizes"):
        tx.update(params, tx.init(params), params)


NARROW = {
    "normuon": gx.normuon,
    "adamuon": gx.adamuon,
    "dion": gx.dion,
    "dion2": gx.dion2,
    "scion": gx.scion,
    # Of few gradients, the right matrix has no eigenvectors that roundings leave in their place.
    "soap": functools.partial(gx.soap, one_sided=True),
    "shampoo": functools.partial(gx.distributed_shampoo, start_preconditioning_step=0),
    "kron": gx.psgd_kron,
    "clip": functools.partial(
        gx.muonclip, layers={"w": gx.query_key("w", "k", 0)}, weight_dimension_numbers=None
    ),
}


@pytest.mark.parametrize("name", NARROW)
def test_products_of_16_bits_change_the_updates_a_little(name):
    rng, make = np.random.default_rng(0), NARROW[name]
    grads = [{k: rng.normal(size=(16, 24)).astype(np.float32) for k in "wk"} for _ in range(4)]
    extra = {"max_logits": {"w": jnp.ones(16)}} if name == "clip" else {}
    updates = []
    for dtype in (None, "bfloat16"):
        tx = make(0.1, compute_dtype=dtype)
        state = tx.init(grads[0])
        for g in grads:  # the first step of SOAP is its weight decay
            u, state = tx.update(g, state, grads[0], **extra)
        updates.append(np.asarray(u["w"]))
    apart = np.linalg.norm(updates[0] - updates[1]) / np.linalg.norm(updates[0])
    assert 1e-5 < apart < 0.1
    with pytest.raises(ValueError, match="compute_dtype must be 'bfloat16', 'float32' or None"):
        make(0.1, compute_dtype="float16")

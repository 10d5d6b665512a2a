"""Matrices with many columns: devices keep those that they have, and sum products over them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform import linalg
from gradxform.distributed import hlo
from gradxform.matrix_products import Columns, adjoint, gram_of
from tests.test_distributed_matrices import arrays, assert_close, numbers, run
from tests.test_distributed_zero import MESHES, divided, local_grads, mesh_of, start, whole
from tests.test_distributed_zero_matrices import N, transformer
from tests.test_distributed_zero_wire import wire_of

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

# Tall, wide, of odd rows, a stack, and one that is not far from square.
SHAPES = {"tall": (128, 8), "wide": (8, 128), "odd": (96, 3), "stack": (2, 64, 4), "up": (16, 32)}
RULES = {
    "muon": gx.muon(0.1, weight_decay=0.1, muon_weight_dimension_numbers=numbers),
    "gram": gx.scale_by_muon(iteration="gram", weight_dimension_numbers=numbers),
    "adaptive": gx.scale_by_muon(adaptive=True, weight_dimension_numbers=numbers),
    "aol": gx.scale_by_muon(preconditioning="aol", weight_dimension_numbers=numbers),
    "schatten": gx.orthogonalize_updates(
        preconditioning="schatten", weight_dimension_numbers=numbers
    ),
    "dion's turns": gx.muon(0.1, ns_coeffs="dion", muon_weight_dimension_numbers=numbers),
    "16 bits": gx.muon(0.1, muon_weight_dimension_numbers=numbers, compute_dtype="bfloat16"),
}


def kinds_sent(tx, params, kind="8"):
    """The bytes that a device sends in a step, by the kind of collective."""
    mesh, axes = mesh_of(kind), MESHES[kind][1]
    states = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), states, P()))
    state = jax.eval_shape(smap(tx.init, in_specs=P(), out_specs=states), params)
    step = smap(tx.update, out_specs=(P(), states), check_vma=False)
    sent: dict[str, float] = {}
    for one in hlo.count_jaxpr(step, params, state, params):
        sent[one.kind] = sent.get(one.kind, 0) + one.sent
    assert axes
    return sent


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", RULES)
def test_the_numbers_are_those_of_the_undivided_rule(name, check_vma, kind):
    params, grads, inner = start(shapes=SHAPES), local_grads(shapes=SHAPES), RULES[name]
    ours, state = divided(gd.zero1(inner, MESHES[kind][1]), kind, params, grads, check_vma)
    theirs, of_inner = whole(inner, params, grads)
    tolerance = 2e-2 if name == "16 bits" else 1e-4
    assert_close(ours, theirs, tolerance)
    assert_close(state.inner, of_inner, tolerance)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_large_and_small_gradients_neither_overflow_nor_vanish(size):
    shapes = {"tall": (128, 8), "wide": (8, 128)}
    params, grads = arrays(shapes), arrays(shapes, 1)
    mesh = jax.make_mesh((N,), ("x",), axis_types=(AxisType.Auto,))
    cuts = {"tall": P("x"), "wide": P(None, "x")}
    for name in ("frobenius", "aol", "schatten"):
        tx = gx.orthogonalize_updates(eps=0, preconditioning=name)
        sharded = gd.shard_matrices(tx, "x", cuts, mesh)
        huge = jax.tree.map(lambda g: g * size, grads)
        ours, theirs = (jax.jit(t.update)(huge, t.init(params), params)[0] for t in (sharded, tx))
        assert_close(ours, theirs)
        if name != "aol" or size > 1:
            assert min(float(jnp.abs(x).max()) for x in jax.tree.leaves(ours)) > 0


def test_complex_matrices_are_summed_whole():
    rng = np.random.default_rng(0)
    x = {"a": jnp.asarray(rng.normal(size=(8, 128)) + 1j * rng.normal(size=(8, 128)), "complex64")}
    mesh = jax.make_mesh((N,), ("x",), axis_types=(AxisType.Auto,))
    tx = gx.scale_by_muon(iteration="gram")
    with jax.numpy_dtype_promotion("standard"):
        ours, theirs = run(gd.shard_matrices(tx, "x", P(None, "x"), mesh), x, x), run(tx, x, x)
    assert_close(*(jax.tree.map(lambda x: jnp.stack([x.real, x.imag]), t) for t in (ours, theirs)))


@pytest.mark.parametrize("side", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_hermitian_matrices_are_summed_by_half(side, dtype):
    rng = np.random.default_rng(side)
    x = rng.normal(size=(N, 2, side, 5)) + 1j * rng.normal(size=(N, 2, side, 5))
    x = jnp.asarray(x if dtype == "complex64" else x.real, dtype)
    sent = []

    def total(x):
        sent.append(x.shape[-2:])
        return jax.lax.psum(x, "i")

    columns = Columns(N, total, lambda x: jax.lax.pmax(x, "i"))
    grams = jax.vmap(lambda x: gram_of(x, columns), axis_name="i")(x)
    expected = np.sum(np.asarray(x @ adjoint(x), np.complex128), axis=0)
    np.testing.assert_allclose(grams[3], expected, atol=1e-4)
    half = side // 2
    assert sent == [(side, side) if side % 2 else (2 * half + 1, half)]


@pytest.mark.parametrize(
    ("rule", "grams"),
    [
        (gx.scale_by_muon(), 5),
        (gx.scale_by_muon(iteration="gram"), 2),
        (gx.scale_by_muon(ns_coeffs=((3.0, -4.0, 2.0),) * 3), 3),
        (gx.orthogonalize_updates(ns_steps=2), 2),
        (gx.scale_by_muon(preconditioning="spectral"), None),
        (gx.scale_by_normuon(), None),
    ],
)
def test_a_rule_says_how_many_products_it_sums(rule, grams):
    """As many as the program has, and none without a need: the columns stay at the devices."""
    assert rule.grams_needed(8, 1024) == grams
    params = {"a": jax.ShapeDtypeStruct((1024, 8), jnp.float32)}
    sent = kinds_sent(gd.zero1(rule, "x"), params)
    matrix = hlo.copy_bytes(params)
    assert sent.pop("reduce-scatter") == 7 / 8 * matrix
    if grams is None:
        assert sent["all-gather"] >= 2 * 7 / 8 * matrix
        return
    assert sent.pop("all-gather") == 7 / 8 * matrix
    [(kind, rest)] = sent.items()
    scalars = 0 if rule.preconditioning != "frobenius" else 2 * 7 / 8 * 2 * 4
    assert kind == "all-reduce" and rest == 2 * 7 / 8 * grams * 4 * 9 * 4 + scalars


@pytest.mark.parametrize(("columns", "stays"), [(40, False), (48, True)])
def test_the_columns_stay_where_that_sends_less(columns, stays):
    params = {"a": jax.ShapeDtypeStruct((columns, 8), jnp.float32)}
    sent = kinds_sent(gd.zero1(gx.orthogonalize_updates(), "x"), params)
    assert ("all-reduce" in sent) == stays
    matrix = hlo.copy_bytes(params)
    assert sum(sent.values()) <= 3 * 7 / 8 * matrix * (1.05 if stays else 1)


def test_several_matrices_stay_or_are_shared():
    """Two of 8 x 1024 stay; sixteen of 8 x 64 are shared, since two a device are fewer bytes."""
    tx = gd.zero1(gx.orthogonalize_updates(), "x")
    pair = {str(i): jax.ShapeDtypeStruct((1024, 8), jnp.float32) for i in range(2)}
    assert "all-to-all" not in kinds_sent(tx, pair)
    many = {str(i): jax.ShapeDtypeStruct((64, 8), jnp.float32) for i in range(17)}
    sent = kinds_sent(tx, many)
    assert sent["all-to-all"] == 2 * 7 / 8 * 2 * 64 * 8 * 4
    assert "all-reduce" in sent  # of the one that is left over


def muon(**how):
    return gx.muon(0.02, **how)


# The embedding is a seventh or a quarter of the parameters. Besides twice 7/8 of all and twice 7/64
# of the layers, half of 64 x 64 is sent twice for each product.
SENT = {
    "16 words a unit": (1024, {}, 1.75 + 7 / 32 * 6 / 7 + 7 / 8 * 5 / 16 / 7),
    "16 words a unit, gram": (1024, {"iteration": "gram"}, 1.75 + 7 / 32 * 6 / 7 + 7 / 64 / 7),
    "32 words a unit": (2048, {}, 1.95),
    "32 words a unit, gram": (2048, {"iteration": "gram"}, 1.93),
    "16 words a unit, 16 bits": (1024, {"compute_dtype": "bfloat16"}, 1.95),
}


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("name", SENT)
def test_muon_on_everything_sends_little_more_than_the_mean(name, kind):
    words, how, most = SENT[name]
    params = transformer(words=words)
    wire, copy = wire_of(gd.zero1(muon(**how), MESHES[kind][1]), kind, params)
    assert wire.per_step <= most * copy * (1 + 1e-3)


def test_orthogonalize_is_the_same_on_columns():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 6, N * 9)), jnp.float32)
    coefficients = jnp.asarray([[3.4445, -4.7750, 2.0315]] * 5)
    of_devices = jnp.moveaxis(jnp.reshape(x, (2, 6, N, 9)), 2, 0)
    columns = Columns(N, lambda x: jax.lax.psum(x, "i"), lambda x: jax.lax.pmax(x, "i"))
    for how in ({}, {"by_gram": True}, {"turns": jnp.asarray(4)}):
        one = functools.partial(linalg.orthogonalize, coefficients=coefficients, **how)
        ours = jax.vmap(functools.partial(one, columns=columns), axis_name="i")(of_devices)
        ours = jnp.reshape(jnp.moveaxis(ours, 0, 2), x.shape)
        np.testing.assert_allclose(ours, one(x), atol=1e-5)

"""Matrices with many columns: devices keep those that they have, and sum products over them."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform import engine, linalg
from gradxform.base import transform
from gradxform.linalg.products import Columns, adjoint, gram_of, hermitian_size
from gradxform.testing import hlo
from gradxform.transforms.matrices.rule import MatrixRule
from gradxform.types import MatrixSlot
from tests.distributed.matrices.test_matrices import arrays, assert_close, numbers, run
from tests.distributed.zero.test_matrices import N, assert_undivided, transformer
from tests.distributed.zero.test_wire import wire_of
from tests.distributed.zero.test_zero import MESHES, mesh_of, on_meshes, whole

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


class Whole(gx.orthogonalize_updates):
    """The same rule, which says nothing of products, so that it gets whole matrices."""

    def rule(self, g):
        assert engine.columns_now() is None
        return super().rule(g)


class Slotted(MatrixRule):
    """A rule that says how many products it forms, and has a slot for each matrix."""

    class State(NamedTuple):
        of_matrix: MatrixSlot

    def init(self, params):
        make = lambda count, m, n, dtype: jnp.zeros((count, n), dtype)  # noqa: E731
        return self.State(self.matrix_slots(params, make))

    def grams_needed(self, m, n):
        return 0

    def rule(self, g, slot):
        slot = slot + g[..., 0, :]
        return g * slot[..., None, :], slot


class Numbered(MatrixRule):
    """A rule that forms no products, and looks at the numbers of its matrices."""

    State = gx.EmptyState

    def init(self, params):
        return gx.EmptyState()

    def grams_needed(self, m, n):
        return 0

    def rule(self, g):
        return g * (1 + engine.matrix_numbers(g.shape[0]))[:, None, None].astype(g.dtype)


WHOLE, SLOTTED, NUMBERED = (transform(x, name=None)() for x in (Whole, Slotted, Numbered))


def kinds_sent(tx, params, count=False):
    """The bytes that a device sends in a step, by the kind of collective; or how many there are."""
    mesh = mesh_of("8")
    states = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), states, P()))
    state = jax.eval_shape(smap(tx.init, in_specs=P(), out_specs=states), params)
    step = smap(tx.update, out_specs=(P(), states), check_vma=False)
    sent: dict[str, float] = {}
    for one in hlo.count_jaxpr(step, params, state, params):
        sent[one.kind] = sent.get(one.kind, 0) + (1 if count else one.sent)
    return sent


def shapes(*sizes, dtype=jnp.float32):
    return {str(i): jax.ShapeDtypeStruct(size, dtype) for i, size in enumerate(sizes)}


@pytest.mark.parametrize("name, kind, check_vma", on_meshes(RULES))
def test_the_numbers_are_those_of_the_undivided_rule(name, kind, check_vma):
    tolerance = 2e-2 if name == "16 bits" else 1e-4
    assert_undivided(RULES[name], SHAPES, kind, check_vma, tolerance)


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


@pytest.mark.parametrize("side", [1, 2, 3, 5, 6, 7, 8])
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
    half = -(-side // 2)
    assert sent == [(side, side) if side in (1, 3) else (2 * half + 1, half)]
    assert np.prod(sent) == hermitian_size(side) <= side**2


@pytest.mark.parametrize(
    ("rule", "grams"),
    [
        (gx.scale_by_muon(), 5),
        (gx.scale_by_muon(iteration="gram"), 2),
        (gx.scale_by_muon(ns_coeffs=((3.0, -4.0, 2.0),) * 3), 3),
        (gx.orthogonalize_updates(ns_steps=2), 2),
        (gx.orthogonalize_updates(ns_coeffs=((3.0, -4.0, 2.0),) * 3), 3),
        (gx.orthogonalize_updates(preconditioning="spectral"), None),
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


@pytest.mark.parametrize(
    ("how", "dtype", "columns", "stays"),
    [
        ({}, "float32", 40, False),
        ({}, "float32", 48, True),
        ({"compute_dtype": "bfloat16"}, "float32", 88, False),
        ({"compute_dtype": "bfloat16"}, "float32", 96, True),
        ({"compute_dtype": "bfloat16"}, "complex64", 48, True),
    ],
)
def test_the_columns_stay_where_that_sends_less(how, dtype, columns, stays):
    params = shapes((columns, 8), dtype=jnp.dtype(dtype))
    with jax.numpy_dtype_promotion("standard"):
        sent = kinds_sent(gd.zero1(gx.scale_by_muon(**how), "x"), params)
    assert ("all-reduce" in sent) == stays


@pytest.mark.parametrize("side", [1, 3, 7, 8, 64, 513])
@pytest.mark.parametrize("ratio", [6, 8, 10, 64])
@pytest.mark.parametrize("count", [1, 2, 10, 16])
def test_nothing_sends_more_than_whole_matrices_do(side, ratio, count):
    params = shapes(*[(8 * (-(-side * ratio // 8)), side)] * count)
    ours, theirs = (
        sum(kinds_sent(gd.zero1(tx, "x"), params).values())
        for tx in (gx.orthogonalize_updates(), WHOLE)
    )
    assert ours <= theirs
    if ratio == 64 and count <= 2:
        assert ours < 0.85 * theirs


def test_some_stay_and_the_others_fill_equal_shares():
    tx, params = gd.zero1(gx.orthogonalize_updates(), "x"), shapes(*[(640, 64)] * 10)
    sent = kinds_sent(tx, params)
    assert sent["all-to-all"] == 2 * 7 / 8 * 640 * 64 * 4
    assert sent["all-reduce"] == 2 * 7 / 8 * 2 * 4 * (5 * 32 * 65 + 2)


@pytest.mark.parametrize("size", [(64, 640), (640, 64), (64, 4096), (256, 50304), (50304, 256)])
def test_zero1_cuts_the_long_side(size):
    tx, params = gd.zero1(gx.orthogonalize_updates(), "x"), shapes(size)
    [spec] = tx.state_specs(params, mesh_of("8")).master.values()
    assert spec == P()  # nothing is kept of this rule but the parameters, which are float32
    sent = kinds_sent(tx, params)
    assert sent["all-reduce"] < 0.6 * 7 / 8 * hlo.copy_bytes(params)
    assert sent["all-gather"] == 7 / 8 * hlo.copy_bytes(params)


def test_several_matrices_share_their_collectives():
    tx = gd.zero1(gx.orthogonalize_updates(), "x")
    one, many = (kinds_sent(tx, shapes(*[(1024, 8)] * n), True)["all-reduce"] for n in (1, 12))
    assert one == many


def test_several_matrices_stay_or_are_shared():
    """Two of 8 x 1024 stay; sixteen of 8 x 64 are shared, since two a device are fewer bytes."""
    tx = gd.zero1(gx.orthogonalize_updates(), "x")
    assert "all-to-all" not in kinds_sent(tx, shapes(*[(1024, 8)] * 2))
    sent = kinds_sent(tx, shapes(*[(64, 8)] * 17))
    assert sent["all-to-all"] == 2 * 7 / 8 * 2 * 64 * 8 * 4
    assert "all-reduce" in sent  # of the one that is left over


# What each rule does to a matrix of which devices have pieces, on either side.
CUTS = {"tall": P("x"), "wide": P(None, "x"), "flat": P("x"), "thin": P(None, "x")}
LONG = {"tall": (128, 8), "wide": (8, 128), "flat": (8, 128), "thin": (128, 8)}


@pytest.mark.parametrize(
    "names", [("tall", "wide"), ("flat", "thin"), ("flat", "tall"), tuple(LONG)], ids=repr
)
@pytest.mark.parametrize("tx", [gx.scale_by_muon(), WHOLE, SLOTTED, NUMBERED], ids=repr)
def test_a_rule_has_the_numbers_of_one_device_on_any_side(tx, names):
    """Whole matrices for a rule with slots, for a new `rule`, and where the short side is cut."""
    shapes = {k: LONG[k] for k in names}
    params, grads = arrays(shapes), arrays(shapes, 1)
    mesh = jax.make_mesh((N,), ("x",), axis_types=(AxisType.Auto,))
    sharded = gd.shard_matrices(tx, "x", {k: CUTS[k] for k in names}, mesh)
    assert_close(run(sharded, params, grads), run(tx, params, grads))


def test_a_number_of_turns_that_is_known_at_run_time():
    tx = gx.inject_hyperparams(gx.scale_by_muon)(ns_steps=jnp.asarray(4))
    assert_undivided(tx, {"tall": (128, 8), "wide": (8, 128)}, "8", True, 1e-4)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("sizes", [(8, 1), (1, 8), (1, 1)])
def test_axes_of_one_device_change_nothing(sizes, check_vma):
    params = arrays({"tall": (128, 8), "stack": (8, 64, 4), "other": (2, 64, 4), "up": (16, 32)})
    inner = gx.muon(0.1, muon_weight_dimension_numbers=numbers)
    mesh = jax.make_mesh(sizes, ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    tx = gd.zero1(inner, ("x", "y"))
    specs = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)
    state = jax.jit(smap(tx.init, in_specs=P(), out_specs=specs))(params)

    def step(params, state):
        grads = gd.local_view(jax.tree.map(jnp.sin, params), ("x", "y"))
        return jax.lax.fori_loop(0, 2, lambda _, c: tx.step(grads, c[1], c[0]), (params, state))

    ours, _ = jax.jit(smap(step, in_specs=(P(), specs), out_specs=(P(), specs)))(params, state)
    grads = jax.tree.map(lambda x: jnp.broadcast_to(jnp.sin(x), (2, 1, *x.shape)), params)
    assert_close(ours, whole(inner, params, grads)[0])


def test_the_largest_singular_value_needs_whole_matrices():
    columns = Columns(N, lambda x: x, lambda x: x)
    with pytest.raises(ValueError, match="'spectral' needs whole matrices"):
        linalg.orthogonalize(jnp.ones((2, 8)), jnp.ones((1, 3)), "spectral", columns=columns)


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

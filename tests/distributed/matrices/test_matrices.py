"""Whole matrices shared among devices: the numbers of one device, the program, wrong calls."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from benchmarks.sections import matrix
from gradxform import engine
from gradxform.base import transform
from gradxform.engine import matrices
from gradxform.testing import hlo
from gradxform.transforms.matrices.rule import MatrixRule
from gradxform.types import MatrixSlot, StaticTree

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

STEPS = 3


def mesh_of(n, kind=AxisType.Auto):
    return jax.make_mesh((n,), ("x",), axis_types=(kind,), devices=jax.devices()[:n])


def arrays(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}


def run(tx, params, grads):
    """The parameters after some steps, each a call of a compiled function."""
    state = jax.jit(tx.init)(params)
    step = jax.jit(tx.update)
    for k in range(STEPS):
        g = jax.tree.map(lambda x, k=k: jnp.sin(x * (k + 1)), grads)
        updates, state = step(g, state, params)
        params = gx.apply_updates(params, updates)
    return params, state


def assert_close(ours, theirs, tolerance=1e-5):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.max(np.abs(b), initial=1))


def layers(count):
    """Matrices of equal sides: some apart, some tall, some stacked, and others."""
    shapes = {f"up{i}": (8, 24) for i in range(count)}
    shapes |= {f"down{i}": (24, 8) for i in range(count)}
    return shapes | {"stack": (count, 24, 8), "square": (16, 16), "odd": (5, 3), "norm": (8,)}


def numbers(params):
    kinds = {2: gx.MuonDimensionNumbers(), 3: gx.MuonDimensionNumbers(1, 2)}
    return jax.tree.map(lambda x: kinds.get(x.ndim), params)


def specs(params):
    cuts = {"up": P("x"), "dow": P(None, "x"), "sta": P(None, "x"), "squ": P(None, "x")}
    return {k: cuts.get(k[:3], cuts.get(k[:2], P())) for k in params}


MUON = gx.chain(
    gx.clip_by_global_norm(1.0),
    gx.muon(0.1, weight_decay=0.1, muon_weight_dimension_numbers=numbers),
)


@pytest.mark.parametrize("count", [1, 7, 8, 9])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_numbers_are_those_of_one_device(n, count):
    params, grads = arrays(layers(count)), arrays(layers(count), 1)
    expected, _ = run(MUON, params, grads)
    mesh = mesh_of(n)
    tx = gd.shard_matrices(MUON, "x", specs, mesh)
    cut = {k: NamedSharding(mesh, s) for k, s in specs(params).items()}
    got, state = run(tx, jax.device_put(params, cut), jax.device_put(grads, cut))
    assert_close(got, expected)
    places = jax.tree.map(lambda s: NamedSharding(mesh, s), tx.state_specs(params))
    same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), state, places)
    assert all(jax.tree.leaves(same))


# ------------------------------------------------------------------- rules that remember matrices


class WhitenState(NamedTuple):
    """The state of `whiten`."""

    mean: gx.Slot
    gram: MatrixSlot


@transform(name=None)
class whiten(MatrixRule):
    """A rule with a slot for matrices, and a sum over each array."""

    weight_dimension_numbers: StaticTree = numbers

    State = WhitenState

    def init(self, params):
        """Return zeros, and a matrix of ones for each matrix."""
        grams = self.matrix_slots(params, lambda b, m, n, dtype: jnp.ones((b, m, m), dtype))
        return WhitenState(gx.tree_utils.tree_zeros_like(params), grams)

    def entries(self, g, mean, p):
        """Return a mean of gradients, twice."""
        mean = 0.5 * mean + g
        return (mean, g), mean

    def rule(self, x, g, gram):
        """Return the gradient times its accumulated second moment."""
        gram = 0.5 * gram + jnp.matmul(g, jnp.swapaxes(g, -1, -2))
        return jnp.matmul(gram, x) / 100, gram

    def finish(self, u, mean, g):
        """Return the update divided by the root of the array's sum of squares."""
        return u / jnp.sqrt(engine.array_sum(u * u + 0 * g))


SHAPES = {
    "a": (8, 24), "b": (24, 8), "rows": (16, 16), "whole": (8, 24), "odd": (5, 3),
    "experts": (16, 4, 6), "one": (4, 6), "columns": (3, 16, 8),
}  # fmt: skip
DIMS = {"a": 1, "b": 0, "rows": 0, "whole": None, "odd": None, "experts": 0, "one": None,
        "columns": 1}  # fmt: skip


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("tx", [whiten(), gx.scale_by_muon(adaptive=True,
    weight_dimension_numbers=numbers)], ids=["slots", "sums"])  # fmt: skip
def test_slots_of_matrices_and_sums_over_arrays(tx, n):
    params, grads = arrays(SHAPES), arrays(SHAPES, 1)
    expected = run(tx, params, grads)
    sharded = gd.shard_matrices(tx, "x", DIMS, mesh_of(n))
    got = run(sharded, params, grads)
    assert_close(got, expected)
    if isinstance(tx, whiten):
        specs = sharded.state_specs(params)
        alone = {"experts": P("x"), "whole": P(), "odd": P(), "one": P()}
        assert specs.gram == {k: alone.get(k, P(None, "x")) for k in SHAPES}
        assert specs.mean["b"] == P("x")


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_a_callers_shard_map_it_takes_pieces(check_vma):
    params, grads = arrays(SHAPES), arrays(SHAPES, 1)
    tx = gx.chain(gx.clip_by_global_norm(1.0), whiten())
    expected = run(tx, params, grads)
    mesh, mine = mesh_of(8), gd.shard_matrices(tx, "x", DIMS)
    cut = {k: P() if d is None else P(*[None] * d, "x") for k, d in DIMS.items()}
    smap = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)
    states = mine.state_specs(params, mesh)

    class mapped:
        init = staticmethod(smap(mine.init, in_specs=(cut,), out_specs=states))
        update = staticmethod(smap(mine.update, in_specs=(cut, states, cut),
                                   out_specs=(cut, states)))  # fmt: skip

    assert_close(run(mapped, params, grads), expected)


# ----------------------------------------------------------------------------------- the program

WIDTH, LAYERS = 64, 8


def transformer(layers=LAYERS, d=WIDTH):
    """Shapes and specs of the matrices of a transformer, as tensor parallelism cuts them."""
    shapes = {"qkv": (d, 3 * d), "o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    cut = {"qkv": P(None, "x"), "o": P("x"), "up": P(None, "x"), "down": P("x")}
    shapes = {
        f"layer{i}": {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
        for i in range(layers)
    }
    return shapes, {k: cut for k in shapes}


def program(tx, params, places, state_places, mesh):
    """The compiled step on sharded arrays, and what it asks for before it is compiled."""

    def on(places):
        return jax.tree.map(lambda s: NamedSharding(mesh, s), places)

    def like(tree, places):
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, on(places)
        )

    def step(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    state = like(jax.eval_shape(tx.init, params), state_places)
    arrays = like(params, places)
    jitted = jax.jit(step, out_shardings=(on(places), on(state_places)))
    args = arrays, state, arrays
    return jitted.lower(*args).compile(), hlo.count_jaxpr(step, *args)


def shares(counted, params):
    """The bytes that a device sends, over those of its share of the matrices."""
    return hlo.wire_bytes(counted).per_step / (hlo.copy_bytes(params) / 8)


def test_the_program_has_six_collectives_of_few_bytes_and_its_share_of_the_products():
    mesh = mesh_of(8)
    flops = {}
    for layers in (LAYERS, 2 * LAYERS):
        params, places = transformer(layers)
        tx = gd.shard_matrices(gx.muon(0.02), "x", places, mesh)
        ours, _ = program(tx, params, places, tx.state_specs(params), mesh)
        kinds = [c.kind for c in hlo.collectives(ours)]
        assert kinds == ["all-to-all"] * 6
        assert shares(ours, params) == 1.75
        flops[layers] = product_flops(tx, params)
    params, places = transformer()
    theirs = optax.contrib.muon(0.02)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state_places = gd.state_sharding(theirs, params, places)
        theirs, _ = program(theirs, params, places, state_places, mesh)
    assert len(hlo.collectives(theirs)) > 200 and shares(theirs, params) > 20
    assert flops[LAYERS] <= 0.60 * theirs.cost_analysis()["flops"]
    assert flops[LAYERS] <= 0.126 * product_flops(gx.muon(0.02), params)


def product_flops(tx, params):
    """The multiplications and additions of the products of a step, in loops at every turn."""
    return matrix.product_flops(tx.update, params, jax.eval_shape(tx.init, params), params)


def test_matrices_that_are_cut_in_two_ways_fill_shares_together():
    params, places = transformer(4)
    params = {k: {n: v[n] for n in ("up", "down")} for k, v in params.items()}
    places = {k: {n: v[n] for n in ("up", "down")} for k, v in places.items()}
    tx = gd.shard_matrices(gx.muon(0.02), "x", places, mesh_of(8))
    assert product_flops(tx, params) == product_flops(gx.muon(0.02), params) / 8


def test_a_stack_of_experts_that_is_cut_by_expert_sends_nothing():
    mesh = mesh_of(8)
    params = {"up": jax.ShapeDtypeStruct((16, 8, 32), jnp.float32)}
    tx = gd.shard_matrices(
        gx.muon(0.02, muon_weight_dimension_numbers=gx.MuonDimensionNumbers(1, 2)), "x", 0, mesh
    )
    ours, _ = program(tx, params, {"up": P("x")}, tx.state_specs(params), mesh)
    assert hlo.collectives(ours) == []


# ---------------------------------------------------------------------------- splits, 16 bits

FUSED = {
    "qkv": ((16, 48), 0, gx.matrix_split(1, 16)),
    "gathered": ((16, 48), 1, gx.matrix_split(1, 16)),
    "heads": ((16, 32), 1, gx.matrix_split(1, 4)),
    "fewer keys": ((16, 32), 0, gx.matrix_split(1, (16, 8, 8))),
    "gathered, fewer keys": ((16, 32), 1, gx.matrix_split(1, (16, 8, 8))),
    "layers": ((8, 16, 32), 0, gx.matrix_split(2, (16, 8, 8), gx.MuonDimensionNumbers(1, 2))),
    "stacked": ((3, 16, 32), 1, gx.matrix_split(2, 8, gx.MuonDimensionNumbers(1, 2))),
    "whole": ((16, 32), None, gx.matrix_split(1, 8)),
    "attention": ((8, 4, 8), 1, gx.MuonDimensionNumbers(0, (1, 2))),
}


@pytest.mark.parametrize("rms", [None, 0.2])
def test_splits_and_other_axes_are_those_of_one_device(rms):
    params, grads = (arrays({k: s for k, (s, *_) in FUSED.items()}, seed) for seed in (0, 1))
    tx = gx.muon(0.1, muon_weight_dimension_numbers={k: x for k, (*_, x) in FUSED.items()},
                 consistent_rms=rms)  # fmt: skip
    sharded = gd.shard_matrices(tx, "x", {k: d for k, (_, d, _) in FUSED.items()}, mesh_of(4))
    assert_close(run(sharded, params, grads)[0], run(tx, params, grads)[0])


def test_sixteen_bits_halve_the_bytes_and_have_the_numbers_of_one_device():
    mesh, tx = mesh_of(8), gx.muon(0.02, compute_dtype="bfloat16")
    params, places = transformer()
    sharded = gd.shard_matrices(tx, "x", places, mesh)
    # XLA for CPUs sends 32 bits: what the program asks for counts.
    _, asked = program(sharded, params, places, sharded.state_specs(params), mesh)
    assert shares(asked, params) == 0.875
    params, grads = arrays(SHAPES), arrays(SHAPES, 1)
    tx = gx.muon(0.02, muon_weight_dimension_numbers=numbers, compute_dtype="bfloat16")
    expected, _ = run(tx, params, grads)
    got, _ = run(gd.shard_matrices(tx, "x", DIMS, mesh), params, grads)
    assert_close(got, expected, 1e-3)  # sums in another order round to other 16-bit numbers


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_meshes_of_either_kind(kind):
    params, grads = arrays(SHAPES), arrays(SHAPES, 1)
    mesh = mesh_of(8, kind)
    expected, _ = run(gx.scale_by_muon(weight_dimension_numbers=numbers), params, grads)
    tx = gd.shard_matrices(gx.scale_by_muon(weight_dimension_numbers=numbers), "x", DIMS, mesh)
    cut = {k: NamedSharding(mesh, P() if d is None else P(*[None] * d, "x"))
           for k, d in DIMS.items()}  # fmt: skip
    params, grads = jax.device_put((params, grads), (cut, cut))
    with jax.set_mesh(mesh):
        got, _ = run(tx, params, grads)
    assert_close(jax.device_get(got), expected)
    updates, _ = tx.update(grads, tx.init(params), params)  # outside of a program
    alike, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    assert_close(jax.device_get(updates), jax.device_get(alike))


# --------------------------------------------------------------------------- the other rules

REMEMBERING = {
    "soap": gx.scale_by_soap(precondition_frequency=3, weight_dimension_numbers=numbers),
    "shampoo": gx.scale_by_distributed_shampoo(
        4, preconditioning_compute_steps=3, weight_dimension_numbers=numbers
    ),
    "kron": gx.scale_by_psgd_kron(weight_dimension_numbers=numbers),
    "normuon": gx.scale_by_normuon(weight_dimension_numbers=numbers),
    "adamuon": gx.scale_by_adamuon(signs=False, weight_dimension_numbers=numbers),
    "dion": gx.scale_by_dion(0.5, weight_dimension_numbers=numbers),
    "orthogonal": gx.chain(
        gx.orthogonalize_updates(weight_dimension_numbers=numbers), gx.scale_by_fans(numbers)
    ),
}


@pytest.mark.parametrize(
    "name, at_once", [*((name, None) for name in REMEMBERING), ("soap", 2), ("kron", 2)]
)
def test_other_rules_have_the_numbers_of_one_device(name, at_once, monkeypatch):
    """Stacks that are cut along their batch, matrices that are cut, and those of all devices.

    In batches of two, too, which are renewed by their numbers among the matrices of all devices.
    """
    shapes = {"stack": (6, 4, 6), "up": (4, 6), "down": (6, 4), "whole": (4, 6)}
    places = {"stack": P("x"), "up": P("x"), "down": P(None, "x"), "whole": P()}
    params, grads = arrays(shapes), arrays(shapes, 1)
    tx, mesh = REMEMBERING[name], mesh_of(2)

    def steps(tx):
        state, out = jax.jit(tx.init)(params), []
        step = jax.jit(tx.update)
        for k in range(7):
            g = jax.tree.map(lambda x, k=k: jnp.sin(x * (k + 1)), grads)
            updates, state = step(g, state, params)
            out.append(updates)
        return out

    expected = steps(tx)
    if at_once:
        monkeypatch.setattr(matrices, "ON_CPU", at_once * 24)
    got = steps(gd.shard_matrices(tx, "x", places, mesh))
    for ours, theirs in zip(got, expected, strict=True):
        assert_close(ours, theirs, 1e-4)


@pytest.mark.parametrize("name", REMEMBERING)
def test_slots_are_divided_and_travel_with_the_matrices(name):
    shapes = {str(i): (32, 64) for i in range(8)}
    places, params = dict.fromkeys(shapes, P("x")), arrays(shapes)
    tx, mesh = REMEMBERING[name], mesh_of(8)
    sharded = gd.shard_matrices(tx, "x", places, mesh)
    compiled, _ = program(sharded, params, places, sharded.state_specs(params), mesh)
    counted = hlo.collectives(compiled)
    assert [c.kind for c in counted] == ["all-to-all"] * 2
    copy, whole = hlo.copy_bytes(params), hlo.copy_bytes(jax.eval_shape(tx.init, params))
    assert shares(counted, params) <= 1.75 * (1 + whole / copy)
    # Gradients, state and parameters; a device holds an eighth of each, and the scalars.
    held = compiled.memory_analysis().argument_size_in_bytes
    assert held <= (2 * copy + whole) / 8 + 256


def dion2(**more):
    return gx.scale_by_dion2(0.5, weight_dimension_numbers=numbers, **more)


@pytest.mark.parametrize("n", [2, 8])
def test_rows_that_are_picked_from_pieces_are_those_of_one_device(n):
    """Cut along rows and columns, turned or not, gathered, whole, and by expert."""
    params, grads = arrays(SHAPES), arrays(SHAPES, 1)
    tx = dion2(groups=n)
    expected = run(tx, params, grads)
    assert_close(run(gd.shard_matrices(tx, "x", DIMS, mesh_of(n)), params, grads), expected)
    # Without groups, all must be cut along the columns.
    tx, dims = dion2(), DIMS | {"b": 0, "a": 1, "rows": 1}
    shapes = {k: s for k, s in SHAPES.items() if k != "columns"}
    params, grads, dims = ({k: x[k] for k in shapes} for x in (params, grads, dims))
    expected = run(tx, params, grads)
    assert_close(run(gd.shard_matrices(tx, "x", dims, mesh_of(n)), params, grads), expected)


def test_rows_of_several_axes_and_of_fused_matrices_are_those_of_one_device():
    # Pieces along the second axis of the rows are not neighbours.
    given = {"second": ((2, 4, 24), 1, gx.MuonDimensionNumbers((0, 1), 2))}
    given |= {k: x for k, x in FUSED.items() if "fewer" not in k and k != "layers"}
    params, grads = (arrays({k: s for k, (s, *_) in given.items()}, seed) for seed in (0, 1))
    tx = gx.scale_by_dion2(
        0.5, groups=4, weight_dimension_numbers={k: x for k, (*_, x) in given.items()}
    )
    dims = {k: d for k, (_, d, _) in given.items()}
    sharded = gd.shard_matrices(tx, "x", dims, mesh_of(4))
    assert_close(run(sharded, params, grads), run(tx, params, grads))


def test_the_bytes_of_picked_rows_fall_with_their_share():
    mesh, sent = mesh_of(8), {}
    params, places = transformer()
    for fraction in (1.0, 0.25):
        tx = gx.scale_by_dion2(fraction, groups=8)
        tx = gd.shard_matrices(tx, "x", places, mesh)
        ours, _ = program(tx, params, places, tx.state_specs(params), mesh)
        # Where columns are cut, the sums of the rows are added, of all matrices together.
        kinds = sorted(c.kind for c in hlo.collectives(ours))
        assert kinds == ["all-reduce"] + ["all-to-all"] * 6
        sent[fraction] = shares(ours, params)
    assert sent[1.0] - sent[0.25] == 0.75 * 1.75 and sent[0.25] < 0.3 * 1.75


def test_rows_are_not_picked_across_pieces():
    tx = gd.shard_matrices(dion2(groups=3), "x", {"up": P("x")}, mesh_of(2))
    message = r"6 rows of \['up'\] are cut into 2 pieces, .* from 3 group.* Give groups=2, or cut"
    with pytest.raises(ValueError, match=message):
        tx.init(arrays({"up": (6, 8)}))

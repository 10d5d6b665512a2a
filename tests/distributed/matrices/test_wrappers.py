"""Matrix rules on a mesh: wrappers around them, matrices apart, and empty stacks."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.testing import hlo
from tests.distributed.matrices.test_matrices import arrays, assert_close, mesh_of, program, run

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]


@pytest.mark.parametrize("spec", [P(None, "x"), P("x")], ids=str)
@pytest.mark.parametrize("heads", [2, 4, 8])
def test_heads_are_clipped_wherever_they_lie(heads, spec):
    layers = {"a": gx.query_key("q", "k", heads=1)}
    tx = gx.muonclip(0.1, layers, 2.0)
    params, grads = (arrays({"q": (8, 16), "k": (8, 16)}, seed) for seed in (0, 1))
    logits = {"a": jnp.asarray([400.0, *[1.0] * (heads - 1)])}
    want, _ = jax.jit(tx.update)(grads, tx.init(params), params, max_logits=logits)
    on_mesh = gd.shard_matrices(tx, "x", spec, mesh_of(4))
    state = jax.jit(on_mesh.init)(params)
    got, _ = jax.jit(on_mesh.update)(grads, state, params, max_logits=logits)
    assert_close(got, want)


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
def test_projections_are_orthogonalized_wherever_matrices_lie(spec):
    tx = gx.scale_by_galore(4, 1, base_optimizer=gx.scale_by_muon(nesterov=False))
    params, grads = (arrays({"w": (16, 24), "v": (24, 16)}, seed) for seed in (0, 1))
    on_mesh = gd.shard_matrices(tx, "x", {"w": spec, "v": P("x")}, mesh_of(8))
    got, _ = jax.jit(on_mesh.update)(grads, jax.jit(on_mesh.init)(params), params)
    want, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    assert_close(got, want)


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P(None, None, "x")], ids=str)
@pytest.mark.parametrize("rows", [(0, 1), (1, 2)], ids=str)
def test_sides_of_several_axes_are_projected_wherever_they_are_cut(rows, spec):
    """A side may be cut along its minor axis, so that a device has a part in every row of it."""
    numbers = gx.GaLoreDimensionNumbers(rows, *({0, 1, 2} - {*rows}))
    tx = gx.scale_by_galore(2, 2, base_optimizer=gx.trace(0.9), weight_dimension_numbers=numbers)
    params, grads = (arrays({"w": (4, 8, 4)}, seed) for seed in (0, 1))
    on_mesh = gd.shard_matrices(tx, "x", spec, mesh_of(4))
    state, theirs = tx.init(params), jax.jit(on_mesh.init)(params)
    for _ in range(2):
        want, state = jax.jit(tx.update)(grads, state, params)
        got, theirs = jax.jit(on_mesh.update)(grads, theirs, params)
        assert_close(got, want)
    assert_close(theirs, state)


# Where a stack lies, and where its projectors and projections then lie; the rank is 4.
STACKS = [
    ((8, 12, 16), P("x"), P("x"), P("x")),
    ((8, 16, 12), P("x"), P("x"), P("x")),
    ((3, 12, 16), P(None, "x"), P(None, "x"), P(None, "x")),
    ((3, 12, 16), P(None, None, "x"), P(None, "x"), P(None, "x")),
    ((3, 16, 12), P(None, "x"), P(None, "x"), P(None, None, "x")),
    ((3, 16, 12), P(None, None, "x"), P(None, "x"), P(None, None, "x")),
    ((8, 5, 12), P(None, None, "x"), P(None, "x"), P(None, None, "x")),  # by the rank
    ((8, 5, 12), P(), P(None, "x"), P(None, None, "x")),
    ((2, 8, 5, 6), P(None, "x"), P(None, "x"), P(None, "x")),
]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("shape, spec, projector, projection", STACKS, ids=str)
def test_stacks_are_projected_wherever_they_are_cut(shape, spec, projector, projection, kind):
    numbers = gx.GaLoreDimensionNumbers(-2, -1)
    tx = gx.scale_by_galore(4, 2, base_optimizer=gx.trace(0.9), weight_dimension_numbers=numbers)
    shapes, mesh = {"w": shape, "other": (8, 4)}, mesh_of(4, kind)
    places = {"w": spec, "other": P("x")}
    params, grads = (arrays(shapes, seed) for seed in (0, 1))
    on_mesh = gd.shard_matrices(tx, "x", places, mesh)
    specs = on_mesh.state_specs(params)
    assert specs.projector["w"] == projector
    assert specs.base_optimizer_state.trace["w"] == projection
    want = run(tx, params, grads)
    cut = {k: NamedSharding(mesh, place) for k, place in places.items()}
    with jax.set_mesh(mesh):
        got = run(on_mesh, *jax.device_put((params, grads), (cut, cut)))
    assert_close(jax.device_get(got), jax.device_get(want))


def test_layers_that_lie_on_devices_of_their_own_are_projected_without_exchange():
    mesh, params = mesh_of(8), {"w": jax.ShapeDtypeStruct((16, 12, 8), jnp.float32)}
    tx = gx.galore(0.1, 4, weight_dimension_numbers=gx.GaLoreDimensionNumbers(1, 2))
    on_mesh = gd.shard_matrices(tx, "x", P("x"), mesh)
    compiled, _ = program(on_mesh, params, {"w": P("x")}, on_mesh.state_specs(params), mesh)
    assert hlo.collectives(compiled) == []


STATEFUL = {
    "soap": gx.soap(0.1),
    "distributed_shampoo": gx.distributed_shampoo(0.1, preconditioning_compute_steps=3),
    "psgd_kron": gx.psgd_kron(0.1),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_one_matrix_that_no_device_has_a_part_of_is_computed_by_all(name):
    tx, mesh = gd.zero1(STATEFUL[name], "x"), mesh_of(8)
    params = arrays({"odd": (7, 5)})
    specs = tx.state_specs(params, mesh)
    init = jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=specs)
    places = P(), specs

    def step(params, state):
        return tx.step(gd.local_view(params, "x"), state, params)

    step = jax.shard_map(step, mesh=mesh, in_specs=places, out_specs=places)
    got, _ = jax.jit(step)(params, jax.jit(init)(params))
    plain = STATEFUL[name]
    updates, _ = jax.jit(plain.update)(params, plain.init(params), params)
    assert_close(got, gx.apply_updates(params, updates))


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
@pytest.mark.parametrize("make", [gx.scale_by_muon, gx.scale_by_soap], ids=lambda f: f.__name__)
def test_an_empty_stack_is_left_alone(make, spec):
    axes = {"e": gx.MuonDimensionNumbers(1, 2), "w": gx.MuonDimensionNumbers()}
    params = arrays({"e": (0, 8, 16), "w": (8, 8)})
    tx = make(weight_dimension_numbers=axes)
    on_mesh = gd.shard_matrices(tx, "x", {"e": spec, "w": P("x")}, mesh_of(8))
    got, _ = jax.jit(on_mesh.update)(params, jax.jit(on_mesh.init)(params), params)
    want, _ = jax.jit(tx.update)(params, tx.init(params), params)
    assert_close(got, want)


ENTRYWISE = {
    **{
        norm: gx.scale_by_lmo(norm, weight_dimension_numbers=None)
        for norm in ("sign", "inputs", "outputs", "rms")
    },
    **{
        f"keeps_{norm}": gx.chain(gx.scale(-0.3), gx.keep_matrix_norms(norm))
        for norm in ("frobenius", "rows", "columns")
    },
}


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
@pytest.mark.parametrize("name", ENTRYWISE)
def test_norms_of_pieces_are_those_of_the_whole(name, spec):
    tx = ENTRYWISE[name]
    params, grads = (arrays({"w": (16, 24), "v": (8, 8)}, seed) for seed in (0, 1))
    grads["v"] = grads["v"] * 1e30 if not name.startswith("keeps") else grads["v"]
    on_mesh = gd.shard_matrices(tx, "x", {"w": spec, "v": P("x")}, mesh_of(8))
    got, _ = jax.jit(on_mesh.update)(grads, jax.jit(on_mesh.init)(params), params)
    want, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(got))
    assert_close(got, want)


def test_scion_runs_on_a_mesh():
    params, grads = (arrays({"up": (16, 32), "head": (16, 8), "b": (16,)}, seed) for seed in (0, 1))
    tx = gx.scion(0.1)
    specs = {"up": P(None, "x"), "head": P("x"), "b": P()}
    on_mesh = gd.shard_matrices(tx, "x", specs, mesh_of(8))
    got, _ = jax.jit(on_mesh.update)(grads, jax.jit(on_mesh.init)(params), params)
    want, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    assert_close(got, want)


def test_the_spectral_norm_of_pieces_is_refused():
    tx = gx.keep_matrix_norms("spectral")
    params = arrays({"w": (16, 24)})
    on_mesh = gd.shard_matrices(tx, "x", P("x"), mesh_of(8))
    with pytest.raises(ValueError, match=r"parameter \['w'\] is divided over devices, and the sp"):
        on_mesh.init(params)


def test_turns_on_a_mesh_are_those_of_one_device_where_gradients_lack():
    """Half of the bases are renewed at a step; which ones does not follow from the gradients.

    The matrices are square: a product of the others has vectors to the eigenvalue 0, which may be
    anything.
    """
    numbers = {"a": gx.MuonDimensionNumbers(), "b": gx.MuonDimensionNumbers()}
    numbers |= {"c": gx.MuonDimensionNumbers(1, 2)}
    tx = gx.scale_by_soap(precondition_frequency=2, weight_dimension_numbers=numbers)
    shapes = {"a": (8, 8), "b": (8, 8), "c": (3, 8, 8)}
    specs = {"a": P("x"), "b": P(), "c": P(None, "x")}
    params = arrays(shapes)
    on_mesh = gd.shard_matrices(tx, "x", specs, mesh_of(2))
    state, theirs = tx.init(params), jax.jit(on_mesh.init)(params)
    alone, together = jax.jit(tx.update), jax.jit(on_mesh.update)
    for i in range(4):
        grads = arrays(shapes, i + 1) | ({} if i % 2 else {"a": None})
        want, state = alone(grads, state, params)
        got, theirs = together(grads, theirs, params)
        assert_close(got, want)

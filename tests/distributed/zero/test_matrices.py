"""Matrices left over from equal shares: gathered by all devices, with the numbers of one device."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.testing import hlo
from tests.distributed.matrices.test_matrices import arrays, assert_close, numbers, run, specs
from tests.distributed.zero.test_wire import wire_of
from tests.distributed.zero.test_zero import (
    MESHES,
    divided,
    local_grads,
    mesh_of,
    on_meshes,
    start,
    whole,
)

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N = 8
# One matrix alone, nine cut in one way, eight and one in two ways, and stacks.
SHAPES = {"alone": (16, 48), "stack": (8, 24, 16), "one": (16, 24)}
SHAPES |= {f"up{i}": (8, 32) for i in range(8)} | {"down": (32, 8)}
RULES = {
    "muon": gx.muon(0.1, weight_decay=0.1, muon_weight_dimension_numbers=numbers),
    "normuon": gx.scale_by_normuon(weight_dimension_numbers=numbers),
    "adamuon": gx.scale_by_adamuon(signs=False, weight_dimension_numbers=numbers),
    "kron": gx.scale_by_psgd_kron(weight_dimension_numbers=numbers),
    "16 bits": gx.muon(0.1, muon_weight_dimension_numbers=numbers, compute_dtype="bfloat16"),
}


@functools.cache
def undivided(inner, shapes):
    """The parameters and the state of the rule on one device."""
    shapes = dict(shapes)
    return whole(inner, start(shapes=shapes), local_grads(shapes=shapes))


def assert_undivided(inner, shapes, kind, check_vma, tolerance):
    """The parameters and the state of `zero1` are those of the rule on one device."""
    params, grads = start(shapes=shapes), local_grads(shapes=shapes)
    ours, state = divided(gd.zero1(inner, MESHES[kind][1]), kind, params, grads, check_vma)
    theirs, of_inner = undivided(inner, tuple(shapes.items()))
    assert_close(ours, theirs, tolerance)
    assert_close(state.inner, of_inner, tolerance)


@pytest.mark.parametrize("name, kind, check_vma", on_meshes(RULES))
def test_the_numbers_are_those_of_the_undivided_rule(name, kind, check_vma):
    tolerance = 1e-2 if name == "16 bits" else 1e-4
    assert_undivided(RULES[name], SHAPES, kind, check_vma, tolerance)


def test_pieces_of_parameters_have_the_numbers_of_one_device():
    shapes = {f"up{i}": (8, 24) for i in range(9)} | {"square": (16, 16)}
    params, grads = arrays(shapes), arrays(shapes, 1)
    mesh = jax.make_mesh((N,), ("x",), axis_types=(AxisType.Auto,))
    tx = RULES["normuon"]
    sharded = gd.shard_matrices(tx, "x", specs, mesh)
    assert_close(run(sharded, params, grads), run(tx, params, grads))


# ------------------------------------------------------------------------------------------ bytes


def transformer(layers=8, d=64, words=1024):
    """Shapes of a transformer: an embedding of a seventh of the parameters, and its layers."""
    shapes = {"qkv": (d, 3 * d), "o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    of_layers = {f"{k}{i}": s for i in range(layers) for k, s in shapes.items()}
    all_shapes = of_layers | {"embedding": (words, d)}
    return {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in all_shapes.items()}


def all_but_the_embedding(params):
    return {k: None if k == "embedding" else gx.MuonDimensionNumbers() for k in params}


SENT = {  # twice 7/8 of all, twice 7/64 of the layers, and 7/8 of an embedding
    "lamb": (gx.lamb(1e-3), 1.7503),
    "muon": (gx.muon(0.02), 1.75 + 7 / 32 * 6 / 7 + 7 / 8 / 7),
    "adamw for the embedding": (
        gx.muon(0.02, muon_weight_dimension_numbers=all_but_the_embedding),
        1.75 + 7 / 32 * 6 / 7,
    ),
}


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("name", SENT)
def test_what_zero1_sends_and_holds_for_rules_that_look_at_arrays(name, kind):
    inner, most = SENT[name]
    params, mesh, axes = transformer(), mesh_of(kind), MESHES[kind][1]
    tx = gd.zero1(inner, axes)
    wire, copy = wire_of(tx, kind, params)
    assert wire.per_step <= most * copy * (1 + 1e-5)
    places = tx.state_specs(params, mesh)
    init = jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=places)
    state = jax.eval_shape(init, params).inner
    held = sum(
        hlo.copy_bytes(x) / (N if any(spec) else 1)
        for x, spec in zip(jax.tree.leaves(state), jax.tree.leaves(places.inner), strict=True)
    )
    assert held <= 1.1 * hlo.copy_bytes(jax.eval_shape(inner.init, params)) / N


@pytest.mark.parametrize("count", [1, 9, 17])
def test_a_matrix_left_over_is_sent_once_and_not_there_and_back(count):
    params = {str(i): jax.ShapeDtypeStruct((16, 64), jnp.float32) for i in range(count)}
    mesh = mesh_of("8")
    tx = gd.zero1(gx.orthogonalize_updates(), "x")
    states = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), states, P()))
    state = jax.eval_shape(smap(tx.init, in_specs=P(), out_specs=states), params)
    step = smap(tx.update, out_specs=(P(), states), check_vma=False)
    matrix = hlo.copy_bytes(params) / count
    sent = {}
    for one in hlo.count_jaxpr(step, params, state, params):
        sent[one.kind] = sent.get(one.kind, 0) + one.sent / matrix
    shares = (count - 1) // N  # of whole matrices
    assert sent.pop("reduce-scatter") == 7 / 8 * count
    assert sent.pop("all-gather") == 7 / 8 * (count + 1)
    assert sent == ({"all-to-all": 1.75 * shares} if shares else {})

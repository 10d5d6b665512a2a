"""Rules that need whole arrays under `zero1` and `shard_matrices`: numbers, bytes, collectives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.testing import hlo
from tests.distributed.matrices.test_matrices import arrays, mesh_of as mesh_of_matrices, run
from tests.distributed.zero.test_catalogue import program, transformer
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

SHAPES = {
    "w": (16, 24), "same": (16, 24), "tall": (24, 16), "conv": (3, 8, 4), "stack": (8, 4, 6),
    "b": (24,), "odd": (5, 3), "scale": (), "empty": (0, 8),
}  # fmt: skip
MATRIX = gx.GaLoreDimensionNumbers()
SIDES = {k: MATRIX if len(s) == 2 and all(s) else None for k, s in SHAPES.items()}
SIDES |= {  # sides of two dimensions, of which any may be cut
    "conv": gx.GaLoreDimensionNumbers((0, 1), 2), "stack": gx.GaLoreDimensionNumbers(2, (1, 0)),
}  # fmt: skip
INNER = {
    "shampoo": gx.shampoo(0.1, max_matrix_size=16),
    "averaging shampoo": gx.shampoo(
        gx.linear_schedule(0.1, 0.05, 4), 24, 0.9, 0.5, 0.9, svd_interval=2,
        precond_update_interval=2, epsilon=1e-2,
    ),
    "iterative shampoo": gx.chain(
        gx.clip_by_global_norm(1.0), gx.shampoo(0.1, epsilon=1e-2, use_iterative_root=True)
    ),
    "ggt": gx.ggt(0.1, window=2, svd_eps=1e-2, sigma_eps=0.1),
    "galore": gx.galore(0.1, 4, 2, weight_decay=0.1),
    "galore of shorter sides": gx.galore(0.1, 4, 2, weight_decay=0.1, shorter_side=True),
    "clipping galore": gx.galore(
        0.1, 8, 3, base_optimizer=gx.chain(gx.clip_by_global_norm(1.0), gx.scale_by_adam())
    ),
    "galore of stacks": gx.galore(
        0.1, 4, 2, weight_dimension_numbers=gx.GaLoreDimensionNumbers(-2, -1)
    ),
    "apollo": gx.apollo(0.1, 4, 2, growth=1.2),
    "apollo of stacks": gx.apollo(
        0.1, 3, weight_dimension_numbers=gx.GaLoreDimensionNumbers(-2, -1), granularity="tensor"
    ),
    "apollo of low rank": gx.chain(
        gx.scale_by_apollo(4, weight_dimension_numbers=SIDES, low_rank=True), gx.sgd(0.1)
    ),
    "factor_state": gx.factor_state(gx.adam(0.1), min_dim_size_to_factor=4),
    "factored in 8 bits": gx.factor_state(
        gx.quantize_state(gx.chain(gx.clip_by_global_norm(1.0), gx.adam(0.1)), 8, which="mu"),
        min_dim_size_to_factor=4,
    ),
}  # fmt: skip

SOME = ("averaging shampoo", "ggt", "factor_state", "galore")


def close(ours, theirs, tolerance=1e-4):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        scale = np.max(np.abs(b), initial=1e-6)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def steep():
    """The parameters, and gradients of which one array's are so large that they are scaled down."""
    grads = local_grads(shapes=SHAPES, steps=3)
    grads["conv"] *= 1e17  # by the largest entry on any device
    return start(shapes=SHAPES), grads


@functools.cache
def undivided(name):
    return whole(INNER[name], *steep())


@pytest.mark.parametrize("name, kind, check_vma", on_meshes(INNER))
def test_zero1_has_the_numbers_and_the_state_of_the_undivided(name, kind, check_vma):
    tx = gd.zero1(INNER[name], MESHES[kind][1])
    ours, state = divided(tx, kind, *steep(), check_vma)
    theirs, inner = undivided(name)
    close(ours, theirs)
    close(state.inner, inner)


def test_rows_of_projections_stay_whole_for_what_looks_at_rows():
    shapes = {"w": (16, 24), "tall": (24, 16), "layers": (8, 4, 16), "inner": (16, 8, 4)}
    numbers = {k: gx.GaLoreDimensionNumbers() for k in ("w", "tall")}
    numbers |= {"layers": gx.GaLoreDimensionNumbers(1, 2), "inner": gx.GaLoreDimensionNumbers(0, 2)}
    params, grads = start(shapes=shapes), local_grads(shapes=shapes, steps=3)
    galore = gx.galore(0.1, 8, 3, weight_dimension_numbers=numbers)
    inner = gx.quantize_state(galore, 8, 8, min_size=2, which=("mu", "nu"))
    ours, state = divided(gd.zero1(inner, "x"), "8", params, grads)
    theirs, whole_state = whole(inner, params, grads)
    close(ours, theirs)
    sizes = [[x.shape for x in jax.tree.leaves(tree)] for tree in (state.inner, whole_state)]
    assert sizes[0] == sizes[1]  # as many scales


@pytest.mark.parametrize("check_vma", [True, False])
def test_of_stacks_one_axis_divides_the_layers_and_another_the_matrices(check_vma):
    shapes = {"layers": (2, 8, 12), "experts": (4, 2, 12, 8), "inner": (12, 8, 3)}
    numbers = {k: gx.GaLoreDimensionNumbers(-2, -1) for k in shapes}
    numbers["inner"] = gx.GaLoreDimensionNumbers(0, 2)
    inner = gx.galore(0.1, 4, 2, weight_dimension_numbers=numbers)
    params, grads = start(shapes=shapes), local_grads(shapes=shapes, steps=3)
    tx = gd.zero1(inner, ("x", "y"))
    specs = tx.state_specs(params, mesh_of("2x4")).inner[0]
    wanted = {"layers": P("x", "y"), "experts": P("x", None, "y"), "inner": P("y", "x")}
    assert specs.projector == wanted
    ours, state = divided(tx, "2x4", params, grads, check_vma)
    theirs, whole_state = whole(inner, params, grads)
    close(ours, theirs)
    close(state.inner, whole_state)


@pytest.mark.parametrize("name", SOME)
def test_copies_of_narrow_parameters_move_under_a_guard(name):
    params, grads = start(jnp.bfloat16, SHAPES), local_grads(shapes=SHAPES, steps=3)
    grads["b"] = grads["b"].at[1, 5].set(jnp.nan)  # one device's: all skip the step
    inner = gx.apply_if_finite(INNER[name], 3)
    ours, state = divided(gd.zero1(inner, "x"), "8", params, grads)
    widened = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    theirs, skipped = whole(inner, widened, grads)
    assert int(state.inner.total_notfinite) == int(skipped.total_notfinite) == 1
    close(state.master, theirs)
    close(ours, jax.tree.map(lambda p: p.astype(jnp.bfloat16), theirs), 2**-8)


@pytest.mark.parametrize("name", SOME)
def test_parameters_without_gradients_stay_for_the_step(name):
    shapes = {k: SHAPES[k] for k in ("w", "same", "tall", "b", "odd")}
    params, mesh, inner = start(shapes=shapes), mesh_of("8"), INNER[name]
    tx = gd.zero1(inner, "x")
    specs = tx.state_specs(params, mesh)
    smap = functools.partial(jax.shard_map, mesh=mesh)
    state = jax.jit(smap(tx.init, in_specs=P(), out_specs=specs))(params)
    their_state = jax.jit(inner.init)(params)
    for holes in {"tall"}, {"w", "b", "odd"}:
        grads = {k: None if k in holes else jnp.cos(p) for k, p in params.items()}

        def one(grads, state, params):
            return tx.update(gd.local_view(grads, "x"), state, params)

        run = smap(one, in_specs=(P(), specs, P()), out_specs=(P(), specs))
        ours, state = jax.jit(run)(grads, state, params)
        theirs, their_state = jax.jit(inner.update)(grads, their_state, params)
        close(ours, theirs)
        close(state.inner, their_state)


@pytest.mark.parametrize("name", [name for name in INNER if name != "factored in 8 bits"])
def test_shard_matrices_has_the_numbers_of_one_device(name):
    shapes = {k: s for k, s in SHAPES.items() if k != "empty"}
    places = {"w": P("x"), "same": P(None, "x"), "tall": P("x"), "conv": P(None, "x"),
              "stack": P("x")}  # fmt: skip
    places = {k: places.get(k, P()) for k in shapes}
    params, grads = arrays(shapes), arrays(shapes, 1)
    mesh = mesh_of_matrices(4)
    sharded = gd.shard_matrices(INNER[name], "x", places, mesh)
    theirs = run(INNER[name], params, grads)
    # Placed as what comes back, so that one program does for all steps.
    cut = {k: NamedSharding(mesh, s) for k, s in places.items()}
    ours = run(sharded, *jax.device_put((params, grads), (cut, cut)))
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other)


EXCHANGES = {
    # For each shape that is cut, to the owners and back; a fifth has one array, which all gather.
    "shampoo": (gx.shampoo(0.1), {"all-to-all": 2 * 4}),
    # The largest entry, and the products of the averages.
    "ggt": (gx.ggt(0.1, window=4), {"all-reduce": 2}),
    # No sum is whole on every device; the all-to-alls are in the branch that renews.
    "galore": (gx.galore(0.1, 16), {"all-reduce": 0, "all-to-all": 2 * 3}),
    # Of all matrices together: projections, scales of channels, and twice their norms.
    "apollo": (gx.apollo(0.1, 16), {"all-reduce": 4, "all-to-all": 0}),
    # The mean of the means, and the means.
    "factor_state": (gx.factor_state(gx.adam(0.1), "nu", 2), {"all-reduce": 2}),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_device_holds_its_share_and_arrays_share_exchanges(name):
    inner, wanted = EXCHANGES[name]
    params = transformer()
    compiled, held = program(gd.zero1(inner, "x"), params)
    total = gd.hlo.copy_bytes(jax.eval_shape(inner.init, params))
    assert held <= 1.1 * total / 8
    kinds = [c.kind for c in hlo.collectives(compiled)]
    counted = {k: kinds.count(k) for k in wanted}
    assert counted == wanted


def test_projectors_are_gathered_among_devices_that_have_the_same_layers():
    """The axis x cuts the layers, and y nothing: no length of a side is a multiple of 4."""
    numbers = gx.GaLoreDimensionNumbers((1, 2), 3)
    tx = gd.zero1(gx.galore(0.1, 4, weight_dimension_numbers=numbers), ("x", "y"))
    params = {"w": jax.ShapeDtypeStruct((2, 6, 2, 5), jnp.float32)}
    compiled, _ = program(tx, params, "2x4")
    # The projectors and the steps of projections, along y, and the updates, along x.
    gathered = [c for c in hlo.collectives(compiled) if c.kind == "all-gather"]
    assert len(gathered) == 3

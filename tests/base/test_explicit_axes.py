"""Updates on meshes with explicit axes, beyond the promise `runs_on_explicit_meshes`."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]
SPECS = {"both": P("x", "y"), "rows": P(("x", "y"), None), "columns": P(None, "x")}


def mesh_of(kind=AxisType.Explicit):
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)


def matrix(seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(8, 4)), jnp.float32)


def run(tx, params, grads, update):
    state = tx.init(params)
    for g in grads:
        updates, state = update(g, state, params)
        params = gx.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("known", [True, False], ids=["set_mesh", "by the arrays"])
@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("spec", SPECS)
def test_muon_divides_matrices_along_any_sides(spec, compiled, known):
    tx, mesh = gx.muon(0.1), mesh_of()
    params, *grads = ({"w": matrix(seed)} for seed in range(3))
    update = jax.jit(tx.update) if compiled else tx.update
    expected = run(tx, params, grads, update)
    place = NamedSharding(mesh, SPECS[spec])
    with jax.set_mesh(mesh) if known else contextlib.nullcontext():
        got = run(tx, *jax.device_put((params, grads), place), update)
    np.testing.assert_allclose(got["w"], expected["w"], rtol=1e-4, atol=1e-5)
    assert got["w"].sharding == place


@pytest.mark.parametrize("make", [gx.adam, gx.muon, gx.soap])
def test_a_state_is_a_carry_of_scan(make):
    tx, mesh = make(0.1), mesh_of()
    params = {"w": jax.device_put(matrix(0), NamedSharding(mesh, P("x", "y")))}

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(params, state, params)
        return (gx.apply_updates(params, updates), state), None

    scan = jax.jit(lambda *carry: jax.lax.scan(step, carry, length=2)[0])
    new, state = scan(*scan(params, tx.init(params)))
    assert new["w"].sharding == params["w"].sharding
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_a_loss_of_the_user_sees_explicit_axes(compiled):
    tx, mesh = gx.chain(gx.scale(-0.1), gx.scale_by_zoom_linesearch(5)), mesh_of()
    batch = matrix(1)

    def step(params, batch):
        def loss(params):
            assert jax.typeof(params["w"]).sharding.spec == jax.typeof(batch).sharding.spec
            return jnp.sum((params["w"] - batch) ** 2)

        value, grad = jax.value_and_grad(loss)(params)
        extra = {"value": value, "grad": grad, "value_fn": loss}
        return tx.update(grad, tx.init(params), params, **extra)[0]

    run = jax.jit(step) if compiled else step
    expected = run({"w": matrix(0)}, batch)
    with jax.set_mesh(mesh):
        place = NamedSharding(mesh, P("x", "y"))
        got = run(*jax.device_put(({"w": matrix(0)}, batch), place))
    np.testing.assert_allclose(got["w"], expected["w"], rtol=1e-4, atol=1e-5)
    assert got["w"].sharding == place


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("row", range(8))
def test_a_guard_finds_a_nan_in_one_shard(row, kind):
    mesh, tx = mesh_of(kind), gx.apply_if_finite(gx.sgd(0.1), 3)
    place = NamedSharding(mesh, P("x", "y"))
    params = {"w": jax.device_put(matrix(0), place)}
    grads = {"w": jax.device_put(matrix(1).at[row, 0].set(jnp.nan), place)}
    updates, state = jax.jit(tx.update)(grads, tx.init(params), params)
    assert int(state.total_notfinite) == 1
    np.testing.assert_array_equal(updates["w"], np.zeros((8, 4)))


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_projectors_of_stacked_layers_lie_as_the_layers(compiled):
    tx, mesh = (
        gx.galore(0.1, 2, weight_dimension_numbers=gx.GaLoreDimensionNumbers(1, 2)),
        mesh_of(),
    )
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(8, 6, 4)), jnp.float32)}
    init, update = (jax.jit(tx.init), jax.jit(tx.update)) if compiled else (tx.init, tx.update)
    expected, _ = update(params, tx.init(params), params)
    with jax.set_mesh(mesh):
        params = jax.device_put(params, NamedSharding(mesh, P("x", None, "y")))
        state = init(params)
        got, after = update(params, state, params)
    np.testing.assert_allclose(got["w"], expected["w"], rtol=1e-4, atol=1e-5)
    for slots in state[0], after[0]:
        assert slots.projector["w"].sharding.spec == P("x", None, None)
        assert slots.base_optimizer_state.mu["w"].sharding.spec == P("x", None, None)

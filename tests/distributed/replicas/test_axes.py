"""Replicas along several axes of a mesh are those along one axis of as many devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import gradxform as gx
import gradxform.distributed as gd

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N, STEPS = 8, 4
BOTH = "dcn", "ici"
SGD = gx.sgd(0.1, 0.9)
METHODS = {
    "tower": lambda axis: gd.tower(SGD, axis),
    "sync_replicas": lambda axis: gd.sync_replicas(
        SGD, axis, replicas_to_aggregate=3, count="first_r", max_staleness=1
    ),
    "sync_replicas in 8 bits": lambda axis: gd.sync_replicas(
        SGD, axis, replicas_to_aggregate=3, count="first_r", compress=gd.int8(64)
    ),
    "model_average": lambda axis: gd.model_average(SGD, axis, period=2),
    "elastic_average": lambda axis: gd.elastic_average(SGD, axis, period=2, rho=0.1),
    "elastic_average in turns": lambda axis: gd.elastic_average(
        SGD, axis, period=2, rho=0.1, order="sequential"
    ),
    "agn": lambda axis: gd.agn(SGD, axis, period=2),
    "agn in turns": lambda axis: gd.agn(SGD, axis, period=2, order="sequential"),
    "diloco": lambda axis: gd.diloco(SGD, axis, period=2, compress=gd.int8(64)),
}


def pod(check_vma=True):
    mesh = jax.make_mesh((2, 4), BOTH, axis_types=(AxisType.Auto,) * 2)
    return gd.Replicas(BOTH, mesh=mesh, check_vma=check_vma)


def trained(r, tx, name, rows=False):
    """The parameters and the state after some steps; each replica has numbers of its own."""
    params = r.replicate({"w": jnp.ones((16, 64))})
    state = r.wrap(tx.init)(params)

    def step(params, state, g, flags):
        if rows:
            g = gx.RowSparse(flags.pop("row")[None], g[:1], 16)
        return tx.step({"w": g}, state, params, **flags)

    step, rng = r.wrap(step), np.random.default_rng(0)
    for t in range(STEPS):
        flags = {}
        if "sync_replicas" in name:
            flags = {
                "arrival": rng.permutation(N).astype(np.float32),
                "contribute": rng.random(N) < 0.8,
                "grad_step": np.full(N, max(t - 1, 0), np.int32),
            }
        if rows:
            flags["row"] = rng.integers(0, 16, N).astype(np.int32)
        g = rng.normal(size=(N, 16, 64)).astype(np.float32)
        params, state = step(params, state, r.place(g), r.place(flags))
    return r.gather((params, state))


def assert_same(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    for x, y in pairs:
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_several_axes_count_as_one(name):
    ours = trained(pod(), METHODS[name](BOTH), name)
    assert_same(ours, trained(gd.Replicas("replica", n=N), METHODS[name]("replica"), name))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["tower", "sync_replicas"])
def test_rows_of_all_axes_are_put_together(name, check_vma):
    ours = trained(pod(check_vma), METHODS[name](BOTH), name, rows=True)
    theirs = trained(gd.Replicas("replica", n=N), METHODS[name]("replica"), name, rows=True)
    assert_same(ours, theirs)

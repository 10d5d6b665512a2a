"""Whole matrices shared among devices: the numbers of one device, the program, wrong calls."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform import engine
from gradxform.distributed import hlo
from gradxform.transforms.matrix_rule import MatrixRule
from gradxform.types import Array, MatrixSlot

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
        g = jax.tree.map(lambda x, k=k: jnp.roll(x, k, -1) * (k + 1), grads)
        updates, state = step(g, state, params)
        params = gx.apply_updates(params, updates)
    return params, state


def assert_close(ours, theirs, tolerance=1e-5):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


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

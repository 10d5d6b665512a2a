"""Wrong meshes, specs and gradients for matrices on a mesh, each refused with the remedy."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.sparse import RowSparse
from tests.distributed.zero.test_refused import FAR

pytestmark = pytest.mark.usefixtures("eight_devices")

PARAMS = {"w": jnp.ones((8, 16)), "b": jnp.ones((8,))}


def mesh():
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def shard(specs, axis="x", inner=None):
    return gd.shard_matrices(gx.muon(0.1) if inner is None else inner, axis, specs, mesh())


def init(specs, **more):
    return lambda: shard(specs, **more).init(PARAMS)


ROWS = {"w": RowSparse(jnp.zeros(1, jnp.int32), jnp.ones((1, 16)), 8), "b": jnp.ones(8)}
REFUSED = {
    "no such axis": (lambda: shard(P("x"), "z"), ValueError, ("lacks the axis 'z', only x, y",)),
    "two names": (lambda: shard(P("x"), ("x", "y")), TypeError, ("axis must be a string",)),
    "two axes": (
        lambda: shard({"w": P("x", "y"), "b": P()}),
        ValueError,
        ("['w'] is cut over two mesh axes", "Cut it over 'x' only"),
    ),
    "one dimension over two axes": (
        lambda: shard({"w": P(("x", "y")), "b": P()}),
        ValueError,
        ("['w'] is cut over two mesh axes",),
    ),
    "another axis": (
        lambda: shard({"w": P("y"), "b": P()}),
        ValueError,
        ("['w'] is cut over the mesh axis 'y'", "not over 'x'", "Give the axis"),
    ),
    "nothing is cut": (
        init(P()),
        ValueError,
        ("is not cut over the mesh axis 'x'", "Give specs that name it"),
    ),
    "uneven": (
        lambda: shard({"w": P("x")}).init({"w": jnp.ones((6, 8))}),
        ValueError,
        ("['w'] of shape (6, 8) cannot be cut", "4 equal pieces", "replicate it"),
    ),
    "no such dimension": (
        init({"w": P("x"), "b": P(None, "x")}),
        ValueError,
        ("['b'] cuts dimension 1",),
    ),
    "missing": (init({"w": P("x")}), ValueError, ("no entry for the parameter ['b']",)),
    "not a spec": (lambda: shard({"w": "x"}), TypeError, ("['w']", "PartitionSpec", "'x'")),
    "rows": (
        init({"w": 1, "b": None}, inner=gx.chain(gx.scale_by_rowwise_rss(), gx.sgd(0.1))),
        ValueError,
        ("['w'] is cut along dimension 1", "looks at rows", "first dimension"),
    ),
    "whole arrays": (
        lambda: shard(P("x"), inner=FAR),
        ValueError,
        ("divide_by_sum looks at whole arrays", "partition(...)"),
    ),
    "row-sparse": (
        lambda: shard({"w": 0, "b": None}).update(ROWS, None, PARAMS),
        TypeError,
        ("['w']", "divides arrays over devices"),
    ),
    "not bound": (
        lambda: gd.shard_matrices(gx.muon(0.1), "x", 0).init(PARAMS),
        NameError,
        ("'x' is not bound", "shard_map"),
    ),
    "a vector": (
        init(0, inner=gx.scale_by_muon()),
        ValueError,
        ("['b'] of shape (8,) is not a matrix", "partition(...)"),
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_shared_is_refused(name):
    function, kind, words = REFUSED[name]
    with pytest.raises(kind) as error:
        function()
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_parameters_stay_finite(size):
    tx = gd.shard_matrices(gx.muon(0.1), "x", 0, mesh())
    grads = jax.tree.map(lambda x: size * x, PARAMS)
    updates, _ = jax.jit(tx.update)(grads, tx.init(PARAMS), PARAMS)
    assert all(bool(jnp.isfinite(u).all()) for u in jax.tree.leaves(updates))

"""Runs with states and parameters of fewer bits: they resume, and replicas stay equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from tests.distributed.modes import replicas, step_of
from tests.leaves.test_storage import normal

pytestmark = pytest.mark.numeric

STATES = {
    "8 bits": lambda tx: gx.quantize_state(tx, min_size=64),
    "8 bits, dynamic": lambda tx: gx.quantize_state(tx, code="dynamic", min_size=64),
    "8 bits, e4m3": lambda tx: gx.quantize_state(tx, code="e4m3", min_size=64),
    "8 bits, e5m2": lambda tx: gx.quantize_state(tx, code="e5m2", min_size=64),
    "4 bits": lambda tx: gx.quantize_state(tx, 4, 32, min_size=64),
    "4 bits, dynamic": lambda tx: gx.quantize_state(tx, 4, 32, "dynamic", min_size=64),
    "4 bits, rank1": lambda tx: gx.quantize_state(tx, 4, 32, "rank1", min_size=64),
    "bfloat16": gx.state_dtype,
    "by chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=1),
    "means": lambda tx: gx.factor_state(tx, min_dim_size_to_factor=16),
    "host": lambda tx: gx.offload_state(tx, min_size=64),
}
NARROW = {
    "masters": gx.master_weights,
    "remainders": lambda tx: gx.master_weights(tx, remainders=True),
    "remainders of 8 bits": lambda tx: gx.master_weights(tx, remainders=8),
    "rounded by chance": lambda tx: gx.stochastic_rounding(tx, key=2),
    "kahan": gx.kahan,
    "remainders, 8 bits": lambda tx: gx.master_weights(STATES["8 bits"](tx), remainders=True),
}
RUNS = {name: (wrap, jnp.float32) for name, wrap in STATES.items()}
RUNS |= {name: (wrap, jnp.bfloat16) for name, wrap in NARROW.items()}


def start(name):
    wrap, dtype = RUNS[name]
    return wrap(gx.adamw(1e-2)), {"w": normal((64, 96), 0, dtype), "b": normal((40,), 1, dtype)}


def numbers(tree):
    return [np.asarray(x).astype(np.float64) for x in jax.tree.leaves(tree)]


def run(tx, params, state, steps):
    step = jax.jit(step_of(tx, "update"))
    for i in steps:
        grads = jax.tree.map(lambda p, i=i: normal(p.shape, 10 + i, p.dtype), params)
        params, state = step(params, state, grads)
    return params, state


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes_bitwise(name, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx, params = start(name)
    want = run(tx, params, tx.init(params), range(6))
    half = run(tx, params, tx.init(params), range(3))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run", half)
        checkpointer.wait_until_finished()
        fresh = params, tx.init(params)
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), fresh
        )
        restored = checkpointer.restore(tmp_path / "run", like)
    assert jax.tree.structure(restored) == jax.tree.structure(half)
    got = run(tx, *restored, range(3, 6))
    for a, b in zip(numbers(got), numbers(want), strict=True):
        np.testing.assert_array_equal(a, b)
    moved = [np.any(a != b) for a, b in zip(numbers(got[0]), numbers(half[0]), strict=True)]
    assert all(moved)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("n", [2, 4])
def test_replicas_stay_equal(name, n):
    tx, params = start(name)
    tx, r = gd.tower(tx, "replica"), replicas("shard_map", n)
    everywhere = r.replicate(params)
    state, step = r.wrap(tx.init)(everywhere), r.wrap(step_of(tx, "update"))
    for i in range(3):
        grads = jax.tree.map(lambda p, i=i: normal((n, *p.shape), 20 + i, p.dtype), params)
        everywhere, state = step(everywhere, state, r.place(grads))
    for x in numbers((everywhere, state)):
        assert x.shape[:1] == (n,)
        for other in x[1:]:
            np.testing.assert_array_equal(other, x[0])
    assert any(np.any(x[0] != p) for x, p in zip(numbers(everywhere), numbers(params), strict=True))

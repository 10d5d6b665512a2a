"""Row-sparse gradients of tables on eight devices: the same numbers, and only rows travel."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
from gradxform.sparse import RowSparse

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N, D, IDS = 1024, 8, 64
TX = gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(1e-2))
PLACES = {"replicated": P(), "divided by rows": P("x", None)}
COLLECTIVE = re.compile(
    r"= (.*?) (?:all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def step(params, state, ids):
    table = params["table"]
    _, back = jax.vjp(lambda rows: jnp.sum(rows**2), table[ids])
    grads = {"table": RowSparse(ids, back(jnp.ones(()))[0], N)}
    updates, state = TX.update(grads, state, params)
    return gx.apply_updates(params, updates), state


def start():
    table = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
    params = {"table": jnp.asarray(table)}
    ids = np.random.default_rng(1).integers(0, N, IDS)
    ids[:8] = ids[8:16]  # looked up twice, on two devices
    return params, TX.init(params), jnp.asarray(ids, jnp.int32)


def travelling_bytes(program: str) -> int:
    """The size of what the collectives of a compiled program return."""
    total = 0
    for kinds in COLLECTIVE.findall(program):
        for size, shape in re.findall(r"[a-z]+(\d+)\[([\d,]*)\]", kinds):
            total += int(size) // 8 * int(np.prod([int(k) for k in shape.split(",") if k] or [1]))
    return total


@pytest.mark.parametrize("place", list(PLACES))
def test_only_touched_rows_travel_and_the_numbers_are_those_of_one_device(place):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    params, state, ids = start()
    alone = (params, state)
    for _ in range(2):
        alone = jax.jit(step)(*alone, ids)

    def put(x):
        return jax.device_put(x, NamedSharding(mesh, PLACES[place] if x.ndim == 2 else P()))

    spread = jax.tree.map(put, (params, state))
    divided = jax.device_put(ids, NamedSharding(mesh, P("x")))
    compiled = jax.jit(step).lower(*spread, divided).compile()
    for _ in range(2):
        spread = compiled(*spread, divided)
    for ours, theirs in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        if ours.ndim == 2:
            assert ours.sharding.is_equivalent_to(NamedSharding(mesh, PLACES[place]), 2)
    # Rows of the gradient, of two slots and of the parameter, and the ids: not the table.
    rows = IDS * D * 4
    assert 0 < travelling_bytes(compiled.as_text()) < 8 * rows < N * D * 4


@pytest.mark.parametrize("place", ["replicated", "divided by rows", "divided by columns"])
@pytest.mark.parametrize("compiled", [True, False])
def test_an_explicit_mesh_knows_where_rows_lie(place, compiled):
    spec = {**PLACES, "divided by columns": P(None, "x")}[place]
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    params, state, ids = start()
    rows = jax.random.normal(jax.random.key(2), (IDS, D))

    def update(params, state, ids, rows):
        updates, state = TX.update({"table": RowSparse(ids, rows, N)}, state, params)
        return gx.apply_updates(params, updates), state

    alone = update(params, state, ids, rows)
    with jax.set_mesh(mesh):

        def put(x):
            return jax.device_put(x, NamedSharding(mesh, spec if x.shape == (N, D) else P()))

        run = jax.jit(update) if compiled else update
        spread = run(*jax.tree.map(put, (params, state)), put(ids), put(rows))
    for ours, theirs in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert spread[0]["table"].sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)

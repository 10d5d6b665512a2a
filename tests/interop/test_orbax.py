"""Orbax saves and restores our states, and training continues bit for bit."""

import jax
import jax.numpy as jnp
import pytest

import gradxform as gx
from tests.trees import assert_identical

# Orbax and what it imports warn of their own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore")

PARAMS = {
    "dense": {"kernel": jnp.asarray([[1.0, -2.0], [0.5, 3.0]]), "bias": jnp.asarray([0.1, -0.2])},
    "out": {"kernel": jnp.ones((2, 3), jnp.bfloat16)},
}
KERNELS = gx.path_matches("kernel$")


def optimizer():
    return gx.chain(
        gx.clip_by_global_norm(0.5),
        gx.masked(gx.trace(0.9), KERNELS),
        gx.MultiSteps(
            gx.inject_hyperparams(gx.adamw)(
                lambda n: 0.1 / (1.0 + n.astype("float32")), mask=KERNELS
            ),
            2,
        ),
        gx.partition(
            {"a": gx.named_chain(("avg", gx.ema(0.5))), "b": gx.identity()},
            gx.label_by(("a", gx.path_matches("^dense")), ("b", True)),
        ),
    )


def step_of(tx):
    @jax.jit
    def step(params, state, n):
        grads = jax.tree.map(lambda p: (p.astype(jnp.float32) * (1.0 + n)).astype(p.dtype), params)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    return step


def run(step, params, state, first, last):
    for n in range(first, last):
        params, state = step(params, state, jnp.asarray(n, jnp.float32))
    return params, state


@pytest.mark.end_to_end
@pytest.mark.parametrize("abstract", [True, False], ids=["abstract target", "state as target"])
def test_orbax_restores_with_a_target(tmp_path, abstract):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx = optimizer()
    step = step_of(tx)
    params, state = run(step, PARAMS, tx.init(PARAMS), 0, 3)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "at3", {"params": params, "state": state})
        checkpointer.wait_until_finished()
        # A new process makes the optimizer anew.
        rebuilt = optimizer()
        target = {"params": PARAMS, "state": rebuilt.init(PARAMS)}
        if abstract:
            target = jax.eval_shape(lambda: {"params": PARAMS, "state": rebuilt.init(PARAMS)})
        found = checkpointer.restore(tmp_path / "at3", target)
    assert_identical(found, {"params": params, "state": state})
    assert_identical(
        run(step_of(rebuilt), found["params"], found["state"], 3, 6),
        run(step, params, state, 3, 6),
    )


def test_orbax_restores_onto_the_shards(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.NamedSharding(mesh, jax.P("x"))
    params = {"w": jax.device_put(jnp.arange(16.0), split)}
    tx = gx.adam(0.1)
    _, state = jax.jit(tx.update)(params, tx.init(params), params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        found = checkpointer.restore(tmp_path / "state", tx.init(params))
    assert_identical(found, state)
    assert found[0].mu["w"].sharding.is_equivalent_to(split, 1)

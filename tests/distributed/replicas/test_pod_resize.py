"""Slices lost and gained: a run of ZeRO in DiLoCo goes on from a checkpoint in shards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import gradxform as gx
import gradxform.distributed as gd
from gradxform.distributed.replicas import resize

# Orbax and what it imports warn of their own deprecations.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore"),
]

BEFORE, AFTER = 8, 12


def pod(slices, devices):
    used = np.array(jax.devices()[: slices * devices]).reshape(slices, devices)
    mesh = jax.sharding.Mesh(used, ("dcn", "ici"), axis_types=(AxisType.Auto,) * 2)
    return gd.Replicas(("dcn",), inner_axes=("ici",), mesh=mesh, manual=True, check_vma=False)


def make():
    rng = np.random.default_rng(0)
    return {
        "w": jnp.asarray(rng.normal(size=(16, 8)) / 4, jnp.bfloat16),
        "b": jnp.zeros((8, 16), jnp.bfloat16),
    }


def method(**how):
    inner = gx.apply_if_finite(gd.zero1(gx.adamw(0.03), "ici"), 5)
    return gd.diloco(
        inner, "dcn", period=4, outer_momentum=0.3, inner_axes=("ici",), shard_anchor=True, **how
    )


HOW = {
    "16 bits": {},
    "8 bits": {"compress": gd.int8(16)},
    "8 bits of fragments": {"compress": gd.int8(16), "fragments": 2},
    "fragments that wait": {"compress": gd.int8(16), "fragments": 2, "delay": 1, "blend": 0.5},
}


def train(replicas, tx, params, state, steps):
    """Return parameters and state after the steps, and the last loss."""

    def train_step(params, state, x):
        def loss_fn(params):
            return jnp.mean((jnp.tanh(x @ params["w"]) @ params["b"] - x) ** 2, dtype="float32")

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return tx.step(grads, state, params), loss

    step, loss = replicas.wrap(train_step, has_aux=True), jnp.inf
    for t in steps:
        x = np.random.default_rng(t).normal(size=(48, 16)) @ MIXING
        (params, state), loss = step(params, state, replicas.split(x.astype(jnp.bfloat16)))
    return params, state, float(loss)


MIXING = np.random.default_rng(9).normal(size=(16, 16)) / 8


def shards_of(tree):
    return [(x.sharding, x.addressable_shards[0].data.shape) for x in jax.tree.leaves(tree)]


def on_one_host(tree):
    return jax.tree.map(np.asarray, tree)


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """For each method, what a run on two slices has in the end, its loss, and its checkpoint."""
    ocp = pytest.importorskip("orbax.checkpoint")

    @functools.cache
    def trained(name):
        tx, replicas = method(**HOW[name]), pod(2, 4)
        params, state = replicas.init(make, tx=tx)
        params, state, loss = train(replicas, tx, params, state, range(BEFORE))
        saved = {"params": params, "state": state}
        path = tmp_path_factory.mktemp("run") / "last"
        with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(path, args=ocp.args.StandardSave(saved))
            checkpointer.wait_until_finished()
        return saved, loss, path

    return trained


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("new", [(1, 4), (2, 2), (4, 2), (3, 2)], ids=str)
def test_a_run_goes_on_with_other_slices(last, monkeypatch, name, new):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx, other = method(**HOW[name]), pod(*new)
    saved, before, path = last(name)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        fresh = dict(zip(("params", "state"), other.init(make, tx=tx), strict=True))
        lengths = {"dcn": 2, "ici": 4}
        target = other.abstract(make, tx=tx, saved=lengths)
        target = dict(zip(("params", "state"), target, strict=True))
        restored = checkpointer.restore(path, args=ocp.args.StandardRestore(target))
    with monkeypatch.context() as patch:  # CPUs have no guard of what goes to the host
        patch.setattr(resize, "_resized_rows", lambda *_: pytest.fail("a whole array on the host"))
        carry = gd.resize_replicas(restored, new[0], fresh=fresh)
    assert [x.sharding for x in jax.tree.leaves(restored)] == [
        x.sharding for x in jax.tree.leaves(target)
    ]
    assert shards_of(carry) == shards_of(fresh)
    wanted = gd.resize_replicas(on_one_host(saved), new[0], fresh=on_one_host(fresh))
    jax.tree.map(np.testing.assert_array_equal, on_one_host(carry), wanted)
    params, _, after = train(
        other, tx, carry["params"], carry["state"], range(BEFORE, BEFORE + AFTER)
    )
    assert after < before
    if tx.fragments == 1:  # the last step was an exchange of everything
        for x in jax.tree.leaves(params):
            assert all(np.array_equal(row, x[0]) for row in np.asarray(x))


def test_masters_follow_parameters_that_are_averaged():
    tx, replicas = method(), pod(2, 4)
    params, state = replicas.init(make, tx=tx)
    params, state, _ = train(replicas, tx, params, state, range(6))  # apart
    fewer = gd.resize_replicas(on_one_host({"params": params, "state": state}), 1)
    master = fewer["state"].inner.inner_state.master["w"][0]
    np.testing.assert_allclose(
        master, fewer["params"]["w"][0].astype(np.float32), rtol=2**-7, atol=1e-4
    )

"""Runs that change their optimizer: from checkpoints, on several devices, and on digits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.core import FrozenDict
from sklearn.datasets import load_digits

import gradxform as gx
import gradxform.distributed as gd
from tests.trees import assert_close, assert_identical

pytestmark = pytest.mark.numeric

PARAMS = {"dense": {"kernel": jnp.ones((8, 2)), "bias": jnp.zeros(2)}, "head": jnp.ones((8, 4))}
FALLING = gx.linear_schedule(0.5, 0.1, 40)
CLIP = gx.clip_by_global_norm(1.0)


def some_state(tx, params):
    """A state that is not the first."""
    grads = jax.tree.map(lambda p: jnp.sin(3 * p + 1), params)
    _, state = tx.update(grads, tx.init(params), params)
    return state


# ------------------------------------------------------------------------------------- checkpoints


def saved(path, state):
    """What Orbax restores of a state without a target: nested dicts and lists."""
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path)


@pytest.mark.filterwarnings("ignore")  # Orbax and what it imports warn of their own deprecations
def test_a_checkpoint_without_a_target_is_taken(tmp_path):
    tx = gx.chain(
        CLIP,
        gx.MultiSteps(gx.inject_hyperparams(gx.adamw)(FALLING, mask=gx.path_matches("kernel$")), 2),
        gx.partition({"a": gx.sgd(0.1, 0.9), "b": gx.identity()}, {"dense": "a", "head": "b"}),
        gx.named_chain(("average", gx.ema(0.5))),
    )
    new_tx = gx.chain(*tx.transforms, gx.scale_by_schedule(FALLING))
    state = some_state(tx, PARAMS)
    plain = saved(tmp_path / "state", state)
    got = gx.migrate_state(plain, tx, new_tx, PARAMS)
    want = gx.migrate_state(state, tx, new_tx, PARAMS)
    assert got[1] == want[1] and not got[1].begun
    assert_identical(got[0], want[0])


# -------------------------------------------------------------------------- other trees and numbers


TX, NEW_TX = gx.adamw(0.1), gx.chain(CLIP, gx.lookahead(gx.nadam(FALLING), 3, 0.5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "complex64"])
def test_parameters_of_any_dtype(dtype):
    params = jax.tree.map(lambda p: p.astype(dtype), PARAMS)
    state = TX.init(params)
    new, report = gx.migrate_state(state, TX, NEW_TX, params)
    assert jax.tree.map(jnp.result_type, new) == jax.tree.map(jnp.result_type, NEW_TX.init(params))
    assert_identical(new[1].fast_state[0], state[0])
    assert not any(slot.cast_from for slot in report.slots)


TREES = {
    "frozen": FrozenDict(PARAMS),
    "holes": PARAMS | {"none": None, "masked": gx.MaskedNode()},
    "one array": jnp.ones((3, 2)),
    "nothing": {},
    "a pair": (jnp.ones(2), [jnp.ones(3)]),
    "named": gx.LookaheadParams(jnp.ones(2), {"mu": jnp.ones(3), "count": jnp.ones(())}),
    "nnx": nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param),
}


@pytest.mark.parametrize("name", TREES)
def test_parameters_in_any_tree(name):
    params = TREES[name]
    tx = gx.chain(gx.trace(0.5), gx.scale_by_adam())
    new_tx = gx.chain(gx.trace(0.5), CLIP, gx.scale_by_nadam(), gx.scale_by_schedule(FALLING))
    state = some_state(tx, params)
    new, report = gx.migrate_state(state, tx, new_tx, params)
    assert jax.tree.structure(new) == jax.tree.structure(new_tx.init(params))
    assert_identical((new[0], *new[2][:3]), (state[0], *state[1]))
    assert not report.begun and not report.dropped
    back, report = gx.migrate_state(new, new_tx, tx, params)
    assert_identical(back, state)


# ------------------------------------------------------------------------ compiled, several devices


def test_it_runs_under_jit_and_takes_donated_states():
    want, said = gx.migrate_state(some_state(TX, PARAMS), TX, NEW_TX, PARAMS)
    migrate = jax.jit(
        lambda state, params: gx.migrate_state(state, TX, NEW_TX, params), donate_argnums=0
    )
    got, report = migrate(some_state(TX, PARAMS), PARAMS)
    assert report == said
    assert_close(got, want)
    step = jax.jit(NEW_TX.update, donate_argnums=1)
    assert_close(step(PARAMS, got, PARAMS), step(PARAMS, want, PARAMS))


def test_sharded_states_stay_where_they_are(eight_devices):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, copies = jax.NamedSharding(mesh, jax.P("x")), jax.NamedSharding(mesh, jax.P())
    params = jax.device_put(PARAMS, {"dense": {"kernel": rows, "bias": copies}, "head": rows})
    state = jax.jit(TX.init, out_shardings=gd.state_sharding(TX, params))(params)
    new_tx = gx.lookahead(gx.amsgrad(0.1, mu_dtype="bfloat16"), 3, 0.5)
    new, _ = gx.migrate_state(state, TX, new_tx, params)
    for tree in (new.slow, *new.fast_state[0][1:]):
        for x, p in zip(jax.tree.leaves(tree), jax.tree.leaves(params), strict=True):
            assert x.sharding.is_equivalent_to(p.sharding, x.ndim)
    assert new.fast_state[0].mu["head"].dtype == jnp.bfloat16
    jax.jit(new_tx.update)(params, new, params)


DISTRIBUTED = {
    "model_average": lambda tx: gd.model_average(tx, "replica", period=2, keep_center=True),
    "elastic_average": lambda tx: gd.elastic_average(tx, "replica", period=2, rho=0.1),
    "outer": lambda tx: gd.outer(tx, gx.sgd(0.7, 0.9, True), "replica", period=2),
    "sync_replicas": lambda tx: gd.sync_replicas(tx, "replica"),
    "tower": lambda tx: gd.tower(tx, "replica"),
    "zero1": lambda tx: gd.zero1(tx, "replica"),
}


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_a_run_on_replicas_gets_another_optimizer(name):
    replicas = gd.Replicas(n=2, mode="vmap")
    old, new = DISTRIBUTED[name](TX), DISTRIBUTED[name](gx.chain(CLIP, gx.nadamw(FALLING)))
    params = replicas.replicate(PARAMS)
    state = replicas.wrap(lambda params: some_state_of_each(old, params))(params)
    wrapped = replicas.wrap(lambda state, params: gx.migrate_state(state, old, new, params))
    got, report = wrapped(state, params)
    assert_identical(got.inner[1][0], state.inner[0])
    assert not report.begun and not report.dropped
    assert [slot.slot for slot in report.continued] == ["inner.1.2.count"]
    back = replicas.wrap(lambda state, params: gx.migrate_state(state, new, old, params)[0])
    assert_identical(back(got, params), state)
    if name != "zero1":  # its arrays are parts of the parameters'
        plain = replicas.wrap(lambda state, params: gx.migrate_state(state, old, TX, params)[0])
        assert_identical(plain(state, params), state.inner)
        around = replicas.wrap(lambda state, params: gx.migrate_state(state, TX, old, params)[0])
        assert_identical(around(state.inner, params).inner, state.inner)


def some_state_of_each(tx, params):
    state = tx.init(params)
    return jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state)


def test_a_state_that_is_divided_otherwise_is_refused():
    replicas = gd.Replicas(n=2, mode="vmap")
    tx = gd.zero1(TX, "replica")
    params = replicas.replicate(PARAMS)
    state = replicas.wrap(tx.init)(params)
    migrate = replicas.wrap(lambda state, params: gx.migrate_state(state, tx, TX, params)[0])
    with pytest.raises(ValueError, match=r"0.mu.dense.bias has shape \(2,\), but inner.0.mu"):
        migrate(state, params)
    # the states of all replicas, taken for one
    averaged = gd.model_average(TX, "replica", period=2)
    state = replicas.wrap(averaged.init)(params)
    with pytest.raises(ValueError, match="A state with an axis of replicas"):
        gx.migrate_state(state, averaged, TX, PARAMS)


# ------------------------------------------------------------------------------------------ digits


@functools.cache
def digits():
    """Pixels and labels."""
    pixels, labels = load_digits(return_X_y=True)
    return jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels, jnp.int32)


def loss_of(params, pixels, labels):
    hidden = jnp.tanh(pixels @ params["in"]["kernel"] + params["in"]["bias"][None])
    logits = hidden @ params["out"]["kernel"] + params["out"]["bias"][None]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


def trained(tx, params, state, first, steps):
    """Train with a batch of 128 each step; return what comes out, and the losses of all digits."""
    pixels, labels = digits()

    @jax.jit
    def step(params, state, indices):
        grads = jax.grad(loss_of)(params, pixels[indices], labels[indices])
        updates, state = tx.update(grads, state, params)
        params = gx.apply_updates(params, updates)
        return params, state, loss_of(params, pixels, labels)

    losses = []
    for n in range(first, first + steps):
        indices = np.random.default_rng(n).choice(len(labels), 128, replace=False)
        params, state, loss = step(params, state, indices)
        losses.append(float(loss))
    return params, state, np.array(losses)


def network():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "in": {"kernel": jax.random.normal(keys[0], (64, 64)) / 8, "bias": jnp.zeros(64)},
        "out": {"kernel": jax.random.normal(keys[1], (64, 10)) / 8, "bias": jnp.zeros(10)},
    }


@pytest.mark.filterwarnings("ignore")  # Orbax and what it imports warn of their own deprecations
def test_a_run_on_digits_changes_its_optimizer_twice_without_a_jump(tmp_path):
    rate, before = 1e-2, 60
    schedule = gx.warmup_cosine_decay_schedule(0.0, rate, 40, 2000)
    optimizers = [
        gx.adamw(rate, weight_decay=1e-2),
        gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(schedule, weight_decay=1e-2)),
        gx.chain(gx.clip_by_global_norm(1.0), gx.nadamw(schedule, weight_decay=1e-2)),
    ]
    params = network()
    params, state, losses = trained(optimizers[0], params, optimizers[0].init(params), 0, before)
    for i, (tx, new_tx) in enumerate(itertools.pairwise(optimizers)):
        start = before + 40 * i
        plain = saved(tmp_path / str(i), state)
        new, report = gx.migrate_state(plain, tx, new_tx, params)
        assert not report.begun and not report.dropped
        _, _, unchanged = trained(tx, params, state, start, 10)
        _, _, anew = trained(
            gx.adamw(rate, weight_decay=1e-2), params, gx.adamw(rate).init(params), start, 10
        )
        params, state, losses = trained(new_tx, params, new, start, 40)
        noise = np.std(np.diff(unchanged))
        assert np.max(losses[:10] - unchanged) < noise, "the migrated run jumps"
        assert np.max(anew - unchanged) > 5 * noise, "this test would not see a jump"
        assert int(gx.tree.get_all_with_path(state, "count")[-1][1]) == start + 40
    assert np.mean(losses[-10:]) < 0.1

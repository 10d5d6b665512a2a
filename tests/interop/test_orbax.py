"""Orbax saves and restores our states, and training continues bit for bit."""

import functools
import pickle

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.testing.promise import settings
from tests.catalogue import CASES
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
def test_orbax_restores_sparse_arrays_of_jax_and_their_slots(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    sparse = pytest.importorskip("jax.experimental.sparse")
    params = {"w": sparse.BCOO.fromdense(jnp.eye(3)), "b": jnp.ones(3)}
    tx = gx.quantize_state(gx.adam(0.1), min_size=0)
    grads = {"w": params["w"] * 2.0, "b": jnp.ones(3)}
    state = tx.update(grads, tx.init(params), params)[1]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run", {"params": params, "state": state})
        checkpointer.wait_until_finished()
        target = jax.eval_shape(lambda: {"params": params, "state": tx.init(params)})
        found = checkpointer.restore(tmp_path / "run", target)
    assert isinstance(found["params"]["w"], sparse.BCOO)
    assert_identical(found, {"params": params, "state": state})
    assert_identical(
        tx.update(grads, found["state"], found["params"]), tx.update(grads, state, params)
    )


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


# -------------------------------------------------------------------------- arrays without entries


@pytest.mark.parametrize("name", CASES)
def test_no_state_has_arrays_without_entries(name):
    """Orbax refuses to save them."""
    case = CASES[name]
    with settings(case):
        params = case.params()
        state = jax.eval_shape(case.tx.init, params)
    if all(x.size for x in jax.tree.leaves(params)):
        assert all(x.size for x in jax.tree.leaves(state))


ODD = {
    "matrix": jnp.linspace(-1.0, 1.0, 480).reshape(24, 20),
    "vector": jnp.ones(5),
    "one": jnp.ones(1),
    "scalar": jnp.asarray(0.5),
    "half": jnp.ones((8, 4), jnp.bfloat16),
    "none": jnp.zeros((0, 3)),
}
ODD_SAVED = {k: x for k, x in ODD.items() if x.size}
COMPRESSIONS = {
    "int8": gd.int8(16),
    "float8": gd.float8(block=16),
    "sign": gd.sign(16),
    "top_k": gd.top_k(0.1, 16),
    "dct_top_k": gd.dct_top_k(0.1, 16, 0.9),
    "powersgd": gd.powersgd(2),
}
SENDERS = {
    "tower": lambda c: gd.tower(gx.sgd(0.1), "r", compress=c),
    "sync_replicas": lambda c: gd.sync_replicas(gx.sgd(0.1), "r", compress=c),
    "model_average": lambda c: gd.model_average(gx.sgd(0.1), "r", period=1, compress=c),
    "diloco": lambda c: gd.diloco(gx.sgd(0.1), "r", period=1, compress=c),
    "elastic_average": lambda c: gd.elastic_average(
        gx.sgd(0.1), "r", period=1, rho=0.1, learning_rate=0.1, compress=c
    ),
    "agn": lambda c: gd.agn(gx.sgd(0.1), "r", period=1, compress=c),
    "zero1": lambda c: gd.zero1(gx.sgd(0.1), "r", compress=c),
}


def on_two_replicas(tx, params):
    """The state of two replicas, and a function that takes a step."""
    both = jax.tree.map(lambda p: jnp.stack([p, p]), params)

    def step(state, t):
        grads = jax.tree.map(lambda p: jnp.stack([(t + 1) * p, p / 3]).astype(p.dtype), params)
        update = functools.partial(tx.update, **({"sync": True} if hasattr(tx, "period") else {}))
        return jax.vmap(update, axis_name="r")(grads, state, both)

    return jax.jit(jax.vmap(tx.init, axis_name="r"))(both), jax.jit(step)


FORMS = [(sender, form) for sender in SENDERS for form in ("int8", "powersgd")]


@pytest.mark.parametrize(
    ("sender", "form"),
    FORMS + [("tower", form) for form in ("float8", "sign", "top_k", "dct_top_k")],
)
def test_what_a_compression_remembers_is_saved(tmp_path, sender, form):
    ocp = pytest.importorskip("orbax.checkpoint")
    fresh, step = on_two_replicas(SENDERS[sender](COMPRESSIONS[form]), ODD_SAVED)
    state = step(fresh, 0)[1]
    expected = step(state, 1)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        found = [checkpointer.restore(tmp_path / "state", fresh)]
    found.append(pickle.loads(pickle.dumps(state)))
    found.append(flax.serialization.from_bytes(fresh, flax.serialization.to_bytes(state)))
    for one in found:
        assert_identical(one, state)
        assert_identical(step(one, 1), expected)


def as_it_was(x):
    """What stood in states of before in the place of an integer."""
    is_place = x.dtype == jnp.int8
    return jnp.zeros((*x.shape[:-1], 0), jnp.float32) if is_place else x


@pytest.mark.parametrize(("sender", "form"), FORMS)
def test_a_run_goes_on_with_what_was_remembered_in_arrays_without_entries(sender, form):
    fresh, step = on_two_replicas(SENDERS[sender](COMPRESSIONS[form]), ODD)
    feedback, older = fresh.feedback, jax.tree.map(as_it_was, fresh.feedback)
    assert any(np.size(x) == 0 for x in jax.tree.leaves(older))
    assert all(np.size(x) for x in jax.tree.leaves(feedback))
    state, old = fresh, fresh._replace(feedback=older)
    for t in range(3):
        updates, state = step(state, t)
        old_updates, old = step(old, t)
        assert_identical(old_updates, updates)

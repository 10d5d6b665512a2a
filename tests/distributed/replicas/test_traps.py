"""A schedule that a `vmap` batches is refused; other programs do not show the check."""

import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from tests.distributed.modes import MODES, replicas, step_of

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N = 4
MODULES = [
    importlib.import_module(f"gradxform.distributed.averaging.{k}") for k in ("exchange", "outer")
]
PARAMS = {"w": np.linspace(-1.0, 1.0, 6, dtype=np.float32)}
WRAPPERS = {
    "model_average": gd.model_average(gx.adam(0.1), "replica", period=3),
    "elastic_average": gd.elastic_average(gx.sgd(0.1), "replica", period=3, rho=0.0),
    "agn": gd.agn(gx.adam(0.1), "replica", period=3),
    "outer": gd.diloco(gx.adam(0.1), "replica", period=3),
    "delayed": gd.diloco(gx.adam(0.1), "replica", period=3, delay=1),
    "fragments": gd.diloco(gx.adam(0.1), "replica", period=4, fragments=2),
    "in a chain": gx.chain(gx.clip(1.0), gd.model_average(gx.adam(0.1), "replica", period=3)),
}


def gradients(steps):
    return {"w": np.random.default_rng(0).normal(size=(steps, N, 6)).astype(np.float32)}


def every(tree):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (N, *jnp.shape(x))), tree)


def in_axes(tx):
    """What a user derives from the specs: None for what is shared."""
    specs = gd.state_specs(tx, PARAMS)
    return jax.tree.map(lambda spec: None if spec == P() else 0, specs)


@pytest.mark.parametrize("form", ["step", "update"])
@pytest.mark.parametrize("name", list(WRAPPERS))
def test_a_batched_schedule_is_refused(name, form):
    if name == "in a chain" and form == "step":
        pytest.skip("chains have updates only")
    tx = WRAPPERS[name]
    step = step_of(tx, form)
    args = every(PARAMS), every(tx.init(PARAMS)), {"w": gradients(1)["w"][0]}

    def several(params, state, grads):
        def one(carry, _):
            return step(carry[0], carry[1], grads), None

        return jax.lax.scan(one, (params, state), length=2)[0]

    for run in (step, jax.jit(step), several):
        with pytest.raises(ValueError) as error:
            jax.jit(jax.vmap(run, axis_name="replica"))(*args)
        words = str(error.value)
        assert words.startswith(("model_average: ", "elastic_average: ", "agn: ", "outer: "))
        assert "over 4 elements" in words and "schedule_step" in words
        assert "in_axes" in words and "state_specs" in words and "sync=True" in words


def test_an_axis_around_the_replicas_is_refused_too():
    """A sweep of runs, each with a count of its own, would pay for every exchange as well."""
    tx = WRAPPERS["model_average"]
    axes = 0, in_axes(tx), 0
    one = jax.vmap(step_of(tx, "step"), in_axes=axes, out_axes=axes[:2], axis_name="replica")
    args = every(PARAMS), tx.init(PARAMS), {"w": gradients(1)["w"][0]}
    args = (
        args[0],
        jax.tree.map(lambda x, a: x if a is None else every(x), args[1], axes[1]),
        args[2],
    )
    one(*args)
    with pytest.raises(ValueError, match=r"model_average: a jax\.vmap over 4"):
        jax.vmap(one)(*map(every, args))


def test_fragments_take_turns_by_the_schedule_also_with_sync():
    tx = WRAPPERS["fragments"]
    args = every(PARAMS), every(tx.init(PARAMS)), {"w": gradients(1)["w"][0]}

    def step(params, state, grads):
        return tx.step(grads, state, params, sync=True)

    with pytest.raises(ValueError, match=r"outer: a jax\.vmap over 4"):
        jax.vmap(step, axis_name="replica")(*args)


@pytest.mark.parametrize("name", list(WRAPPERS))
def test_axes_from_the_specs_are_a_remedy(name):
    tx, steps = WRAPPERS[name], 4
    axes = in_axes(tx)
    state = jax.vmap(tx.init, out_axes=axes)(every(PARAMS))
    mapped = jax.vmap(
        step_of(tx, "update"), in_axes=(0, axes, 0), out_axes=(0, axes), axis_name="replica"
    )
    grads, params = gradients(steps), every(PARAMS)
    r = replicas("vmap", N)
    step = r.wrap(step_of(tx, "update"))
    theirs = r.replicate(PARAMS)
    its_state = r.wrap(tx.init)(theirs)
    for t in range(steps):
        g = {"w": grads["w"][t]}
        params, state = jax.jit(mapped)(params, state, g)
        theirs, its_state = step(theirs, its_state, g)
    assert jax.tree.structure(state) == jax.tree.structure(its_state)
    for a, b in zip(
        jax.tree.leaves((params, state)), jax.tree.leaves((theirs, its_state)), strict=True
    ):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_static_decision_is_the_other_remedy():
    tx = WRAPPERS["model_average"]
    args = every(PARAMS), every(tx.init(PARAMS)), {"w": gradients(1)["w"][0]}
    for sync in (True, False):

        def step(params, state, grads, sync=sync):
            return tx.step(grads, state, params, sync=sync)

        params, _ = jax.vmap(step, axis_name="replica")(*args)
        assert (np.ptp(params["w"], axis=0).max() < 1e-6) == sync


def compiled_text(tx, mode):
    r = replicas(mode, N)
    params = r.replicate(PARAMS)
    state = r.wrap(tx.init)(params)
    lowered = r.wrap(step_of(tx, "step")).lower(params, state, r.place({"w": gradients(1)["w"][0]}))
    text = re.sub(r", metadata=\{[^}]*\}", "", lowered.compile().as_text())
    return re.sub(r"(?ms)^(FileNames|StackFrames|FileLocations|FunctionNames)$.*?\n\n", "", text)


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("name", ["model_average", "fragments"])
def test_the_check_leaves_nothing_in_a_program(monkeypatch, name, mode):
    with_check = compiled_text(WRAPPERS[name], mode)
    for module in MODULES:
        monkeypatch.setattr(module, "require_alike", lambda part, decision: decision)
    assert compiled_text(WRAPPERS[name], mode) == with_check
    assert "conditional(" in with_check


def test_without_the_check_every_step_would_exchange(monkeypatch):
    """The trap: without a conditional, the sum over replicas is in every step."""
    for module in MODULES:
        monkeypatch.setattr(module, "require_alike", lambda part, decision: decision)
    tx = WRAPPERS["model_average"]
    args = every(PARAMS), every(tx.init(PARAMS)), {"w": gradients(1)["w"][0]}
    step = jax.jit(jax.vmap(step_of(tx, "step"), axis_name="replica"))
    assert "conditional(" not in str(step.lower(*args).compile().as_text())


def test_a_step_can_be_differentiated_and_rematerialized():
    tx = gd.model_average(gx.sgd(0.1), "replica", period=1)
    axes = in_axes(tx)
    step = jax.checkpoint(lambda p, s, g: tx.step(g, s, p)[0]["w"] ** 2)

    def loss(params):
        mapped = jax.vmap(step, in_axes=(0, axes, 0), axis_name="replica")
        return jnp.sum(mapped(params, tx.init(PARAMS), {"w": gradients(1)["w"][0]}))

    slope = jax.jit(jax.grad(loss))(every(PARAMS))["w"]
    mean = PARAMS["w"] - 0.1 * gradients(1)["w"][0].mean(0)
    np.testing.assert_allclose(slope, np.broadcast_to(2 * mean, slope.shape), rtol=1e-5, atol=1e-6)

"""Micro-batches added up in the shards of a slice: the numbers of undivided optimizers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import gradxform as gx
import gradxform.distributed as gd

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

SLICES, DEVICES, EVERY, PERIOD, STEPS = 2, 4, 2, 3, 7
SHAPES = {"w": (16, 8), "b": (64,), "odd": (5, 3), "scale": ()}
RULES = {"lamb": gx.lamb(0.05, weight_decay=0.1), "adamw": gx.adamw(0.02, weight_decay=0.1)}
ACCUMULATED = {
    "accumulate": lambda tx: gx.accumulate(tx, EVERY),
    "MultiSteps": lambda tx: gx.MultiSteps(tx, EVERY),
}


def drawn(*lead, seed=0):
    rng = np.random.default_rng(seed)
    draw = {k: rng.normal(size=(*lead, *s)) for k, s in SHAPES.items()}
    return {k: x.astype(np.float32) for k, x in draw.items()}


def start():
    return jax.tree.map(jnp.asarray, drawn())


def stepped(tx, form):
    """A step from a device's, or a slice's, gradients of shape (1, ...)."""

    def step(params, state, g):
        g = jax.tree.map(lambda x: x[0], g)
        if form == "step":
            return tx.step(g, state, params)
        updates, state = tx.update(g, state, params)
        return gx.apply_updates(params, updates), state

    return step


def gradients():
    return drawn(STEPS, SLICES, DEVICES, seed=1)


@functools.cache
def undivided(name, rule):
    """The parameters of both slices after every step, each an array of its own."""
    tx, grads = gd.diloco(ACCUMULATED[name](RULES[rule]), "replica", period=PERIOD), gradients()
    r = gd.Replicas("replica", n=SLICES, mode="vmap")
    params = r.replicate(start())
    state, step = r.wrap(tx.init)(params), r.wrap(stepped(tx, "step"))
    seen = []
    for t in range(STEPS):
        mean = jax.tree.map(lambda x, t=t: jnp.asarray(x[t].mean(1, keepdims=True)), grads)
        params, state = step(params, state, mean)
        seen.append(jax.tree.map(np.asarray, params))
    return seen


def pod(check_vma):
    mesh = jax.make_mesh((SLICES, DEVICES), ("dcn", "ici"), axis_types=(AxisType.Auto,) * 2)
    return gd.Replicas(("dcn",), inner_axes=("ici",), mesh=mesh, manual=True, check_vma=check_vma)


# Of four choices between two, any three in every combination.
CHOICES = [
    (name, rule, check_vma, form)
    for (i, name), (j, rule) in itertools.product(enumerate(ACCUMULATED), enumerate(RULES))
    for check_vma, form in (
        ((True, "step"), (False, "update")),
        ((True, "update"), (False, "step")),
    )[(i + j) % 2]
]


@pytest.mark.parametrize("name, rule, check_vma, form", CHOICES)
def test_slices_add_gradients_up_in_shards(name, rule, check_vma, form):
    inner, grads = ACCUMULATED[name](RULES[rule]), gradients()
    tx = gd.diloco(gd.zero1(inner, "ici"), "dcn", period=PERIOD, inner_axes=("ici",))
    r = pod(check_vma)
    params, state = r.init(start, tx=tx)
    before, step = params, r.wrap(stepped(tx, form))
    for t, wanted in enumerate(undivided(name, rule), 1):
        flat = {k: x[t - 1].reshape(SLICES * DEVICES, *x.shape[3:]) for k, x in grads.items()}
        params, state = step(params, state, r.split(flat))
        for k, want in wanted.items():
            np.testing.assert_allclose(params[k], want, rtol=2e-5, atol=2e-6)
            moved = np.any(np.asarray(params[k]) != np.asarray(before[k]))
            assert moved == (t % EVERY == 0 or t % PERIOD == 0), (k, t)
        before = params
    inside = state.inner.inner
    for slot in (inside.acc_grads, inside.inner_opt_state[0].mu) if name == "MultiSteps" else (
        inside.acc_grads, inside.inner_state[0].mu):  # fmt: skip
        assert slot["w"].shape == (SLICES, 16, 8)
        assert slot["w"].addressable_shards[0].data.size == 16 * 8 // DEVICES
        assert slot["b"].addressable_shards[0].data.size == 64 // DEVICES


@pytest.mark.parametrize("wrapper", [gx.MultiSteps, gx.accumulate])
@pytest.mark.parametrize("check_vma", [True, False])
def test_gradients_of_single_devices_are_not_added_up_outside(wrapper, check_vma):
    """Each device would need a sum of its own, as large as all parameters."""
    tx = gd.diloco(wrapper(gd.zero1(RULES["lamb"], "ici"), EVERY), "dcn", period=PERIOD)
    message = "acc_grads.* differs between the replicas of 'ici'.* move that part inside the one"
    with pytest.raises(ValueError, match=message):
        pod(check_vma).init(start, tx=tx)


def test_devices_agree_on_the_flags_of_a_guard_inside_one_whose_flags_are_the_same():
    """A step without weight on one device would else be taken with the shards of the others."""
    inner = gx.accumulate(gx.sgd(1.0), 1, "weighted", skip_not_finite=False)
    tx = gd.zero1(gx.conditionally_mask(inner, lambda step: step >= 0), "ici")
    p = {"w": jnp.ones(4)}

    def updates(weight):
        return tx.update(p, tx.init(p), p, weight=weight)[0]["w"]

    step = jax.vmap(updates, axis_name="ici")
    np.testing.assert_array_equal(step(jnp.asarray([1.0, 0.0])), jnp.zeros((2, 4)))
    np.testing.assert_array_equal(step(jnp.asarray([1.0, 2.0])), -jnp.ones((2, 4)))

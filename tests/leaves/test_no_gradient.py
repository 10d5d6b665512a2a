"""Integers, keys, functions among the parameters: holes, wherever no gradient comes to them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform.types import MaskedNode

pytestmark = pytest.mark.numeric

PARAMS = {
    "w": jnp.array([1.0, -2.0]),
    "steps": jnp.array(3),
    "on": jnp.array([True, False]),
    "key": jax.random.key(0),
    "number": 7,
}
FROZEN = {"w": False, "steps": True, "on": True, "key": True, "number": True}
LABELS = {k: "frozen" if x else "train" for k, x in FROZEN.items()}


def float0(x):
    return np.zeros(jnp.shape(x), jax.dtypes.float0)


NO_GRADIENT = {
    "none": lambda x: None,
    "float0": float0,
    "masked": lambda x: MaskedNode(),
    "Optax's masked": lambda x: optax.MaskedNode(),
}

OPTIMIZERS = {
    "adam": lambda: gx.adam(0.1),
    "sgd": lambda: gx.sgd(0.1, momentum=0.9),
    "set_to_zero": gx.set_to_zero,
    "freeze": lambda: gx.chain(gx.adam(0.1), gx.freeze(FROZEN)),
    "freeze by a pattern": lambda: gx.chain(gx.adam(0.1), gx.freeze(gx.path_matches("steps"))),
    "selective_transform": lambda: gx.selective_transform(gx.adam(0.1), freeze_mask=FROZEN),
    "partition": lambda: gx.partition({"train": gx.adam(0.1), "frozen": gx.set_to_zero()}, LABELS),
    "masked": lambda: gx.masked(gx.adam(0.1), {k: not x for k, x in FROZEN.items()}),
    "clipped": lambda: gx.chain(gx.clip_by_global_norm(1.0), gx.lamb(0.1)),
    "muon": lambda: gx.muon(0.1),
    "adafactor": lambda: gx.adafactor(0.1),
    "MultiSteps": lambda: gx.MultiSteps(gx.adam(0.1), 2),
    "apply_if_finite": lambda: gx.apply_if_finite(gx.adam(0.1), 3),
    "moving_average": lambda: gx.moving_average(gx.adam(0.1), 0.9),
    "schedule_free": lambda: gx.schedule_free_adamw(0.1),
    "master_weights": lambda: gx.master_weights(gx.adam(0.1)),
    "quantize_state": lambda: gx.quantize_state(gx.adam(0.1)),
    "lars": lambda: gx.lars(0.1),
    "sam": lambda: gx.contrib.sam(gx.adam(0.1), gx.sgd(0.1), sync_period=2),
}


def gradient(kind, k):
    return {
        name: x * (k + 1.0) if name == "w" else NO_GRADIENT[kind](x) for name, x in PARAMS.items()
    }


@pytest.mark.parametrize("kind", list(NO_GRADIENT))
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_what_has_no_gradient_stays_and_changes_nothing(name, kind):
    tx = OPTIMIZERS[name]()
    own = {"w": PARAMS["w"]}
    alone = {
        "freeze": lambda: gx.adam(0.1),
        "freeze by a pattern": lambda: gx.adam(0.1),
        "selective_transform": lambda: gx.adam(0.1),
        "partition": lambda: gx.adam(0.1),
        "masked": lambda: gx.adam(0.1),
    }.get(name, OPTIMIZERS[name])()
    state, of_own = tx.init(PARAMS), alone.init(own)
    params = PARAMS
    for k in range(3):
        updates, state = tx.update(gradient(kind, k), state, params)
        updates_of_own, of_own = alone.update({"w": gradient(kind, k)["w"]}, of_own, own)
        np.testing.assert_array_equal(updates["w"], updates_of_own["w"])
        params, own = gx.apply_updates(params, updates), gx.apply_updates(own, updates_of_own)
    for k in PARAMS.keys() - {"w"}:
        assert params[k] is PARAMS[k] or np.all(np.asarray(params[k] == PARAMS[k])), k


def test_the_gradients_of_jax_for_integers_come_back_as_they_were():
    params = {"w": jnp.ones(2), "n": jnp.array(2)}
    grads = jax.grad(lambda p: jnp.sum(p["w"] ** p["n"]), allow_int=True)(params)
    tx = gx.adam(0.1)
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates["n"].dtype == jax.dtypes.float0
    assert gx.apply_updates(params, updates)["n"] == 2


@pytest.mark.parametrize("params", [None, {"w": jnp.ones(2), "n": jnp.array(2)}])
@pytest.mark.parametrize("bad", [jnp.array(1.0), jnp.array(1)])
@pytest.mark.parametrize("tx", [gx.adam(0.1), gx.apply_if_finite(gx.trace(0.9), 2)])
def test_a_gradient_for_an_integer_is_refused_when_it_comes(tx, bad, params):
    state = tx.init({"w": jnp.ones(2), "n": jnp.array(2)})
    with pytest.raises((TypeError, ValueError), match=r"\['n'\]"):
        tx.update({"w": jnp.ones(2), "n": bad}, state, params)


def test_the_state_of_masked_is_that_of_optax():
    mask = {"w": True, "n": False}
    params = {"w": jnp.ones(2), "n": jnp.array(2)}
    ours = gx.masked(gx.adam(0.1), mask).init(params)
    theirs = optax.masked(optax.adam(0.1), mask).init(params)
    names = [jax.tree_util.tree_flatten_with_path(x)[0] for x in (ours, theirs)]
    assert [path for path, _ in names[0]] == [path for path, _ in names[1]]


# ------------------------------------------------------------------------ models with functions


MODEL = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))


def loss(model):
    return jnp.sum(model(jnp.ones(2)) ** 2)


@pytest.mark.parametrize(
    "tx", [gx.sgd(0.1), gx.sgd(lambda n: 0.1), gx.chain(gx.clip_by_global_norm(1.0), gx.sgd(0.1))]
)
def test_a_model_that_nobody_has_filtered(tx):
    state = tx.init(MODEL)
    updates, _ = tx.update(eqx.filter_grad(loss)(MODEL), state, MODEL)
    moved = eqx.apply_updates(MODEL, updates)
    assert loss(moved) < loss(MODEL)
    assert loss(gx.apply_updates(MODEL, updates)) == loss(moved)


@pytest.mark.parametrize(
    "tx, name", [(gx.adam(0.1), "adam"), (gx.sgd(0.1, 0.9), "sgd"), (gx.trace(0.9), "trace")]
)
def test_what_would_keep_something_for_a_function_says_how_to_filter(tx, name):
    with pytest.raises(TypeError) as caught:
        tx.init(MODEL)
    message = str(caught.value)
    assert message.startswith(f"{name}: parameter .activation is ")
    assert "eqx.filter(model, eqx.is_array)" in message


@pytest.mark.parametrize("text", ["float32", b"x"])
def test_a_string_is_not_a_parameter(text):
    params = {"w": jnp.ones(2), "dtype": text}
    assert not jax.tree.leaves(gx.sgd(0.1).init(params))
    with pytest.raises(TypeError, match=r"parameter \['dtype'\] is "):
        gx.adam(0.1).init(params)


# ---------------------------------------------------------------------- functions of the parameters


def parabola(p):
    return jnp.sum((p["w"] - 3) ** 2) + jnp.sum(p["b"] ** 2) + p["n"]


OF_W = {"w": True, "b": False, "n": False}
REST = {k: not x for k, x in OF_W.items()}
SEARCHES = {
    "masked": lambda tx: gx.chain(gx.masked(tx, OF_W), gx.masked(gx.set_to_zero(), REST)),
    "partition": lambda tx: gx.partition(
        {"search": tx, "rest": gx.sgd(0.1)}, {"w": "search", "b": "rest", "n": "rest"}
    ),
    "all": lambda tx: tx,
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("where", list(SEARCHES))
@pytest.mark.parametrize(
    "search", [gx.lbfgs(), gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(20))]
)
def test_a_loss_gets_all_parameters(search, where, jit):
    tx = SEARCHES[where](search)
    params = {"w": jnp.ones(2), "b": jnp.full(3, 0.5), "n": jnp.array(4)}
    state = tx.init(params)

    def step(params, state):
        value, grads = jax.value_and_grad(parabola, allow_int=True)(params)
        grads = {**grads, "n": None}
        extra = {"value": value, "grad": grads, "value_fn": parabola}
        updates, state = tx.update(grads, state, params, **extra)
        return gx.apply_updates(params, updates), state

    for _ in range(8):
        params, state = (jax.jit(step) if jit else step)(params, state)
    np.testing.assert_allclose(params["w"], [3.0, 3.0], atol=0.1)


def test_the_gradients_of_sam_inside_masked_are_those_of_its_parameters():
    tx = gx.masked(
        gx.contrib.sam(gx.sgd(0.1), gx.sgd(0.1), opaque_mode=True),
        {"w": True, "b": False, "n": False},
    )
    params = {"w": jnp.ones(2), "b": jnp.ones(3), "n": jnp.array(4)}
    whole = jax.grad(parabola, allow_int=True)
    grads = whole(params)
    updates, _ = tx.update(grads, tx.init(params), params, grad_fn=lambda p, i: whole(p))
    np.testing.assert_array_equal(updates["b"], grads["b"])
    assert np.all(updates["w"] > 0)

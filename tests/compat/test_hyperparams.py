"""`inject_hyperparams` of every door: what is in the state, set in a jitted step, in configs."""

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, returnn, tf1, tf_contrib
from gradxform.compat.keras import keras3

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.asarray([[0.5, -1.0], [2.0, 0.25], [1.0, 3.0]]), "b": jnp.asarray([0.3, -0.7])}
GRADS = {"w": jnp.asarray([[0.1, 0.4], [-0.2, 0.7], [0.3, -0.5]]), "b": jnp.asarray([0.2, 0.6])}
SGD = tf1.GradientDescent(0.1)
GIVEN = {
    "learning_rate": 0.1,
    "momentum": 0.5,
    "weight_decay": 0.01,
    "opt": SGD,
    "inner_optimizer": SGD,
    "max_norm": 1.5,
    "vars_to_clip_dims": {"w": [0]},
    "staleness": 2,
    "replicas_to_aggregate": 2,
    "global_step": None,
}
MORE = {
    "AGN": {"optimizer": SGD, "communication_period": 2},
    "ElasticAverage": {"moving_rate": 0.2, "rho": 0.1},
    "SGD": {"clipnorm": 0.5, "decay": 0.1},
    "RMSprop": {"momentum": 0.5, "centered": True, "clipvalue": 0.3},
    "Adadelta": {"rho": 0.8},
    "Shampoo": {"gbar_decay": 0.3},
    "MovingAverage": {"num_updates": 3},
}
DOORS = {
    f"{module.__name__.split('.')[-1]}.{name}": door
    for module in (keras, keras3, tf1, tf_contrib, returnn)
    for name, door in vars(module).items()
    if inspect.isfunction(door)
    and door.__module__.startswith("gradxform.")
    and name[0].isupper()
    and name not in ("BaseCustom", "MultiOptimizer")  # the latter: of the optimizers in its map
    and "Decay" not in name  # schedules
}


def arguments(name, door):
    known = inspect.signature(door).parameters
    needed = {k: GIVEN[k] for k in GIVEN if k in known and known[k].default is known[k].empty}
    if "global_step" in known:
        needed["global_step"] = None
    more = MORE.get(name.split(".")[1], {})
    return needed | {k: x for k, x in more.items() if k in known}


def stepped(tx, state):
    """One update of one replica, or of two that see the same."""
    extra = {"grad_step": jnp.zeros((), jnp.int32)} if "grad_step" in _extra(tx) else {}

    def update(state):
        return tx.update(GRADS, state, PARAMS, **extra)

    return jax.vmap(lambda _: update(state)[0], axis_name="replica")(jnp.arange(2))


def _extra(tx):
    return tx.extra_names() or ()


@pytest.mark.parametrize("name", DOORS)
def test_every_number_of_a_door_is_set_in_a_jitted_step(name):
    door = DOORS[name]
    given = arguments(name, door)
    tx = gx.inject_hyperparams(door)(**given)
    state = jax.jit(tx.init)(PARAMS)
    update = jax.jit(lambda state: stepped(tx, state))
    update(state)
    for key, x in state.hyperparams.items():
        changed = x + 1 if jnp.issubdtype(x.dtype, jnp.integer) else x * 0.75
        set_state = state._replace(hyperparams=state.hyperparams | {key: changed})
        plain = door(**given | {key: changed.item()})
        expected = stepped(plain, state.inner_state)
        for ours, theirs in zip(
            jax.tree.leaves(update(set_state)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6, err_msg=key)
    assert update._cache_size() == 1


LISTED = {
    "SGD": (keras.SGD, {}, ["learning_rate"]),
    "SGD with momentum": (keras.SGD, {"momentum": 0.5}, ["learning_rate", "momentum"]),
    "SGD with all": (
        keras.SGD,
        {"decay": 0.1, "clipnorm": 2.0},
        ["learning_rate", "clipnorm", "decay"],
    ),
    "RMSprop by lr": (keras.RMSprop, {"lr": 0.5}, ["learning_rate", "rho", "epsilon"]),
    "AdamGS": (tf_contrib.AdamGS, {}, ["learning_rate", "beta1", "beta2", "epsilon"]),
    "GGT": (tf_contrib.GGT, {}, ["learning_rate", "beta1", "eps", "svd_eps", "sigma_eps"]),
    "SyncReplicas": (tf1.SyncReplicas, {"opt": SGD, "replicas_to_aggregate": 2}, []),
    "ModelAverage": (tf_contrib.ModelAverage, {"opt": SGD, "num_worker": 2}, ["interval_steps"]),
}


@pytest.mark.parametrize("name", LISTED)
def test_what_is_ignored_or_decides_the_structure_is_not_listed(name):
    door, given, listed = LISTED[name]
    made = gx.inject_hyperparams(door)(**given)
    assert list(made.numbers) == listed


def test_the_alias_of_the_learning_rate_sets_it():
    tx = gx.inject_hyperparams(keras.SGD)(lr=0.5)
    updates, state = jax.jit(tx.update)(GRADS, tx.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["b"], -0.5 * GRADS["b"], rtol=1e-6)
    assert float(state.hyperparams["learning_rate"]) == 0.5
    assert tx == gx.inject_hyperparams(keras.SGD)(0.5)


FIXED = [
    (keras.SGD, {}, "momentum", 0.9),
    (keras.Adam, {}, "amsgrad", True),
    (keras.Adam, {}, "decay", 0.1),
    (keras.Adam, {}, "clipnorm", 1.0),
    (tf_contrib.GGT, {}, "window", 5),
    (tf_contrib.AdamGS, {}, "global_step", 3),
    (tf_contrib.Shampoo, {}, "svd_interval", 2),
    (tf_contrib.Shampoo, {}, "gbar_decay", 0.5),
]


@pytest.mark.parametrize("door, given, name, x", FIXED)
def test_what_decides_the_structure_cannot_be_set_later(door, given, name, x):
    tx = gx.inject_hyperparams(door)(**given)
    state = tx.init(PARAMS)
    state.hyperparams[name] = x
    with pytest.raises(
        ValueError, match=rf"^inject_hyperparams: {door.__name__}: {name} was .*"
    ) as e:
        tx.update(GRADS, state, PARAMS)
    assert str(e.value).endswith("make it anew with another value.")
    assert gx.inject_hyperparams(door)(**given | {name: x}).init(PARAMS)  # anew


def test_an_epsilon_of_zero_is_that_of_keras_in_a_run_too():
    tx = gx.inject_hyperparams(keras.Adagrad)(0.1, 0.0, epsilon=0.5)
    state = tx.init(PARAMS)
    state.hyperparams["epsilon"] = 0.0
    updates, _ = jax.jit(tx.update)(jax.tree.map(jnp.zeros_like, GRADS), state, PARAMS)
    assert jax.tree.all(jax.tree.map(lambda u: bool((u == 0).all()), updates))


# ---------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize("name", DOORS)
def test_a_door_is_named_in_configs(name):
    door = DOORS[name]
    given = arguments(name, door)
    injector = gx.inject_hyperparams(door)
    for tx in (injector, injector(**given), gx.chain(gx.identity(), injector(**given))):
        text = gx.to_json(tx)
        again = gx.from_json(text)
        assert again == tx and gx.to_json(again) == text
    [library, factory] = json.loads(gx.to_json(injector))["inner_factory"]["function"].split(":")
    assert getattr(globals()[library], factory) is door


def test_a_door_is_called_by_its_name_in_a_config():
    config = {"name": "keras:SGD", "learning_rate": 0.5, "momentum": 0.9, "clipnorm": 1.0}
    assert gx.from_config(config) == keras.SGD(0.5, 0.9, clipnorm=1.0)
    config = {"name": "tf1:Momentum", "learning_rate": {"name": "constant_schedule", "value": 0.5}}
    with pytest.raises(ValueError, match=r"^config: tf1:Momentum needs the field 'momentum'\.$"):
        gx.from_config(config)
    with pytest.raises(ValueError, match=r"named 'keras:Adma'\. Did you mean .*'keras:Adam'"):
        gx.from_config({"name": "keras:Adma"})
    with pytest.raises(ValueError, match="no transform named 'returnn:BaseCustom'"):
        gx.from_config({"name": "returnn:BaseCustom", "learning_rate": 0.5})


def test_a_door_made_by_the_user_needs_a_name():
    made = tf_contrib.extend_with_decoupled_weight_decay(tf1.Adadelta)
    with pytest.raises(TypeError, match=r"the function ExtendWD_Adadelta .* register\('package:"):
        gx.to_config(gx.inject_hyperparams(made)(0.1))

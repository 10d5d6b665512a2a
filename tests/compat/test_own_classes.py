"""Optimizers and schedules that are written as classes which inherit from Keras's bases."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, keras3
from gradxform.schedules.schedule import Schedule
from gradxform.values.registry import REGISTRY

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.full(3, 2.0)}


class MomentumState(NamedTuple):
    """State of `Momentum`."""

    velocity: gx.types.Slot


@gx.transform(name="own_classes:Momentum")
class Momentum(keras.Optimizer):
    """Gradient descent with momentum."""

    learning_rate: gx.types.ScalarOrSchedule = 0.1
    momentum: float = 0.9

    State = MomentumState
    locality = "entry"

    def prepare(self, updates, state, params):
        return state, gx.numerics.value_at(self.learning_rate, jnp.int32(3))

    def rule(self, g, velocity, p, rate):
        velocity = self.momentum * velocity - rate * g
        return velocity, velocity


def after(tx, steps=3):
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(steps):
        params, state = gx.apply_gradients(tx, PARAMS, state, params)
    return params


def test_an_optimizer_of_ones_own_takes_steps():
    assert issubclass(keras.Optimizer, gx.ArrayRule) and keras3.Optimizer is keras.Optimizer
    same = gx.chain(gx.scale_by_learning_rate(0.5), gx.trace(0.8))
    ours, theirs = after(Momentum(0.5, 0.8)), after(same)
    for k, x in theirs.items():
        np.testing.assert_allclose(ours[k], x, rtol=0, atol=1e-5)
    assert eval(repr(Momentum(0.5)), {"Momentum": Momentum}) == Momentum(0.5)
    assert gx.from_json(gx.to_json(Momentum(0.5))) == Momentum(0.5)


def test_its_config_goes_there_and_back():
    tx = Momentum(0.5, 0.8)
    assert tx.get_config() == {"learning_rate": 0.5, "momentum": 0.8}
    assert Momentum.from_config(tx.get_config()) == tx
    assert Momentum.from_config({"name": "mine"}) == Momentum()
    for version in (None, 2, 3):
        config = json.loads(json.dumps(keras.serialize(tx, "mine", version=version)))
        assert config["class_name"] == "Momentum" and config["config"]["name"] == "mine"
        assert keras.deserialize(config, {"Momentum": Momentum}) == tx
    assert config["module"] == __name__ and config["registered_name"] == "Momentum"
    with pytest.raises(
        ValueError, match="unknown optimizer 'Momentum'; pass its factory in custom"
    ):
        keras.deserialize(keras.serialize(tx))


@pytest.mark.parametrize("version", [2, 3])
def test_a_schedule_in_its_config_is_read_and_written(version):
    tx = Momentum(keras.ExponentialDecay(0.5, 3, 0.5))
    config = json.loads(json.dumps(keras.serialize(tx, version=version)))
    assert config["config"]["learning_rate"]["class_name"] == "ExponentialDecay"
    assert keras.deserialize(config, {"Momentum": Momentum}) == tx
    assert Momentum.from_config(tx.get_config()) == tx
    assert keras.LossScaleOptimizer(tx).inner == tx
    with pytest.raises(ValueError, match=r"^Momentum\.from_config: config\.learning_rate: unknown"):
        Momentum.from_config({"learning_rate": {"class_name": "Mine", "config": {}}})
    with pytest.raises(TypeError, match=r"^Momentum\.from_config: config must be a dict of fields"):
        Momentum.from_config(3)
    with pytest.raises(TypeError, match=r"config\.config: .*moment"):
        keras.deserialize({"class_name": "M", "config": {"momentun": 0.5}}, {"M": Momentum})


def test_a_holder_has_its_fields_as_attributes():
    opt = gx.Optimizer(Momentum(0.5, 0.8), PARAMS)
    assert opt.learning_rate == 0.5 and opt.momentum == 0.8
    opt.learning_rate = 0.25
    assert opt.tx == Momentum(0.25, 0.8)
    opt.learning_rate = rate = keras.ExponentialDecay(0.5, 3, 0.5)
    assert opt.learning_rate == rate and opt.tx == Momentum(rate, 0.8)


HOOKS = {
    "__init__": "write its arguments as fields",
    "_set_hyper": "write its arguments as fields",
    "_create_slots": "name its slots in `State`",
    "build": "name its slots in `State`",
    "_prepare": "write `prepare(self, updates, state, params)`",
    "_prepare_local": "write `prepare(self, updates, state, params)`",
    "_resource_apply_dense": "write `rule(self, g, *slots, p)`",
    "update_step": "write `rule(self, g, *slots, p)`",
    "_resource_apply_sparse": "leave it out: with locality = 'entry' or 'row'",
}


@pytest.mark.parametrize("method", HOOKS)
def test_a_method_of_keras_is_refused_with_what_to_write(method):
    with pytest.raises(TypeError) as caught:
        type("Mine", (keras.Optimizer,), {method: lambda self, *args: None})
    message = str(caught.value)
    assert message.startswith(f"Mine: {method} is of Keras, and is not called here; ")
    assert HOOKS[method] in message and message.endswith(".")


def test_a_config_of_ones_own_is_written():
    class Written(Momentum):
        def get_config(self):
            return {"momentum": self.momentum}

    written = gx.transform(name="own_classes:Written")(Written)(0.1, 0.7)
    assert keras.serialize(written)["config"] == {"momentum": 0.7}


# -------------------------------------------------------------------------------------- schedules


class Root(keras.schedules.LearningRateSchedule):
    """The first rate over the root of the number of steps."""

    def __init__(self, first, power=0.5, table=()):
        self.first, self.power, self.table = first, power, list(table)

    def __call__(self, step):
        return self.first * jnp.asarray(step + 1, jnp.float32) ** -self.power

    def get_config(self):
        return {"first": self.first, "power": self.power, "table": self.table}


DOORS = [
    *(getattr(keras, k) for k in ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax")),
    keras.Ftrl,
    *(REGISTRY[k] for k in REGISTRY if k.startswith("keras3:") and k != "keras3:MultiOptimizer"),
]


@pytest.mark.parametrize("door", DOORS, ids=[f"{f.__module__[-6:]}.{f.__name__}" for f in DOORS])
def test_a_schedule_of_ones_own_is_a_learning_rate_of_every_door(door):
    tx, version = door(Root(0.1)), 2 if door.__module__.endswith("keras.keras") else 3
    assert tx == door(Root(0.1)) != door(Root(0.2)) and hash(tx) == hash(door(Root(0.1)))
    plain = after(door(lambda n: 0.1 * jnp.asarray(n + 1, jnp.float32) ** -0.5))
    for k, x in after(tx).items():
        np.testing.assert_allclose(x, plain[k], rtol=0, atol=1e-6)
    config = json.loads(json.dumps(keras.serialize(tx, version=version)))
    assert config["config"]["learning_rate"]["config"] == Root(0.1).get_config()
    assert keras.deserialize(config, {"Root": Root}) == tx
    assert door.from_config(config["config"], {"Root": Root}) == tx


def test_schedules_of_one_class_with_equal_configs_are_equal():
    assert Root(0.1) == Root(0.1, table=[]) and hash(Root(0.1)) == hash(Root(0.1))
    assert Root(0.1) != Root(0.1, 0.6) and Root(0.1, table=[1]) != Root(0.1, table=[2])
    assert Root(0.1) != type("Root", (Root,), {})(0.1) and Root(0.1) != 0.1
    assert eval(repr(Root(0.1, table=[3])), {"Root": Root}) == Root(0.1, table=[3])


def test_a_program_is_compiled_once_for_equal_schedules():
    traced = []

    def step(tx, grads, state, params):
        traced.append(tx)
        return tx.update(grads, state, params)

    run = jax.jit(step, static_argnums=0)
    for _ in range(3):
        tx = keras.SGD(Root(0.1))
        run(tx, PARAMS, tx.init(PARAMS), PARAMS)
    assert len(traced) == 1


def test_a_schedule_of_ones_own_is_read_and_written():
    schedule = Root(0.1, table=[1, 2])
    config = {"first": 0.1, "power": 0.5, "table": [1, 2]}
    assert keras.schedules.serialize(schedule) == {"class_name": "Root", "config": config}
    written = json.loads(json.dumps(keras.schedules.serialize(schedule, version=3)))
    assert written["module"] == __name__ and written["registered_name"] == "Root"
    assert keras.schedules.deserialize(written, {"Root": Root}) == schedule
    assert keras.schedules.serialize(schedule, "mine")["config"]["name"] == "mine"
    with pytest.raises(ValueError, match="unknown schedule 'Root'"):
        keras.schedules.deserialize(written)
    with pytest.raises(TypeError, match=r"config\.config: .*'second'"):
        keras.schedules.deserialize({"class_name": "R", "config": {"second": 1}}, {"R": Root})


def test_the_schedules_of_the_library_are_instances():
    base = keras.schedules.LearningRateSchedule
    for schedule in (
        keras.ExponentialDecay(0.1, 3, 0.5),
        keras.PiecewiseConstantDecay([1], [0.1, 0.2]),
        keras.CosineDecay(0.1, 3),
    ):
        assert isinstance(schedule, base)
    assert issubclass(Schedule, base) and not isinstance(lambda n: n, base)
    assert isinstance(Root(0.1), base)
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (base,), {"__call__": lambda self, step: 0.1})()


def test_a_config_that_does_not_compare_is_refused():
    class Odd(Root):
        def get_config(self):
            return {"first": object, "other": self.first}

    class NoDict(Root):
        def get_config(self):
            return [3]

    with pytest.raises(TypeError, match=r"^NoDict: get_config must return a dict of argum"):
        hash(NoDict(0.1))
    with pytest.raises(TypeError, match=r"^Odd: get_config must return plain data, numbers"):
        hash(Odd({1, 2}))

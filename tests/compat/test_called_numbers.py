"""Numbers of TensorFlow's and Keras's optimizers as functions without arguments."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, keras3, returnn, tf1, tf_contrib

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.arange(1.0, 7.0).reshape(3, 2)}
RATE = {"learning_rate": 0.1}
L1_L2 = {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02}
DECAYS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}
KERAS_DECAYS = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}

# Each with the numbers that the originals take from a function.
DOORS = {
    "tf1.GradientDescent": (tf1.GradientDescent, RATE),
    "tf1.Momentum": (tf1.Momentum, RATE | {"momentum": 0.7}),
    "tf1.Adagrad": (tf1.Adagrad, RATE | {"initial_accumulator_value": 0.5}),
    "tf1.Adadelta": (tf1.Adadelta, RATE | {"rho": 0.8, "epsilon": 1e-3}),
    "tf1.AdagradDA": (tf1.AdagradDA, RATE | L1_L2),
    "tf1.Adam": (tf1.Adam, RATE | DECAYS),
    "tf1.RMSProp": (tf1.RMSProp, RATE | {"decay": 0.8, "momentum": 0.7, "epsilon": 1e-3}),
    "tf1.Ftrl": (tf1.Ftrl, RATE | L1_L2 | {"learning_rate_power": -0.4}),
    "tf1.ProximalAdagrad": (tf1.ProximalAdagrad, RATE | L1_L2),
    "tf1.ProximalGradientDescent": (tf1.ProximalGradientDescent, RATE | L1_L2),
    "contrib.AdaMax": (tf_contrib.AdaMax, RATE | DECAYS),
    "contrib.AdamW": (tf_contrib.AdamW, RATE | DECAYS | {"weight_decay": 0.01}),
    "contrib.AddSign": (tf_contrib.AddSign, RATE | {"alpha": 0.8, "beta": 0.7}),
    "contrib.PowerSign": (tf_contrib.PowerSign, RATE | {"base": 2.0, "beta": 0.7}),
    "contrib.GGT": (tf_contrib.GGT, RATE | {"beta1": 0.8, "eps": 1e-3, "sigma_eps": 0.1}),
    "contrib.LARS": (tf_contrib.LARS, RATE | {"momentum": 0.7, "weight_decay": 0.01, "eeta": 0.1}),
    "contrib.LazyAdam": (tf_contrib.LazyAdam, RATE | DECAYS),
    "contrib.MomentumW": (tf_contrib.MomentumW, RATE | {"momentum": 0.7, "weight_decay": 0.01}),
    "contrib.Nadam": (tf_contrib.Nadam, RATE | DECAYS),
    "contrib.RegAdagrad": (tf_contrib.RegAdagrad, RATE),
    "contrib.Shampoo": (tf_contrib.Shampoo, RATE | {"epsilon": 1e-3}),
    "contrib.ExtendWD_Adam": (tf_contrib.ExtendWD_Adam, RATE | DECAYS | {"weight_decay": 0.01}),
    "returnn.AMSGrad": (returnn.AMSGrad, RATE | {"beta1": 0.8, "beta2": 0.95}),
    "keras.SGD": (keras.SGD, RATE | {"momentum": 0.7, "decay": 0.1, "clipnorm": 1.0}),
    "keras.RMSprop": (keras.RMSprop, RATE | {"rho": 0.8, "momentum": 0.7, "epsilon": 1e-3}),
    "keras.Adagrad": (keras.Adagrad, RATE | {"epsilon": 1e-3}),
    "keras.Adadelta": (keras.Adadelta, RATE | {"rho": 0.8, "epsilon": 1e-3}),
    "keras.Adam": (keras.Adam, RATE | KERAS_DECAYS),
    "keras.Adamax": (keras.Adamax, RATE | KERAS_DECAYS),
    "keras.Nadam": (keras.Nadam, RATE | KERAS_DECAYS),
    "keras.Ftrl": (keras.Ftrl, RATE | L1_L2 | {"learning_rate_power": -0.4, "beta": 0.1}),
    "keras3.AdamW": (keras3.AdamW, RATE | KERAS_DECAYS | {"weight_decay": 0.01}),
    "keras3.Adafactor": (keras3.Adafactor, RATE | {"beta_2_decay": -0.7, "epsilon_2": 1e-2}),
    "keras3.Lion": (keras3.Lion, RATE | {"beta_1": 0.8, "beta_2": 0.95}),
    "keras3.Muon": (keras3.Muon, RATE | {"momentum": 0.7, "adam_beta_1": 0.8}),
}


def loss_fn(params):
    return jnp.sum(params["w"] ** 2)


def nine_tenths():
    return 0.9


def called(numbers):
    """Functions in the place of numbers, which they look up."""
    return {name: functools.partial(looked_up, numbers, name) for name in numbers}


def looked_up(numbers, name):
    return numbers[name]


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-7), a, b)


def by_updates(tx, steps=3):
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(steps):
        updates, state = tx.update(jax.grad(loss_fn)(params), state, params)
        params = gx.apply_updates(params, updates)
    return params


def by_step(tx, steps=3):
    params, state = jax.tree.map(jnp.copy, PARAMS), tx.init(PARAMS)
    step = gx.make_step(tx, loss_fn)
    for _ in range(steps):
        params, state, _ = step(params, state)
    return params


def by_holder(tx, steps=3):
    opt, params = gx.Optimizer(tx), PARAMS
    for _ in range(steps):
        params, _ = opt.minimize(loss_fn, params)
    return params


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("run", [by_updates, by_step, by_holder])
def test_every_number_may_be_a_function(run, name):
    door, numbers = DOORS[name]
    close(run(door(**called(numbers))), run(door(**numbers)))


@pytest.mark.parametrize("run", [by_updates, by_step, by_holder])
def test_a_function_is_called_at_each_update(run):
    class Momentum:
        """0.5, and after two steps 0.9."""

        calls = 0

        def __call__(self):
            self.calls += 1
            return 0.5 if self.calls <= 3 else 0.9  # init asks, too

    got = run(keras.SGD(0.1, Momentum()), 4)
    params, state = PARAMS, keras.SGD(0.1, 0.5).init(PARAMS)
    for momentum in (0.5, 0.5, 0.9, 0.9):
        tx = keras.SGD(0.1, momentum)
        updates, state = tx.update(jax.grad(loss_fn)(params), state, params)
        params = gx.apply_updates(params, updates)
    close(got, params)


class Rate:
    """A rate that needs no argument and can take one, which the originals do not give it."""

    def __call__(self, rate=0.1):
        return rate


class OwnSchedule(keras.schedules.LearningRateSchedule):
    """Its class says that it is a schedule, though it can be called without a step."""

    def __call__(self, step=0):
        return rising(step)

    def get_config(self):
        return {}


NEED_NO_ARGUMENT = {
    "a default": lambda rate=0.1: rate,
    "a keyword": lambda *, rate=0.1: rate,
    "any arguments": lambda *args: 0.1 + len(args),
    "any keywords": lambda **kwargs: 0.1 + len(kwargs),
    "partial": functools.partial(lambda scale, rate: scale * rate, 2.0, rate=0.05),
    "partial with a default": functools.partial(lambda scale, rate=0.05: scale * rate, 2.0),
    "an object": Rate(),
    "a method": Rate().__call__,
}
BY_ARGUMENT = {
    "tf1": tf1.GradientDescent,
    "contrib": lambda rate: tf_contrib.MomentumW(0.0, rate, 0.0),
    "contrib, a decay": lambda decay: tf_contrib.MomentumW(decay, 0.1, 0.0),
    "contrib, extended": lambda decay: tf_contrib.ExtendWD_GradientDescent(decay, 0.1),
    "returnn": returnn.CustomGradientDescent,
    "keras": lambda rate: keras.SGD(rate, decay=0.0),
    "keras, lr": lambda rate: keras.SGD(lr=rate),
    "keras, a momentum": lambda momentum: keras.SGD(0.1, momentum),
    "keras3": keras3.SGD,
}


@pytest.mark.parametrize("door", BY_ARGUMENT)
@pytest.mark.parametrize("function", NEED_NO_ARGUMENT)
def test_what_can_be_called_without_arguments_is_called_so(function, door):
    made = BY_ARGUMENT[door]
    close(by_updates(made(NEED_NO_ARGUMENT[function]), 2), by_updates(made(0.1), 2))


def test_what_needs_the_count_is_a_schedule():
    close(by_updates(tf1.GradientDescent(OwnSchedule())), by_updates(tf1.GradientDescent(rising)))
    with pytest.raises(TypeError, match=r"a function of one argument, the count; .* \(n, m\)"):
        tf1.GradientDescent(lambda n, m: 0.1)
    # The original calls the functions of this one with the step.
    two_rates = tf_contrib.Shampoo(learning_rate=lambda t=7: 0.1 * jnp.asarray(t, jnp.float32))
    close(by_updates(two_rates), by_updates(tf_contrib.Shampoo(learning_rate=0.1)))


def rising(n):
    return 0.1 * jnp.asarray(n + 1, jnp.float32)


def test_a_step_is_compiled_once_for_all_numbers():
    numbers, traced = {"momentum": 0.5}, []

    def counted(params):
        traced.append(None)
        return loss_fn(params)

    opt, params, traces = gx.Optimizer(keras.SGD(0.1, **called(numbers))), PARAMS, []
    for _ in range(4):
        params, _ = opt.minimize(counted, params)
        numbers["momentum"] += 0.1
        traces.append(len(traced))
    assert traces[0] == traces[-1]


def test_under_jit_it_would_be_a_constant_and_is_refused():
    tx = keras.Adam(0.1, beta_1=lambda: 0.9)
    state = tx.init(PARAMS)
    words = " the function .* cannot be called under jax.jit, which would keep"
    with pytest.raises(TypeError, match="Adam: beta_1:" + words):
        jax.jit(tx.update)(PARAMS, state, PARAMS)
    close(jax.jit(tx.init)(PARAMS), state)  # which does not depend on it
    assert "Adam" in str(gx.describe(tx, PARAMS)) or gx.describe(tx, PARAMS)
    tx = keras.Adagrad(0.1, initial_accumulator_value=lambda: 0.5)
    with pytest.raises(TypeError, match="Adagrad: initial_accumulator_value:" + words):
        jax.jit(tx.init)(PARAMS)


def test_a_number_is_checked_at_each_step():
    numbers = {"beta_1": 0.9}
    opt, step = (f(keras.Adam(0.1, **called(numbers))) for f in (gx.Optimizer, stepper))
    for run in (opt.minimize, step):
        numbers["beta_1"] = 0.9
        run(loss_fn, PARAMS)
        numbers["beta_1"] = 1.5
        with pytest.raises(ValueError, match=r"Adam: beta_1: .*got 1\.5"):
            run(loss_fn, PARAMS)


def stepper(tx):
    """A step that keeps its state, as a holder does."""
    step, state = gx.make_step(tx, loss_fn), tx.init(PARAMS)
    return lambda _, params: step(*jax.tree.map(jnp.copy, (params, state)))


def test_it_goes_beside_injected_numbers_and_into_a_config_of_returnn():
    tx = gx.inject_hyperparams(lambda rate: keras.Adam(rate, beta_1=nine_tenths))(0.1)
    close(by_updates(tx), by_updates(keras.Adam(0.1)))
    config = {"optimizer": {"class": "adam", "beta1": nine_tenths}, "learning_rate": 0.1}
    close(by_updates(returnn.from_config(config)), by_updates(tf1.Adam(0.1)))


@pytest.mark.parametrize("run", [by_updates, by_step, by_holder])
@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (1.5, ValueError, r"b1 must be in \[0, 1\), got 1.5"),
        ("x", TypeError, "a schedule's value"),
        (None, TypeError, "a schedule's value"),
    ],
)
def test_a_wrong_number_is_named(run, wrong, kind, words):
    with pytest.raises(kind, match=f"Adam: beta_1: .*{words}"):
        run(keras.Adam(0.1, beta_1=lambda: wrong))


def test_other_arguments_are_checked_at_once():
    with pytest.raises(ValueError, match=r"beta_2.*got 2\.0"):
        keras.Adam(0.1, beta_1=lambda: 0.9, beta_2=2.0)
    with pytest.raises(TypeError, match=r"^Adam has no argument beta_3; did you mean beta_2\?$"):
        keras.Adam(0.1, beta_1=lambda: 0.9, beta_3=0.9)
    with pytest.raises(TypeError, match="rho must be a number, got the function"):
        keras.RMSprop(0.1, rho=lambda count: 0.9)  # a schedule, which Keras does not have there


def test_it_is_a_value_that_prints_as_its_call():
    one, other = (keras.RMSprop(0.1, rho=nine_tenths) for _ in range(2))
    assert one == other and hash(one) == hash(other) and pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == "RMSprop(rho=nine_tenths, learning_rate=0.1)"


def test_slots_names_and_checkpoints_are_those_of_the_optimizer():
    plain, tx = tf1.Adam(0.1), tf1.Adam(0.1, beta1=lambda: 0.9, name="Mine")
    grads = jax.grad(loss_fn)(PARAMS)
    _, state = tx.update(grads, tx.init(PARAMS), PARAMS)
    _, plain_state = plain.update(grads, plain.init(PARAMS), PARAMS)
    slots, plain_slots = (gx.get_slots(x, s, "tf1") for x, s in ((tx, state), (plain, plain_state)))
    close(slots, plain_slots)
    arrays = tf1.to_checkpoint(tx, state, PARAMS)
    assert {"w/Mine", "w/Mine_1", "beta1_power"} <= set(arrays)
    _, again = tf1.from_checkpoint(tx, PARAMS, arrays)
    close(again, state)
    assert gx.Optimizer(tx, names="tf1").get_name() == "Mine"
    tx = keras.SGD(0.1, lambda: 0.9)
    weights = keras.get_weights(tx, tx.init(PARAMS), PARAMS)
    assert [x.shape for x in weights] == [(), (3, 2)]


def test_a_config_has_the_numbers_of_the_moment():
    numbers = {"learning_rate": 0.5, "momentum": 0.7}
    tx = keras.SGD(**called(numbers), clipnorm=1.0)
    assert keras.serialize(tx) == keras.serialize(keras.SGD(0.5, 0.7, clipnorm=1.0))
    numbers["momentum"] = 0.25
    assert keras.serialize(tx)["config"]["momentum"] == 0.25
    only_rate = keras.Adam(lambda: 0.25)
    assert keras.serialize(only_rate) == keras.serialize(keras.Adam(0.25))


def test_attributes_of_a_holder_are_numbers_and_setting_one_keeps_the_others():
    numbers = {"learning_rate": 0.5, "momentum": 0.7}
    opt = gx.Optimizer(keras.SGD(**called(numbers)), PARAMS)
    numbers["momentum"] = 0.6
    assert (opt.learning_rate, opt.momentum) == (0.5, 0.6)
    opt.momentum = 0.1
    numbers["learning_rate"] = 0.25
    assert (opt.learning_rate, opt.momentum) == (0.25, 0.1)
    opt.momentum = lambda: numbers["momentum"]
    numbers["momentum"] = 0.9
    assert opt.momentum == 0.9
    params, state = PARAMS, keras.SGD(0.25, 0.9).init(PARAMS)
    updates, _ = keras.SGD(0.25, 0.9).update(jax.grad(loss_fn)(params), state, params)
    close(opt.minimize(loss_fn, PARAMS)[0], gx.apply_updates(params, updates))


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("kind", ["number", "function", "schedule"])
def test_the_learning_rate_of_every_door_can_be_read(kind, name):
    door, numbers = DOORS[name]
    rates = {
        "number": 0.25,
        "function": lambda: 0.25,
        "schedule": lambda n: 0.5 / (1.0 + jnp.asarray(n, jnp.float32)),
    }
    if kind == "schedule" and name == "keras.Nadam":
        pytest.skip("it does not take schedules")
    tx = door(**numbers | {"learning_rate": rates[kind]})
    _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    rate = gx.current_learning_rate(tx, state)
    decay = 1 + numbers.get("decay", 0.0) if name == "keras.SGD" else 1.0
    np.testing.assert_allclose(rate, 0.25 / decay, 1e-6)


def test_an_injected_optimizer_is_written_with_the_numbers_in_its_state():
    tx = gx.inject_hyperparams(keras.SGD)(0.5, momentum=0.7)
    assert keras.serialize(tx) == keras.serialize(keras.SGD(0.5, 0.7))
    opt = gx.Optimizer(tx, PARAMS, name="mine")
    opt.momentum = 0.25
    assert keras.serialize(opt) == keras.serialize(keras.SGD(0.5, 0.25), "mine")
    assert opt.momentum == 0.25 and keras.get(opt) is opt

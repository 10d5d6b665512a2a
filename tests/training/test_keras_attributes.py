"""A holder of a Keras optimizer has its arguments as attributes, by Keras's names."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import keras as keras_of_3
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, keras3, tf1
from gradxform.training.absent_methods import INSTEAD
from tests.environment import ROOT

pytestmark = pytest.mark.numeric

K, K_VARIABLE = keras_of_3.optimizers, keras_of_3.Variable
PARAMS = {"w": jnp.ones(2), "b": jnp.full(3, 2.0)}
GRADS = {"w": jnp.array([1.0, -2.0]), "b": jnp.array([0.5, 0.0, 3.0])}


@pytest.mark.parametrize(
    ("tx", "arguments"),
    [
        (keras.SGD(0.1, 0.9), {"learning_rate": 0.1, "momentum": 0.9, "clipnorm": None}),
        (keras.Adam(0.1, clipvalue=2.0), {"beta_1": 0.9, "epsilon": 1e-7, "clipvalue": 2.0}),
        (keras.RMSprop(0.1, 0.8), {"rho": 0.8, "centered": False, "global_clipnorm": None}),
        (keras3.AdamW(0.1), {"weight_decay": 0.004, "use_ema": False, "clipnorm": None}),
    ],
)
def test_arguments_are_read_by_kerass_names(tx, arguments):
    opt = gx.Optimizer(tx)
    for name, value in arguments.items():
        assert getattr(opt, name) == value, name
    assert not hasattr(opt, "no_such_argument")


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "make"),
    [
        ("learning_rate", 0.5, lambda x: keras.SGD(x, 0.9)),
        ("momentum", 0.5, lambda x: keras.SGD(0.1, x)),
        ("nesterov", True, lambda x: keras.SGD(0.1, 0.9, nesterov=x)),
        ("clipnorm", 0.5, lambda x: keras.SGD(0.1, 0.9, clipnorm=x)),
        (
            "learning_rate",
            keras.schedules.ExponentialDecay(0.1, 10, 0.5),
            lambda x: keras.SGD(x, 0.9),
        ),
    ],
)
def test_an_argument_that_is_set_counts_from_the_next_step(begun, name, value, make):
    old, new = keras.SGD(0.1, 0.9), make(value)
    opt, params, state = gx.Optimizer(old), PARAMS, old.init(PARAMS)
    if begun:
        params = opt.apply_gradients(GRADS, params)
        updates, state = old.update(GRADS, state, PARAMS)
    setattr(opt, name, value)
    assert getattr(opt, name) == value
    assert opt.tx == new
    trace = gx.get_slots(old, state)["trace"]
    state = gx.set_slots(new, new.init(PARAMS), {"trace": trace, "count": int(begun)})
    for _ in range(2):
        updates, state = new.update(GRADS, state, params)
        expected = gx.apply_updates(params, updates)
        params = opt.apply_gradients(GRADS, params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), params, expected)


def test_a_clip_is_switched_off_and_a_schedule_gives_way_to_a_number():
    opt = gx.Optimizer(keras.SGD(keras.schedules.ExponentialDecay(0.1, 10, 0.5), clipnorm=1.0))
    opt.apply_gradients(GRADS, PARAMS)
    opt.clipnorm = None
    opt.learning_rate = 0.25
    assert opt.tx == keras.SGD(0.25)
    params = opt.apply_gradients(GRADS, PARAMS)
    np.testing.assert_allclose(params["w"], PARAMS["w"] - 0.25 * GRADS["w"])
    assert opt.iterations == 2


def test_the_old_name_of_the_rate_warns():
    opt = gx.Optimizer(keras.SGD(0.1))
    with pytest.warns(UserWarning, match="`lr` argument is deprecated, use `learning_rate`"):
        assert opt.lr == 0.1
    with pytest.warns(UserWarning, match="`lr` argument is deprecated"):
        opt.lr = 0.5
    assert opt.learning_rate == 0.5


def test_what_cannot_be_set_is_named():
    opt = gx.Optimizer(keras3.AdamW(0.1))
    with pytest.raises(AttributeError, match="use_ema decides what the state holds"):
        opt.use_ema = True
    with pytest.raises(AttributeError, match=r"has no attribute 'rho'\. A number is set as "):
        opt.rho = 0.9
    with pytest.raises(AttributeError, match="has no attribute 'learning_rate'"):
        _ = gx.Optimizer(gx.scale(-0.1)).learning_rate
    with pytest.raises(
        AttributeError, match=r"has no attribute 'clipnorn'\. Did you mean 'clipnorm'"
    ):
        _ = opt.clipnorn
    with pytest.raises(ValueError, match=r"^Optimizer: .*clipnorm"):
        opt.clipnorm = -1.0
    with pytest.raises(TypeError, match=r"^Optimizer: .*learning_rate must be a number or a sched"):
        opt.learning_rate = "x"


def test_config_name_weights_and_slots_are_kerass():
    opt = gx.Optimizer(keras.Adam(0.1), PARAMS, names="keras")
    assert opt.get_config() == keras.serialize(keras.Adam(0.1))["config"]
    assert opt.get_name() == "Adam"
    named = gx.Optimizer(keras.Adam(0.1), PARAMS, names="keras", name="mine")
    assert named.get_config()["name"] == named.get_name() == "mine"
    for mine, other in zip(opt.weights, opt.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    with pytest.raises(KeyError, match="the slot 'momentum' does not exist, only 'm', 'v'"):
        opt.get_slot("w", "momentum")
    for again in (copy.copy(opt), pickle.loads(pickle.dumps(opt))):
        assert again.beta_2 == 0.999


def test_a_name_of_keras_is_not_taken_for_a_field_of_the_same_name():
    """Keras's `decay` is that of the rate; here the momentum's field is called so."""
    opt = gx.Optimizer(keras.SGD(0.1, 0.9), PARAMS)
    opt.decay = 0.5
    assert opt.tx == keras.SGD(0.1, 0.9, decay=0.5)
    assert opt.momentum == 0.9


@pytest.mark.parametrize("value", [np.float32(0.5), jnp.asarray(0.5), 1])
@pytest.mark.parametrize("name", ["learning_rate", "momentum"])
def test_a_scalar_array_is_a_number(name, value):
    opt = gx.Optimizer(keras.SGD(0.1, 0.9), PARAMS)
    setattr(opt, name, 0.5 * value)
    assert opt.tx == keras.SGD(**{"learning_rate": 0.1, "momentum": 0.9, name: float(0.5 * value)})


def test_an_average_of_the_parameters_goes_on():
    make = lambda **more: keras3.SGD(0.1, use_ema=True, ema_momentum=0.5, **more)  # noqa: E731
    opt, plain = gx.Optimizer(make()), gx.Optimizer(make())
    params = opt.apply_gradients(GRADS, PARAMS)
    other = plain.apply_gradients(GRADS, PARAMS)
    opt.clipnorm = 100.0  # which clips nothing here
    assert opt.tx == make(clipnorm=100.0)
    for _ in range(2):
        params, other = opt.apply_gradients(GRADS, params), plain.apply_gradients(GRADS, other)
    averages = [gx.eval_params(x.state, y) for x, y in ((opt, params), (plain, other))]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), *averages)


# -------------------------------------------------------------------------- any other optimizer


@pytest.mark.parametrize(
    ("tx", "values"),
    [
        (gx.sgd(0.1, 0.9), {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False}),
        (gx.adamw(0.1), {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "weight_decay": 1e-4}),
        (
            gx.chain(gx.clip(2.0), gx.lion(0.1)),
            {"clipvalue": 2.0, "clipnorm": None},
        ),
        (gx.rmsprop(0.1, momentum=0.5), {"rho": 0.9, "momentum": 0.5, "global_clipnorm": None}),
        (tf1.Momentum(0.1, 0.9), {"learning_rate": 0.1, "momentum": 0.9, "clipnorm": None}),
        (tf1.Momentum(0.1, lambda: 0.9), {"learning_rate": 0.1, "momentum": 0.9}),
        (gx.MultiSteps(gx.adam(0.1), 2), {"learning_rate": 0.1, "beta_1": 0.9}),
    ],
    ids=str,
)
def test_parts_are_read_by_kerass_names(tx, values):
    opt = gx.Optimizer(tx)
    assert {name: getattr(opt, name) for name in values} == values


def test_a_clip_is_set_and_taken_away_where_there_was_none():
    opt = gx.Optimizer(gx.adam(0.1), PARAMS)
    opt.clipnorm = 0.5
    opt.clipvalue = 1.0
    assert (opt.clipnorm, opt.clipvalue, opt.global_clipnorm) == (0.5, 1.0, None)
    assert opt.tx == gx.chain(gx.clip(1.0), gx.clip_by_block_norm(0.5), *gx.adam(0.1).transforms)
    opt.apply_gradients(GRADS, PARAMS)
    mu = opt.state[2].mu["w"]
    np.testing.assert_allclose(mu, 0.1 * 0.5 * np.array([1.0, -1.0]) / np.sqrt(2), 1e-6)
    opt.clipnorm = opt.clipvalue = None
    assert opt.tx == gx.adam(0.1) and opt.clipnorm is None
    np.testing.assert_array_equal(opt.state[0].mu["w"], mu)


def test_a_schedule_is_put_in_and_goes_on_at_the_step():
    schedule = keras.schedules.ExponentialDecay(0.5, 1, 0.5)
    opt, params = gx.Optimizer(gx.sgd(0.5)), PARAMS
    for rate in (0.5, schedule, 0.25, schedule):
        opt.learning_rate = rate
        assert opt.learning_rate == rate
        new = opt.apply_gradients(GRADS, params)
        used = rate if isinstance(rate, float) else 0.5**opt.iterations
        np.testing.assert_allclose(new["w"], params["w"] - used * GRADS["w"], 1e-6)
        params = new
    assert opt.tx == gx.sgd(schedule)


def test_numbers_of_parts_are_set_and_their_ranges_checked():
    opt = gx.Optimizer(gx.adam(0.1), PARAMS)
    opt.beta_1, opt.epsilon = 0.5, 1e-3
    assert opt.tx == gx.adam(0.1, b1=0.5, eps=1e-3)
    with pytest.warns(UserWarning, match="`lr` argument is deprecated, use `learning_rate`"):
        opt.lr = 0.25
    assert opt.learning_rate == 0.25
    with pytest.raises(ValueError, match=r"b1 must be in \[0, 1\), got 1\.5"):
        opt.beta_1 = 1.5
    injected = gx.Optimizer(gx.inject_hyperparams(gx.adam)(0.1), PARAMS)
    injected.beta_1 = 0.5
    assert injected.beta_1 == injected.state.hyperparams["b1"] == 0.5
    groups = gx.partition({"a": gx.sgd(0.1), "b": gx.sgd(0.2)}, {"w": "a", "b": "b"})
    with pytest.raises(AttributeError, match=r"several parts have a learning_rate, 0\.1, 0\.2;"):
        _ = gx.Optimizer(groups).learning_rate
    with pytest.raises(AttributeError, match="several parts have a learning_rate"):
        gx.Optimizer(groups).learning_rate = 0.3
    with pytest.raises(AttributeError, match="has no attribute 'rho'"):
        _ = opt.rho


@pytest.mark.parametrize("tx", [gx.sgd(0.1), keras.SGD(0.1), tf1.Momentum(0.1, 0.9)])
def test_the_name_that_was_given_stays(tx):
    opt = gx.Optimizer(tx, PARAMS, name="mine")
    opt.clipnorm = 1.0
    assert opt.get_config()["name"] == opt.get_name() == "mine"


@pytest.mark.parametrize("within", [jax.jit, jax.vmap])
@pytest.mark.parametrize("call", ["minimize", "apply_gradients"])
def test_a_holder_is_refused_where_its_state_would_be_traced(call, within):
    opt = gx.Optimizer(keras.SGD(0.1, 0.9), {"w": jnp.ones(())})
    first = PARAMS if call == "apply_gradients" else lambda p: jnp.sum(p["w"])
    with pytest.raises(RuntimeError, match=r"^Optimizer: keeps its state between calls.*replicas="):
        within(lambda w: getattr(opt, call)({"w": w} if first is PARAMS else first, {"w": w}))(
            jnp.ones(2)
        )


# ------------------------------------------------------------------------- methods of Keras's own


def rows_of_absent_methods():
    """The table of the documentation: by each name, what takes its place."""
    text = (ROOT / "docs" / "doors.md").read_text("utf-8")
    section = text.split("## What a holder lacks\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    cells = [re.split(r" \| ", line.strip("| ").replace("`", "")) for line in lines]
    return {name: instead for names, instead in cells for name in names.split(", ")}


def test_what_a_holder_lacks_is_in_the_table_and_says_what_to_write():
    assert rows_of_absent_methods() == INSTEAD
    for opt in (gx.Optimizer(keras3.Adam(0.1), PARAMS), gx.Optimizer(gx.adam(0.1))):
        for name, instead in INSTEAD.items():
            with pytest.raises(AttributeError) as caught:
                getattr(opt, name)
            assert str(caught.value) == (
                f"Optimizer: {name} is of optimizers of TensorFlow or Keras; here, {instead}."
            )


# Keras warns of its own arrays in NumPy 2.
OF_KERAS = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@OF_KERAS
def test_a_holder_has_all_else_that_an_optimizer_of_keras_has():
    opt = gx.Optimizer(keras3.Adam(0.1), PARAMS, names="keras3")
    theirs = K.Adam(0.1)
    for name in dir(theirs):
        if not name.startswith("_") and name not in INSTEAD:
            mine = getattr(opt, name)
            kinds = int, float, bool, type(None)
            if name != "variables" and isinstance(value := getattr(theirs, name), kinds):
                assert mine == value and type(mine) is type(value), name
    for name in ("get_slot", "get_slot_names", "get_gradients", "minimize", "weights"):  # older
        assert hasattr(opt, name)


@OF_KERAS
@pytest.mark.parametrize("name", ["Adam", "SGD", "Adagrad", "RMSprop", "Ftrl", "AdamW", "Adamax"])
def test_the_config_is_that_of_keras_3(name):
    opt = gx.Optimizer(getattr(keras3, name)(0.25), names="keras3")
    theirs = getattr(K, name)(0.25).get_config()
    mine = opt.get_config()
    assert mine.keys() == theirs.keys()
    del theirs["name"]  # in which Keras counts its optimizers
    for key, value in theirs.items():
        assert mine[key] == (pytest.approx(value) if isinstance(value, float) else value), key
    opt.weight_decay = 0.125  # an option of Keras 3 alone, also where both have the optimizer
    assert opt.tx == getattr(keras3, name)(0.25, weight_decay=0.125)
    assert opt.weight_decay == 0.125


@OF_KERAS
def test_parameters_are_excluded_from_the_decay_by_an_optimizer_of_their_own():
    weights = [np.array([1.0, -2.0], np.float32), np.array([3.0, 4.0], np.float32)]
    kernel, bias = (
        K_VARIABLE(x, name=name) for x, name in zip(weights, ("kernel", "bias"), strict=True)
    )
    theirs = K.AdamW(0.1, weight_decay=0.5)
    theirs.exclude_from_weight_decay(var_names=["bias"])
    params = {"kernel": jnp.asarray(weights[0]), "bias": jnp.asarray(weights[1])}
    excluded = {"bias": keras3.Adam(0.1)}
    decayed = keras3.AdamW(0.1, weight_decay=0.5)
    opt = gx.Optimizer(keras3.MultiOptimizer(keras3.OptimizerMap(decayed, excluded)))
    for scale in (1.0, -0.5, 2.0):
        grads = {"kernel": jnp.full(2, scale), "bias": jnp.full(2, 3 * scale)}
        theirs.apply([grads["kernel"], grads["bias"]], [kernel, bias])
        params = opt.apply_gradients(grads, params)
    np.testing.assert_allclose(params["kernel"], kernel.numpy(), rtol=1e-5)
    np.testing.assert_allclose(params["bias"], bias.numpy(), rtol=1e-5)
    with pytest.raises(ValueError, match=r"^from_keras: exclude_from_weight_decay is not part of"):
        keras.from_keras(theirs)

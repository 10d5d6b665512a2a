"""A holder of a Keras optimizer has its arguments as attributes, by Keras's names."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, keras3

pytestmark = pytest.mark.numeric

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
        _ = gx.Optimizer(gx.chain(gx.clip(1.0), gx.lion(0.1))).learning_rate
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

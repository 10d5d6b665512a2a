"""`MultiOptimizer` beside that of Keras 3: numbers, configs, weights and files; what is refused."""

import contextlib
import json

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import gradxform as gx
from gradxform import compat
from gradxform.compat import keras3
from tests.public import names_of

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.xdist_group("keras"),  # one process imports it
    # In `Variable.numpy` of Keras 3, which NumPy 2 asks for a copy.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def promotion():
    """Keras relies on it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


O = keras.optimizers
RANDOM = np.random.default_rng(0)
# In Keras's order, which is not that of the tree.
SHAPES = {
    "encoder/kernel": (3, 2),
    "encoder/bias": (2,),
    "decoder/kernel": (2, 4),
    "decoder/bias": (4,),
    "head/scale": (4,),
}
ORDER = list(SHAPES)


def tree_of(arrays):
    """The arrays by path as a tree."""
    tree = {}
    for path, x in arrays.items():
        group, name = path.split("/")
        tree.setdefault(group, {})[name] = x
    return tree


def arrays():
    return {k: RANDOM.normal(size=s).astype(np.float32) for k, s in SHAPES.items()}


START, GRADS = arrays(), [arrays() for _ in range(14)]


def variables_of(params):
    made = []
    for path in ORDER:
        group, name = path.split("/")
        with contextlib.ExitStack() as stack:
            stack.enter_context(keras.name_scope(group))
            made.append(keras.Variable(params[path], name=name))
    assert [v.path for v in made] == ORDER
    return made


def there(optimizer, variables, grads):
    for g in grads:
        optimizer.apply([g[k] for k in ORDER], variables)
    return {k: np.asarray(v.value) for k, v in zip(ORDER, variables, strict=True)}


def here(tx, state, params, grads):
    params = tree_of(params)
    update = jax.jit(tx.update)
    for g in grads:
        updates, state = update(tree_of(g), state, params)
        params = gx.apply_updates(params, updates)
    return {k: params[k.split("/")[0]][k.split("/")[1]] for k in ORDER}, state


def close(ours, theirs, atol=5e-6):
    for k in ORDER:
        scale = np.max(np.abs(theirs[k]))
        np.testing.assert_allclose(ours[k], theirs[k], rtol=0, atol=atol * scale, err_msg=k)


def weights_of(optimizer):
    return [np.asarray(v.value) for v in optimizer.variables]


def decayed():
    return O.AdamW(0.01, clipnorm=0.5, use_ema=True, ema_overwrite_frequency=3)


def one_under_two_keys():
    shared = O.Adam(0.05)
    map_ = O.OptimizerMap(O.SGD(0.1), {"encoder/kernel": shared, "encoder/b.*": O.Lion(0.01)})
    map_["decoder/.*"] = shared
    return O.MultiOptimizer(map_)


def default_under_a_key():
    shared = O.RMSprop(0.01, momentum=0.5)
    map_ = O.OptimizerMap(shared, {"decoder/.*": O.Adagrad(0.1), "head/scale": shared})
    return O.MultiOptimizer(map_)


MULTI = {
    "two": lambda: O.MultiOptimizer(
        O.OptimizerMap(O.SGD(0.1, momentum=0.9), {"encoder/.*": O.Adam(0.05)})
    ),
    "an exact path": lambda: O.MultiOptimizer(
        O.OptimizerMap(
            decayed(),
            {
                "decoder/.*": O.SGD(O.schedules.ExponentialDecay(0.1, 4, 0.5), momentum=0.9),
                "decoder/bias": O.Nadam(0.01),
                ".*/scale": O.Adam(0.05, gradient_accumulation_steps=3, global_clipnorm=0.5),
            },
        )
    ),
    "a factor": lambda: O.MultiOptimizer(
        O.OptimizerMap(
            O.SGD(0.1, loss_scale_factor=16.0), {"encoder/.*": O.Adam(0.05, loss_scale_factor=2.0)}
        ),
        loss_scale_factor=4.0,
    ),
    "factors inside do not count": lambda: O.MultiOptimizer(
        O.OptimizerMap(O.SGD(0.1, loss_scale_factor=16.0), {"head/.*": O.Adafactor(0.05)})
    ),
    "all but the default": lambda: O.MultiOptimizer(
        O.OptimizerMap(O.Nadam(0.1), {"encoder/.*": O.Adam(0.05), "(?!encoder).*": O.SGD(0.1)})
    ),
    "the default alone": lambda: O.MultiOptimizer(O.OptimizerMap(O.Adam(0.05))),
    "all by path": lambda: O.MultiOptimizer(
        O.OptimizerMap(O.Adadelta(1.0), {k: O.SGD(0.1 * i + 0.1) for i, k in enumerate(ORDER)})
    ),
}


@pytest.mark.parametrize("name", MULTI)
def test_seven_steps_there_and_seven_more_here(name):
    optimizer, variables = MULTI[name](), variables_of(START)
    tx = compat.keras.deserialize(O.serialize(optimizer))
    middle = there(optimizer, variables, GRADS[:7])
    fresh, state = here(tx, tx.init(tree_of(START)), START, GRADS[:7])
    close(fresh, middle, 2e-5)  # Keras rounds 1 - beta^t, which counts in the first steps
    theirs = weights_of(optimizer)
    for made in (state, compat.keras.set_weights(tx, tree_of(middle), theirs, 3, ORDER)):
        back = compat.keras.get_weights(tx, made, tree_of(middle), version=3, order=ORDER)
        assert len(back) == len(theirs)
        for ours, x in zip(back, theirs, strict=True):
            np.testing.assert_allclose(ours, x, rtol=2e-5, atol=1e-6)
    state = compat.keras.set_weights(tx, tree_of(middle), theirs, 3, ORDER)
    after, state = here(tx, state, middle, GRADS[7:11])
    close(after, there(optimizer, variables, GRADS[7:11]))
    # And there again, with a new optimizer that has our weights.
    again, variables = MULTI[name](), variables_of({k: np.asarray(x) for k, x in after.items()})
    again.build(variables)
    ours = compat.keras.get_weights(tx, state, tree_of(after), 3, ORDER)
    for v, x in zip(again.variables, ours, strict=True):
        v.assign(x)  # `set_weights` of Keras fails where an optimizer has no parameters
    close(here(tx, state, after, GRADS[11:])[0], there(again, variables, GRADS[11:]))


@pytest.mark.parametrize("name", MULTI)
def test_its_config_goes_round(name):
    config = O.serialize(MULTI[name]())
    tx = compat.keras.deserialize(config)
    ours = json.loads(json.dumps(compat.keras.serialize(tx)))
    assert compat.keras.deserialize(ours) == tx == compat.keras.get(ours)
    assert keras3.MultiOptimizer.from_config(ours["config"]) == tx
    again = O.serialize(keras.saving.deserialize_keras_object(ours))
    assert compat.keras.deserialize(again) == tx
    assert gx.from_json(gx.to_json(tx)) == tx
    if "exact" not in name:  # an AdamW there is an Adam here
        assert _without_names(again) == _without_names(config)


def _without_names(x):
    if isinstance(x, dict):
        return {k: _without_names(v) for k, v in x.items() if k != "name"}
    return x


@pytest.mark.parametrize("make", [one_under_two_keys, default_under_a_key])
def test_one_optimizer_under_two_keys_is_one(make):
    def door(optimizer):
        return compat.keras.deserialize(O.serialize(optimizer))

    optimizer, variables = make(), variables_of(START)
    map_ = optimizer._optimizer_map
    made = {}  # one here for each one there

    def made_of(x):
        return made.setdefault(id(x), door(x))

    tx = keras3.MultiOptimizer(
        keras3.OptimizerMap(made_of(map_.default_optimizer), {k: made_of(map_[k]) for k in map_})
    )
    assert len(tx.transforms[0].transforms.unfreeze()) == len(optimizer.optimizers)
    middle = there(optimizer, variables, GRADS[:4])
    state = compat.keras.set_weights(tx, tree_of(middle), weights_of(optimizer), 3, ORDER)
    close(here(tx, state, middle, GRADS[4:8])[0], there(optimizer, variables, GRADS[4:8]))
    config = compat.keras.serialize(tx)  # in which Keras does not tell one from two either
    assert _without_names(config) == _without_names(O.serialize(optimizer))


def test_a_loss_scale_around_it_takes_the_place_of_its_factor():
    inner = MULTI["a factor"]()
    optimizer = O.LossScaleOptimizer(inner, 8.0, dynamic_growth_steps=3)
    tx = compat.keras.deserialize(O.serialize(optimizer))
    assert tx == keras3.LossScaleOptimizer(
        compat.keras.deserialize(O.serialize(MULTI["a factor"]())), 8.0, 3
    )
    assert compat.keras.deserialize(compat.keras.serialize(tx)) == tx
    optimizer.build(variables_of(START))
    weights = [v.value for v in optimizer.variables]
    state, params = tx.init(tree_of(START)), tree_of(START)
    back = compat.keras.get_weights(tx, state, params, version=3, order=ORDER)
    assert [np.shape(x) for x in back] == [np.shape(x) for x in weights]
    g = {k: 8 * x for k, x in GRADS[0].items()}
    ours, _ = here(tx, state, START, [g])
    plain = compat.keras.deserialize(O.serialize(MULTI["a factor"]())).transforms[1]
    close(ours, here(plain, plain.init(params), START, GRADS[:1])[0])


# ------------------------------------------------------------------------------------------ files


def model_of(optimizer):
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(3, activation="tanh", name="hidden")
    model = keras.Sequential(
        [keras.Input((4,)), hidden, keras.layers.Dense(2, name="out")], name="m"
    )
    model.compile(optimizer, loss="mse")
    return model


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("key", [".*hidden/.*", "m/hidden/kernel"])
def test_it_comes_out_of_a_file(key, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    map_ = O.OptimizerMap(O.SGD(0.1, momentum=0.9), {key: O.Adam(0.01, weight_decay=0.1)})
    model = model_of(O.MultiOptimizer(map_, loss_scale_factor=2.0))
    x = RANDOM.normal(size=(24, 4)).astype(np.float32)
    model.fit(x, x[:, :2], batch_size=6, verbose=0)
    model.save(path)
    order = [v.path for v in model.trainable_variables]
    params = {"m": {}}
    for v in model.trainable_variables:
        _, layer, name = v.path.split("/")
        params["m"].setdefault(layer, {})[name] = np.asarray(v.value)
    tx, state = compat.keras.load_optimizer(path, params, order=order)
    rates = [float(np.float32(x)) for x in (0.1, 0.01)]
    assert tx == keras3.MultiOptimizer(
        keras3.OptimizerMap(
            keras3.SGD(rates[0], 0.9), {key: keras3.Adam(rates[1], weight_decay=0.1)}
        ),
        2.0,
    )
    back = compat.keras.get_weights(tx, state, params, version=3, order=order)
    for ours, theirs in zip(back, weights_of(model.optimizer), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if key.startswith("m/"):  # without the name of the model it would belong to the default
        short = [k.removeprefix("m/") for k in order]
        with pytest.raises(ValueError, match=r"matches none of the .* Keys are matched with the"):
            compat.keras.load_optimizer(path, params["m"], order=short)


# ---------------------------------------------------------------------------------------- the map

SGD, ADAM = keras3.SGD(0.1), keras3.Adam(0.1)


def test_a_map_is_a_dict_that_knows_every_path():
    map_ = keras3.OptimizerMap(SGD, {"encoder/.*": ADAM})
    map_["encoder/bias"] = lion = keras3.Lion()
    assert map_["encoder/kernel"] is ADAM and map_["encoder/bias"] is lion
    assert map_["encoder"] is SGD and map_.default_optimizer is SGD
    assert list(map_) == ["encoder/.*", "encoder/bias"] and len(map_) == 2
    assert "encoder/bias" in map_ and "encoder/kernel" not in map_
    again = keras3.OptimizerMap.from_config(json.loads(json.dumps(map_.get_config())))
    assert again == map_ != keras3.OptimizerMap(ADAM, dict(map_))
    assert eval(repr(map_), names_of(gx) | {"OptimizerMap": keras3.OptimizerMap})
    del map_["encoder/bias"]
    assert map_ != again and map_["encoder/bias"] is ADAM


def test_a_map_that_changes_later_does_not_change_what_was_made_of_it():
    map_ = keras3.OptimizerMap(SGD, {"a": ADAM})
    tx = keras3.MultiOptimizer(map_)
    del map_["a"]
    assert tx == keras3.MultiOptimizer(keras3.OptimizerMap(SGD, {"a": ADAM}))
    assert tx != keras3.MultiOptimizer(map_)


def deleted():
    del keras3.OptimizerMap(SGD, {"encoder": ADAM})["encodr"]


def again(key, optimizer=ADAM):
    map_ = keras3.OptimizerMap(SGD, {"a": ADAM})
    map_[key] = optimizer


def weights(n, version=3, params=None):
    tx = keras3.MultiOptimizer(keras3.OptimizerMap(SGD, {"a": ADAM}))
    params = {"a": jnp.ones(2), "b": jnp.ones(2)} if params is None else params
    return compat.keras.set_weights(tx, params, n, version=version)


def config(**changes):
    inner = {"default_optimizer": compat.keras.serialize(SGD, version=3), "optimizer_map": {}}
    data = {"class_name": "OptimizerMap", "config": inner}
    return {"class_name": "MultiOptimizer", "config": {"optimizer_map": data, **changes}}


def map_config(**changes):
    whole = config()
    whole["config"]["optimizer_map"]["config"] |= changes
    return whole


MAP = keras3.OptimizerMap(SGD, {"a.*": ADAM, ".*b": SGD})
REFUSED = {
    "a function": (
        lambda: keras3.MultiOptimizer(lambda variable: SGD),
        TypeError,
        "MultiOptimizer: optimizer_map must be an OptimizerMap, got the function <lambda>, which "
        "Keras calls with its variables. Write OptimizerMap(default, {'encoder/.*': optimizer})",
    ),
    "a dict": (
        lambda: keras3.MultiOptimizer({"a": SGD}),
        TypeError,
        "MultiOptimizer: optimizer_map must be an OptimizerMap, got",
    ),
    "a factor": (
        lambda: keras3.MultiOptimizer(MAP, 0.0),
        ValueError,
        "MultiOptimizer: loss_scale_factor must be greater than 0, or None, got 0.0.",
    ),
    "a default": (
        lambda: keras3.OptimizerMap(keras3.SGD),
        TypeError,
        "OptimizerMap: default_optimizer must be an optimizer, such as keras3.Adam(), got",
    ),
    "no dict": (
        lambda: keras3.OptimizerMap(SGD, [ADAM]),
        TypeError,
        "OptimizerMap: optimizer_map must be a dict from paths or patterns to optimizers, got",
    ),
    "no optimizer": (
        lambda: again("b", "adam"),
        ValueError,
        "OptimizerMap: the optimizer of 'b' must be an optimizer, such as keras3.Adam(), got 'ada",
    ),
    "a key twice": (lambda: again("a"), ValueError, "the key 'a' has an optimizer already, chain"),
    "a number": (lambda: again(3), ValueError, "a key must be the path of a parameter, or a patt"),
    "nothing": (lambda: again(""), ValueError, "a key must be the path of a parameter, or a patt"),
    "a pattern": (lambda: again("a("), ValueError, "the key 'a(' is not a regular expression"),
    "another key": (deleted, KeyError, "OptimizerMap: no key 'encodr'. Did you mean 'encoder'"),
    "nested": (
        lambda: again("b", keras3.MultiOptimizer(MAP, 2.0)),
        ValueError,
        "OptimizerMap: the optimizer of 'b' is a MultiOptimizer; put its keys into the outer map.",
    ),
    "nested by default": (
        lambda: keras3.OptimizerMap(keras3.MultiOptimizer(MAP)),
        ValueError,
        "OptimizerMap: default_optimizer is a MultiOptimizer",
    ),
    "a loss scale": (
        lambda: again("b", keras3.LossScaleOptimizer(SGD)),
        ValueError,
        "the optimizer of 'b' scales the loss, which only one optimizer may; put LossScaleOptimi",
    ),
    "two keys": (
        lambda: keras3.MultiOptimizer(MAP).init({"ab": jnp.ones(2), "a": jnp.ones(2)}),
        ValueError,
        "MultiOptimizer: the keys 'a.*' and '.*b' all match the parameter 'ab', which has one",
    ),
    "no parameter": (
        lambda: keras3.MultiOptimizer(MAP).init({"b": jnp.ones(2)}),
        ValueError,
        "partition: optimizer_key('a.*') matches none of the parameters 'b'. Keys are matched",
    ),
    "of Keras 2": (
        lambda: weights([], 2),
        ValueError,
        "set_weights: MultiOptimizer is of Keras 3; pass version=3.",
    ),
    "a short list": (
        lambda: weights([0, 0.0, 0, 0.1]),
        ValueError,
        "set_weights: got a list of 4, expected 8: iteration and learning_rate of MultiOptimizer, "
        "which are scalars, then 4 of 'a', 2 of 'default_optimizer'.",
    ),
    "no list": (lambda: weights("abc"), ValueError, "weights must be a list of arrays, got 'abc'"),
    "no map": (
        lambda: compat.keras.get("MultiOptimizer"),
        ValueError,
        "identifier.config: no optimizer_map, the config of an OptimizerMap.",
    ),
    "a function in a config": (
        lambda: compat.keras.get(
            config(optimizer_map={"class_name": "function", "config": "select"})
        ),
        ValueError,
        "config.config.optimizer_map: must be the config of an OptimizerMap, got",
    ),
    "a key of the config": (
        lambda: compat.keras.get(config(clipnorm=1.0)),
        ValueError,
        "config.config: MultiOptimizer has no argument 'clipnorm'",
    ),
    "a part of the map": (
        lambda: compat.keras.get(map_config(more={})),
        ValueError,
        "config.config.optimizer_map.config: must be a dict with default_optimizer and optimizer_",
    ),
    "a list in the map": (
        lambda: compat.keras.get(map_config(optimizer_map=[])),
        TypeError,
        "config.config.optimizer_map.config.optimizer_map: must be a dict of optimizers, got []",
    ),
    "an unknown class in the map": (
        lambda: compat.keras.get(
            map_config(optimizer_map={"a": {"class_name": "Adamm", "config": {}}})
        ),
        ValueError,
        "config.config.optimizer_map.config.optimizer_map['a']: unknown optimizer 'Adamm'",
    ),
    "a loss scale in the map": (
        lambda: compat.keras.get(
            map_config(
                default_optimizer=compat.keras.serialize(keras3.LossScaleOptimizer(SGD), version=3)
            )
        ),
        ValueError,
        "config.config.optimizer_map: OptimizerMap: default_optimizer scales the loss",
    ),
    "other parts": (
        lambda: compat.keras.serialize(keras3.MultiOptimizer(keras3.OptimizerMap(gx.adamw(0.1)))),
        ValueError,
        "no optimizer of Keras 3 has these parts",
    ),
    "another form": (
        lambda: compat.keras.serialize(keras3.MultiOptimizer(MAP), version=2),
        ValueError,
        "no optimizer of Keras 2 has these parts",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        call()
    message = caught.value.args[0]
    assert words in message and "\n" not in message and message.endswith((".", "?"))


def test_a_constant_scale_of_a_called_number_does_not_count_inside():
    inner = keras3.Adam(0.1, beta_1=lambda: 0.9, loss_scale_factor=4.0)
    tx = keras3.MultiOptimizer(keras3.OptimizerMap(inner))
    params, grads = {"a": jnp.ones(2)}, {"a": jnp.full(2, 1e-7)}
    expected, _ = keras3.Adam(0.1).update(grads, keras3.Adam(0.1).init(params), params)
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(updates["a"], expected["a"], rtol=1e-5)


def test_the_rate_of_one_of_its_optimizers_is_in_the_state():
    rated = gx.inject_hyperparams(keras3.Adam)(0.2)
    tx = keras3.MultiOptimizer(keras3.OptimizerMap(SGD, {"a": rated}))
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    listed = compat.keras.get_weights(tx, tx.init(params), params, version=3)
    assert listed[3] == np.float32(0.2)
    listed[0], listed[3] = np.asarray(7), np.float32(0.5)
    state = compat.keras.set_weights(tx, params, listed, version=3)
    again = compat.keras.get_weights(tx, state, params, version=3)
    assert (int(again[0]), float(again[3])) == (7, 0.5)
    updates, _ = tx.update(params, state, params)
    np.testing.assert_allclose(updates["a"], -0.5, rtol=1e-4)


def test_a_holder_has_its_weights():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx = keras3.MultiOptimizer(keras3.OptimizerMap(SGD, {"a": ADAM}))
    opt = gx.Optimizer(tx, params, names="keras3")
    opt.apply_gradients(params, params)
    assert opt.iterations == 1 and len(opt.get_weights()) == 8
    with pytest.raises(AttributeError, match="has no attribute 'learning_rate'"):
        _ = opt.learning_rate  # nor does Keras's


def test_all_of_the_parts_see_their_parameters_under_masks():
    tx = gx.masked(keras3.MultiOptimizer(keras3.OptimizerMap(SGD, {"a/x": ADAM})), {"a": True})
    params = {"a": {"x": jnp.ones(2), "y": jnp.ones(2)}}
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(updates["a"]["y"], -0.1, rtol=1e-6)
    np.testing.assert_allclose(updates["a"]["x"], -0.1, rtol=1e-4)

"""Names and configs of Keras, RETURNN's names, and all that was recorded of them."""

import functools
import inspect
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform import compat
from gradxform.compat import keras, returnn, tf1, tf_contrib
from gradxform.compat.keras import keras3
from gradxform.values.registry import REGISTRY

RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "behaviour.json").read_text())
KERAS, TF1 = RECORDED["keras"], RECORDED["tf1"]
DOORS = (pathlib.Path(__file__).parents[2] / "docs" / "doors.md").read_text()


def reasons():
    """The recorded calls that docs/doors.md says end differently, each with its reason there."""
    section = DOORS.split("\n## Recorded calls that end differently\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.+)` \| (.+) \|$", section, flags=re.MULTILINE)
    return dict(rows)


DIFFERENT = reasons()


def without_names_of_schedules(config):
    """A recorded config, where schedules have no names: they are not kept."""
    rate = config["config"]["learning_rate"]
    if isinstance(rate, dict):
        rate = rate | {"config": rate["config"] | {"name": None}}
    return config | {"config": config["config"] | {"learning_rate": rate}}


def argument(x):
    return getattr(keras, x["kind"])(**x["kw"]) if isinstance(x, dict) else x


def ids(rows, key):
    return [str(row[key]) for row in rows]


@pytest.mark.parametrize("row", KERAS["serialize"], ids=ids(KERAS["serialize"], "cls"))
def test_an_optimizer_serializes_as_recorded(row):
    tx = getattr(keras, row["cls"])(**{k: argument(v) for k, v in row["args"].items()})
    assert keras.serialize(tx) == without_names_of_schedules(row["serialized"])
    assert keras.deserialize(row["serialized"]) == tx


@pytest.mark.parametrize("row", KERAS["schedules"], ids=lambda row: row["serialized"]["class_name"])
def test_a_schedule_serializes_as_recorded(row):
    schedule = keras.schedules.deserialize(row["serialized"])
    assert keras.schedules.serialize(schedule) == row["serialized"]


def applied(tx, pairs):
    params = {"v": jnp.ones((3, 2))}
    return gx.apply_gradients(tx, None, tx.init(params), params, grads_and_vars=pairs)


def called(case):
    """What a recorded call of TensorFlow or Keras does here."""
    case = case.replace("ExponentialDecay)", "ExponentialDecay(0.1, 10, 0.5))")
    door = tf1 if "Ftrl(" in case else keras
    names = {name: getattr(door, name) for name in dir(door)} | {"sign_decay": tf_contrib}
    special = {
        "Adagrad(initial_accumulator_value=0.0)": lambda: tf1.Adagrad(
            0.1, initial_accumulator_value=0.0
        ),
        "AdagradDA(initial_gradient_squared_accumulator_value=0.0)": lambda: tf1.AdagradDA(
            0.1, initial_gradient_squared_accumulator_value=0.0
        ),
        "LARS(momentum=-0.1)": lambda: tf_contrib.LARS(0.1, momentum=-0.1),
        "RETURNN BaseCustom apply": lambda: returnn.BaseCustom(0.1),
        "RETURNN CustomAdam() without learning_rate": lambda: returnn.CustomAdam(),
        "RETURNN get_optimizer_class('nope')": lambda: returnn.get_optimizer_class("nope"),
        "replicate_model_fn(loss_reduction=NONE)": lambda: tf_contrib.Tower(tf1.Adam(), "none"),
        "apply_gradients([(None, v)])": lambda: applied(keras.SGD(), [(None, "v")]),
        "GGT sparse gradient": lambda: applied(
            tf_contrib.GGT(), [(gx.sparse.RowSparse(jnp.zeros(1, int), jnp.ones((1, 2)), 3), "v")]
        ),
    }
    if case in special:
        return special[case]()
    return eval(re.sub(r"^Ftrl\(", "Ftrl(learning_rate=0.1, ", case), dict(names))


ERRORS = [row for row in KERAS["errors"] + TF1["errors"] if row["case"] not in DIFFERENT]


@pytest.mark.parametrize("row", ERRORS, ids=ids(ERRORS, "case"))
def test_a_call_ends_as_recorded(row):
    if row["raises"] is None:
        assert keras.serialize(called(row["case"])) == row["result"]
        return
    with pytest.raises(Exception) as caught:
        called(row["case"])
    assert type(caught.value).__name__ == row["raises"]
    if "without learning_rate" not in row["case"]:  # the words are Python's
        assert str(caught.value).rstrip("'\"").endswith((".", "?"))


def test_the_table_of_differences_has_only_recorded_cases_that_differ():
    assert DIFFERENT.keys() <= {row["case"] for row in KERAS["errors"] + TF1["errors"]}
    assert len(DIFFERENT) == 5 and all(len(reason) > 10 for reason in DIFFERENT.values())
    with pytest.raises(TypeError):  # a ValueError there
        tf_contrib.get_linear_decay_fn(10)(None)
    params = {"w": jnp.ones(2)}
    averaged = tf_contrib.MovingAverage(tf1.Adam())
    gx.swap(averaged.init(params), params)
    for tx in (tf1.SyncReplicas(tf1.Adam(), 1), tf_contrib.ModelAverage(tf1.Adam())):

        def update(_, tx=tx):
            return tx.update(params, tx.init(params), params)

        jax.eval_shape(jax.vmap(update, axis_name="replica"), jnp.arange(1))
    assert KERAS["probes"] == KERAS["round_trip"] == []


@pytest.mark.numeric
@pytest.mark.parametrize("row", TF1["probes"], ids=ids(TF1["probes"], "case"))
def test_a_probe_ends_as_recorded(row):
    one = {"w": jnp.ones(1)}
    if row["case"].startswith("a None"):
        tx, params, grads = (
            tf1.Adam(0.1),
            {"a": one["w"], "b": one["w"]},
            {"a": one["w"], "b": None},
        )
    elif row["case"].startswith("RMSProp"):
        tx, params, grads = tf1.RMSProp(0.01), one, one
    else:
        tx, params, grads = tf1.Adam(0.001), {"w": jnp.zeros(1)}, {"w": jnp.full(1, 1e-6)}
    updates, _ = tx.update(grads, tx.init(params), params)
    new = gx.apply_updates(params, updates)
    for name, x in row["result"].items():
        np.testing.assert_allclose(new[name], x, rtol=2e-6)


@pytest.mark.parametrize("row", TF1["defaults"], ids=ids(TF1["defaults"], "name"))
def test_a_factory_has_the_recorded_arguments_and_defaults(row):
    own = row["name"].startswith("returnn.")
    name = row["name"].removeprefix("returnn.")
    [module] = [returnn] if own else [m for m in (tf1, tf_contrib) if _has(m, name)][:1]
    factory = getattr(module, name.removesuffix("Optimizer") if own else name)
    known = inspect.signature(factory).parameters
    for key, default in row["args"].items():
        if default == "<var_keyword>":
            continue
        assert key in known, key
        ours = known[key].default
        if default == "<required>" or isinstance(default, list):
            continue  # required arguments may have a default here
        if isinstance(default, float):
            assert ours == default
        else:
            assert ours == default or (key == "name" and isinstance(ours, str | None))


def _has(module, name):
    return hasattr(module, name)


@pytest.mark.parametrize("name", RECORDED["returnn_registry"])
def test_returnn_finds_the_class_of_every_recorded_name(name):
    path = RECORDED["returnn_registry"][name].split(".")
    factory = returnn.get_optimizer_class(name)
    assert factory.__name__ == path[-1].removesuffix("Optimizer")
    assert returnn.get_optimizer_class(name.upper()) is factory
    homes = {"returnn": returnn, "contrib": tf_contrib, "keras": keras}
    home = next((homes[part] for part in path if part in homes), tf1)
    assert getattr(home, factory.__name__) is factory


def test_returnn_has_no_other_names():
    with pytest.raises(KeyError, match=r"not have an optimizer 'adamm'\. Did you mean .*'adam'"):
        returnn.get_optimizer_class("adamm")
    with pytest.raises(TypeError, match="name must be a string, got 3"):
        returnn.get_optimizer_class(3)


def test_a_class_has_its_full_name_too():
    assert tf1.AdamOptimizer is tf1.Adam
    assert tf_contrib.LazyAdamGSOptimizer is tf_contrib.LazyAdamGS
    assert returnn.CustomAdamOptimizer is returnn.CustomAdam
    for module, name in ((tf1, "AdmOptimizer"), (tf1, "requireOptimizer"), (returnn, "Optimizer")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(module, name)


# ---------------------------------------------------------------------------- other generations

KERAS_2_12 = {
    "name": "RMSprop",
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": True,
    "ema_momentum": 0.9,
    "ema_overwrite_frequency": 100,
    "jit_compile": True,
    "is_legacy_optimizer": False,
    "learning_rate": 0.0010000000474974513,
    "rho": 0.9,
    "momentum": 0.0,
    "epsilon": 1e-07,
    "centered": False,
}


def test_a_config_of_keras_2_12_is_read():
    expected = keras3.RMSprop(
        0.0010000000474974513,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=100,
        ema_from_start=True,
    )
    for name in ("RMSprop", "Custom>RMSprop", "rmsprop"):
        assert keras.get({"class_name": name, "config": KERAS_2_12}) == expected
    legacy = {"name": "RMSprop", "is_legacy_optimizer": True, "lr": 0.1, "decay": 0.5}
    config = {"module": "keras.optimizers.legacy", "class_name": "RMSprop", "config": legacy}
    assert keras.deserialize(config) == keras.RMSprop(0.1, decay=0.5)


def test_a_config_of_keras_2_12_is_written_as_it_was():
    tx = keras.deserialize({"class_name": "RMSprop", "config": KERAS_2_12})
    config = keras.serialize(tx)  # only this generation has such an average
    assert config["config"] == KERAS_2_12 and config["class_name"] == "RMSprop"
    assert keras.deserialize(json.loads(json.dumps(config))) == tx
    plain = keras.serialize(keras3.Lion(0.1, weight_decay=0.2), version=2.15)
    assert plain["config"]["jit_compile"] and "loss_scale_factor" not in plain["config"]
    assert keras.deserialize(plain) == keras3.Lion(0.1, weight_decay=0.2)


def test_names_of_new_classes_are_read():
    assert keras.get("AdamW") == keras3.AdamW() and keras.get("lion") == keras3.Lion()
    assert keras.get(gx.adam(0.1)) == gx.adam(0.1)


def test_the_schedule_decay_of_nadam_is_written_and_forgotten_as_in_keras():
    config = keras.serialize(keras.Nadam(schedule_decay=0.02))
    assert config["config"]["decay"] == 0.02
    assert keras.deserialize(config) == keras.Nadam()


OPTIONS = [
    keras.SGD(keras.PolynomialDecay(0.1, 20), 0.9, True, clipnorm=1.0, decay=0.2),
    keras.RMSprop(keras.CosineDecayRestarts(0.1, 8), 0.8, 0.5, 0.01, True, clipvalue=0.2),
    keras.Adam(0.1, decay=0.3, clipvalue=0.5, global_clipnorm=1.0, amsgrad=True),
    keras.Ftrl(keras.PiecewiseConstantDecay([5], [0.2, 0.1]), beta=0.3, decay=0.1),
    keras.SGD(clipnorm=0),
    keras.SGD(keras.CosineDecay(0.0, 100, 0.1, warmup_target=0.3, warmup_steps=10)),
]


@pytest.mark.parametrize("tx", OPTIONS, ids=range(len(OPTIONS)))
def test_every_option_is_read_off_the_parts(tx):
    config = json.loads(json.dumps(keras.serialize(tx, "mine")))
    assert keras.deserialize(config) == tx and config["config"]["name"] == "mine"


def test_classes_of_the_user_go_before():
    own = {"Adam": gx.adam, "their>Mine": lambda learning_rate, rate: gx.sgd(learning_rate)}
    config = {"class_name": "Adam", "config": {"learning_rate": 0.1}}
    assert keras.deserialize(config, own) == gx.adam(0.1)
    config = {
        "module": "their.package",
        "class_name": "Mine",
        "registered_name": "their>Mine",
        "config": {"learning_rate": 0.1, "rate": 3},
    }
    assert keras.get(config, own) == gx.sgd(0.1)
    rate = {"class_name": "Mine", "config": {"value": 0.3}}
    given = {"class_name": "SGD", "config": {"learning_rate": rate}}
    assert keras.get(given, {"Mine": gx.constant_schedule}) == keras.SGD(gx.constant_schedule(0.3))


def adam(**config):
    return {"class_name": "Adam", "config": config}


def scaling(inner=None, **config):
    inner = adam(learning_rate=0.5) if inner is None else inner
    return {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": inner, **config}}


def dynamic_scale(**config):
    return {"class_name": "DynamicLossScale", "config": config}


def scaling_v1(loss_scale, name="LossScaleOptimizerV1"):
    config = {"optimizer": adam(learning_rate=0.5), "loss_scale": loss_scale}
    return {"class_name": name, "config": config}


NEWER = {"weight_decay": None}
REFUSED = {
    "no class": (lambda: keras.deserialize({}), KeyError, "config: no class_name"),
    "no config": (
        lambda: keras.deserialize({"class_name": "Adam"}),
        ValueError,
        "config: no config; without arguments it is {}.",
    ),
    "not a dict": (lambda: keras.deserialize("adam"), TypeError, "must be a dict with class_name"),
    "a number": (lambda: keras.get(3), ValueError, "could not interpret the identifier 3"),
    "a class": (lambda: keras.get(keras.Adam), ValueError, "the function Adam"),
    "a path": (
        lambda: keras.get({"class_name": "os.system", "config": {}}),
        ValueError,
        "config.class_name: must be the name of a class, got 'os.system'; nothing is imported.",
    ),
    "a module": (
        lambda: keras.get(adam() | {"module": "os"}),
        ValueError,
        "config: unknown optimizer 'Adam' of os; pass its factory in custom_objects.",
    ),
    "an outer key": (
        lambda: keras.get(adam() | {"modul": "keras"}),
        ValueError,
        "config: unknown key 'modul'",
    ),
    "a near name": (lambda: keras.get("adamx"), ValueError, "Did you mean 'adamax'"),
    "an old key": (
        lambda: keras.get(adam(beta1=0.9)),
        TypeError,
        "config.config: Adam has no argument 'beta1'",
    ),
    "a new key": (
        lambda: keras.get(adam(beta1=0.9, **NEWER)),
        ValueError,
        "config.config: Adam has no argument 'beta1'",
    ),
    "a new decay": (lambda: keras.get(adam(decay=0.1, **NEWER)), ValueError, "InverseTimeDecay"),
    "a schedule": (
        lambda: keras.get(adam(learning_rate={"class_name": "Decay", "config": {}})),
        ValueError,
        "config.config.learning_rate: unknown schedule 'Decay'",
    ),
    "a schedule's key": (
        lambda: keras.get(adam(learning_rate={"class_name": "CosineDecay", "config": {"a": 1}})),
        TypeError,
        "config.config.learning_rate.config: ",
    ),
    "loss scaling of nothing": (
        lambda: keras.get({"class_name": "LossScaleOptimizer", "config": {}}),
        ValueError,
        "config.config: no inner_optimizer, the config of the optimizer whose loss is scaled.",
    ),
    "loss scaling by name": (
        lambda: keras.get("LossScaleOptimizer"),
        ValueError,
        "identifier.config: no inner_optimizer",
    ),
    "a constant scale": (
        lambda: keras.get(scaling(dynamic=False)),
        ValueError,
        "config.config: LossScaleOptimizer: with dynamic=False initial_scale must be given, the",
    ),
    "an option of loss scaling": (
        lambda: keras.get(scaling(clipnorm=1.0)),
        ValueError,
        "config.config: LossScaleOptimizer has no clipnorm, got 1.0; pass it to the inner",
    ),
    "an unknown argument of loss scaling": (
        lambda: keras.get(scaling(growth=2)),
        ValueError,
        "config.config: LossScaleOptimizer has no argument 'growth'",
    ),
    "a wrong number of loss scaling": (
        lambda: keras.get(scaling(initial_scale=0.0)),
        ValueError,
        "config.config: loss_scale: initial_scale must be in [2**-126, 2**126], got 0.0.",
    ),
    "steps of a constant scale": (
        lambda: keras.get(scaling(dynamic=False, initial_scale=8.0, dynamic_growth_steps=3)),
        ValueError,
        "with dynamic=False the scale does not grow; leave out dynamic_growth_steps, got 3.",
    ),
    "the order of TensorFlow": (
        lambda: keras.LossScaleOptimizer(keras.Adam(), False, 8.0),
        TypeError,
        "initial_scale stands second, as in Keras 3, got False; for TensorFlow's dynamic write "
        "dynamic=False.",
    ),
    "another dynamic": (
        lambda: keras.LossScaleOptimizer(keras.Adam(), dynamic="dynamic"),
        TypeError,
        "LossScaleOptimizer: dynamic must be True or False, got 'dynamic'.",
    ),
    "a multiplier": (
        lambda: keras.LossScaleOptimizerV1(keras.Adam(), dynamic_scale(multiplier=4)),
        ValueError,
        "LossScaleOptimizerV1: loss_scale.config: multiplier must be 2, as TensorFlow requires",
    ),
    "another loss scale": (
        lambda: keras.LossScaleOptimizerV1(keras.Adam(), "fixed"),
        ValueError,
        "LossScaleOptimizerV1: loss_scale must be a number, 'dynamic', or the config of a",
    ),
    "a bool for a loss scale": (
        lambda: keras.LossScaleOptimizerV1(keras.Adam(), True),
        TypeError,
        "LossScaleOptimizerV1: loss_scale must be a number, 'dynamic', or the config of a",
    ),
    "an unknown loss scale": (
        lambda: keras.LossScaleOptimizerV1(keras.Adam(), {"class_name": "LossScale", "config": {}}),
        ValueError,
        "LossScaleOptimizerV1: loss_scale: unknown loss scale 'LossScale'",
    ),
    "a key of a loss scale": (
        lambda: keras.get(scaling_v1(dynamic_scale(initial_scale=4))),
        TypeError,
        "DynamicLossScale has no argument 'initial_scale', only initial_loss_scale, increment_per",
    ),
    "a loss scale of nothing": (
        lambda: keras.get({"class_name": "LossScaleOptimizer", "config": {"loss_scale": 3.0}}),
        ValueError,
        "config.config: no optimizer, the config of the optimizer whose loss is scaled.",
    ),
    "a constant scale in Keras 3": (
        lambda: keras.serialize(
            keras.LossScaleOptimizer(keras3.Adam(), 8.0, dynamic=False), version=3
        ),
        ValueError,
        "serialize: no optimizer of Keras 3 has these parts",
    ),
    "a wrong optimizer in loss scaling": (
        lambda: keras.get({"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": 3}}),
        TypeError,
        "config.config.inner_optimizer: must be a dict with class_name and config, got 3.",
    ),
    "an unknown optimizer in loss scaling": (
        lambda: keras.get(scaling({"class_name": "Adamm", "config": {}})),
        ValueError,
        "config.config.inner_optimizer: unknown optimizer 'Adamm'",
    ),
    "a bounded scale": (
        lambda: keras.serialize(gx.loss_scale(keras3.SGD())),
        ValueError,
        "no optimizer of Keras has these parts",
    ),
    "steps of Keras 3 in 2.15": (
        lambda: keras.serialize(keras3.Adam(gradient_accumulation_steps=2), version=2.15),
        ValueError,
        "no optimizer of Keras 2.15 has these parts",
    ),
    "an average of Keras 3 in 2.15": (
        lambda: keras.serialize(keras3.Adam(use_ema=True), version=2.15),
        ValueError,
        "no optimizer of Keras 2.15 has these parts",
    ),
    "an average of Keras 2.15 in 3": (
        lambda: keras.serialize(keras3.Adam(use_ema=True, ema_from_start=True), version=3),
        ValueError,
        "no optimizer of Keras 3 has these parts",
    ),
    "a wrong number": (lambda: keras.get(adam(beta_1=2.0)), ValueError, "b1 must be in [0, 1)"),
    "custom objects": (lambda: keras.get("adam", [gx.adam]), TypeError, "custom_objects: must be"),
    "other parts": (
        lambda: keras.serialize(gx.adamw(0.1)),
        ValueError,
        "no optimizer of Keras has these parts; to_config writes any transform",
    ),
    "of version 2": (
        lambda: keras.serialize(keras3.AdamW(), version=2),
        ValueError,
        "no optimizer of Keras 2 has these parts",
    ),
    "a version": (lambda: keras.serialize(keras.Adam(), version=4), ValueError, "2, 2.15, 3 or"),
    "an empty name": (lambda: keras.serialize(keras.Adam(), ""), ValueError, "must be a word"),
    "a function": (
        lambda: keras.serialize(keras.SGD(lambda n: 0.1)),
        ValueError,
        "no schedule of Keras is the function <lambda>",
    ),
    "a reduction": (
        lambda: tf_contrib.Tower(tf1.Adam(), "sum"),
        ValueError,
        "Tower: loss_reduction must be one of 'weighted_sum'",
    ),
    "a function of one argument": (
        lambda: tf_contrib.Tower(lambda rate: tf1.Adam(rate)),
        TypeError,
        "Tower: opt must be an optimizer or a function without arguments",
    ),
    "averages": (
        lambda: tf1.SyncReplicas(tf1.Adam(), 1, variable_averages="ema"),
        TypeError,
        "SyncReplicas: variable_averages must be the decay of the averages",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_config_is_refused_with_its_place(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    message = caught.value.args[0]
    assert words in message and "\n" not in message and message.endswith((".", "?"))


# ------------------------------------------------------------------------------------- small doors


def half_of_kernels(pairs):
    return [(g / 2 if path.endswith("kernel") else g, path) for g, path in reversed(pairs)]


def one_more(pairs):
    return [(g + 1, path) for g, path in pairs]


@pytest.mark.numeric
def test_functions_of_pairs_run_in_the_order_of_keras():
    params = {"a": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}, "b": jnp.ones(2)}
    grads = params | {"b": None}
    tx = keras.SGD(1.0, gradient_aggregator=one_more, gradient_transformers=[half_of_kernels])
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(updates["a"]["kernel"], -1.0)
    np.testing.assert_allclose(updates["a"]["bias"], -2.0)
    assert updates["b"] is None
    clipped = keras.SGD(1.0, gradient_aggregator=one_more, clipvalue=0.5)  # after the aggregator
    updates, _ = clipped.update(grads, clipped.init(params), params)
    np.testing.assert_allclose(updates["a"]["bias"], -0.5)
    assert tx == keras.SGD(
        1.0, gradient_aggregator=one_more, gradient_transformers=(half_of_kernels,)
    )


@pytest.mark.numeric
def test_gradients_that_were_aggregated_are_not_aggregated_again():
    params = {"a": jnp.ones(2)}
    tx = keras.SGD(1.0, gradient_aggregator=one_more, gradient_transformers=[half_of_kernels])
    opt = gx.Optimizer(tx, params)
    for asked, expected in ((True, -1.0), (False, 0.0)):
        p = opt.apply_gradients(params, params, experimental_aggregate_gradients=asked)
        np.testing.assert_allclose(p["a"], expected)
    with pytest.raises(TypeError, match="experimental_aggregate_gradients must be True or False"):
        tx.update(params, tx.init(params), params, experimental_aggregate_gradients=0)


@pytest.mark.numeric
@pytest.mark.parametrize("aggregate", [True, False])
def test_replicas_sum_unless_the_caller_has(aggregate):
    """Keras's aggregator sums over replicas; what is aggregated already stays as it is."""
    count = 4
    mesh = jax.make_mesh((count,), ("r",), axis_types=(jax.sharding.AxisType.Auto,))
    tx = gd.tower(keras.SGD(1.0), "r", reduction="sum")
    params = {"a": jnp.zeros(2)}
    state = tx.init(params)

    def step(x):
        grads = {"a": x[0] * jnp.ones(2)}
        updates, _ = tx.update(grads, state, params, experimental_aggregate_gradients=aggregate)
        return updates["a"][None]

    run = jax.shard_map(step, mesh=mesh, in_specs=jax.P("r"), out_specs=jax.P("r"))
    grads = jnp.arange(1.0, count + 1) if aggregate else jnp.full(count, 5.0)
    np.testing.assert_allclose(run(grads), -10.0 if aggregate else -5.0)


def test_whether_to_aggregate_is_true_or_false():
    tx = gd.tower(keras.SGD(1.0), "r")
    params = {"a": jnp.zeros(2)}
    run = functools.partial(tx.update, params, tx.init(params), params)
    with pytest.raises(TypeError, match=r"^tower: experimental_aggregate_gradients must be True"):
        jax.vmap(lambda _: run(experimental_aggregate_gradients=1), axis_name="r")(jnp.zeros(2))


BAD_PAIRS = [
    (lambda pairs: None, TypeError, "must return a list of pairs (gradient, path), got None."),
    (lambda pairs: pairs[1:], ValueError, "must return the paths that it was given, a, b, got b."),
    (lambda pairs: [(1.0, p) for _, p in pairs], ValueError, "a gradient of shape (2,) for a, got"),
]


@pytest.mark.parametrize("function, error, words", BAD_PAIRS, ids=range(len(BAD_PAIRS)))
def test_a_function_of_pairs_that_returns_something_else_is_refused(function, error, words):
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx = keras.SGD(gradient_transformers=[function])
    with pytest.raises(error) as caught:
        tx.update(params, tx.init(params), params)
    assert words in str(caught.value)


def test_what_is_not_a_function_of_pairs_is_refused():
    with pytest.raises(TypeError, match="SGD: gradient_transformers must be a list of functions"):
        keras.SGD(gradient_transformers=one_more)
    with pytest.raises(TypeError, match="SGD: gradient_aggregator must be a function of pairs"):
        keras.SGD(gradient_aggregator=3)


def test_towers_take_the_reductions_of_tensorflow_and_a_function_of_nothing():
    mean = tf_contrib.Tower(tf1.Adam())
    assert tf_contrib.Tower(tf1.Adam) == mean == tf_contrib.Tower(tf1.Adam(), "weighted_mean")
    assert tf_contrib.Tower(tf1.Adam(), "weighted_sum").reduction == "sum"


def test_the_averages_of_synchronous_replicas_are_a_moving_average():
    tx = tf1.SyncReplicas(tf1.Adam(), 2, variable_averages=0.9)
    assert tx == tf1.SyncReplicas(gx.moving_average(tf1.Adam(), 0.9), 2)


def test_compat_has_a_module_for_every_library():
    assert compat.keras3 is keras3 and keras.schedules.ExponentialDecay is keras.ExponentialDecay


# ------------------------------------------------------------------------------------ from_config

OLD = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam", "Ftrl")
NEW = [k.removeprefix("keras3:") for k in REGISTRY if k.startswith("keras3:")]
NEW.remove("MultiOptimizer")
EVERY_DOOR = [*((keras, name) for name in OLD), *((keras3, name) for name in NEW)]


@pytest.mark.parametrize(
    "door, name", EVERY_DOOR, ids=[f"{m.__name__[-6:]}.{n}" for m, n in EVERY_DOOR]
)
def test_every_door_reads_the_arguments_of_a_config(door, name):
    factory, version = getattr(door, name), 2 if door is keras else 3
    tx = factory(0.25, clipnorm=1.0)
    config = keras.serialize(tx, version=version)["config"]
    assert factory.from_config(json.loads(json.dumps(config))) == tx
    assert factory.from_config({}) == factory() and factory.from_config.__doc__
    if name != "Nadam" or door is keras3:
        rate = keras.schedules.serialize(keras.ExponentialDecay(0.1, 5, 0.5), version=version)
        tx = factory(keras.ExponentialDecay(0.1, 5, 0.5))
        assert factory.from_config({"learning_rate": rate, "name": "x"}) == tx
    rate = {"class_name": "Mine", "config": {"value": 0.3}}
    tx = factory.from_config({"learning_rate": rate}, {"Mine": gx.constant_schedule})
    assert tx == factory(gx.constant_schedule(0.3))
    error = TypeError if door is keras else ValueError
    with pytest.raises(error, match=rf"^{name}\.from_config: config: {name} has no argument 'rat"):
        factory.from_config({"rat": 1})


def test_a_factory_of_the_library_may_have_another_name_in_custom_objects():
    config = {"class_name": "Mine", "config": {"learning_rate": 0.5}, "module": "mine"}
    assert keras.deserialize(config, {"Mine": keras3.Lion}) == keras3.Lion(0.5)
    assert keras.deserialize(config, {"Mine": keras.SGD}) == keras.SGD(0.5)


def test_the_config_of_a_wrapper_says_whose_it_is():
    for door, missing in (
        (keras.LossScaleOptimizer, "inner_optimizer"),
        (keras3.MultiOptimizer, "optimizer_map"),
    ):
        with pytest.raises(
            ValueError, match=rf"^{door.__name__}\.from_config: config: no {missing}"
        ):
            door.from_config({})


def test_a_door_reads_what_is_of_its_own_generation():
    assert keras.Adam.from_config({"lr": 0.5, "decay": 0.1}) == keras.Adam(0.5, decay=0.1)
    with pytest.raises(TypeError, match=r"^Adam\.from_config: config: Adam has no argument 'weigh"):
        keras.Adam.from_config({"weight_decay": 0.1})
    assert keras3.Adam.from_config({"weight_decay": 0.1}) == keras3.Adam(weight_decay=0.1)
    with pytest.raises(ValueError, match=r"^Adam\.from_config: config: decay=0\.1 is not of this"):
        keras3.Adam.from_config({"decay": 0.1})
    average = keras3.SGD.from_config({"use_ema": True, "jit_compile": False})
    assert average == keras3.SGD(use_ema=True, ema_from_start=True)
    for config in ("adam", None, {3: 1}):
        with pytest.raises(TypeError, match=r"^SGD\.from_config: config must be a dict of argume"):
            keras3.SGD.from_config(config)
    with pytest.raises(KeyError, match=r"SGD\.from_config: config\.learning_rate: no class_name"):
        keras3.SGD.from_config({"learning_rate": {}})


FIXED = {"class_name": "FixedLossScale", "config": {"loss_scale_value": 128.0}}
LOSS_SCALES = {
    "number": (128, {"dynamic": False, "initial_scale": 128}),
    "fixed": (FIXED, {"dynamic": False, "initial_scale": 128}),
    "dynamic": ("dynamic", {}),
    "defaults": (dynamic_scale(), {}),
    "numbers": (
        dynamic_scale(initial_loss_scale=64.0, increment_period=7, multiplier=2.0),
        {"initial_scale": 64.0, "dynamic_growth_steps": 7},
    ),
}


@pytest.mark.parametrize("name", LOSS_SCALES)
def test_the_older_loss_scale_optimizer_is_the_newer_one_with_other_arguments(name):
    given, arguments = LOSS_SCALES[name]
    tx = keras.LossScaleOptimizer(keras.Adam(0.5), **arguments)
    assert keras.LossScaleOptimizerV1(keras.Adam(0.5), given) == tx
    assert keras.LossScaleOptimizerV1.from_config(scaling_v1(given)["config"]) == tx
    for kind in ("LossScaleOptimizer", "LossScaleOptimizerV1"):
        assert keras.deserialize(scaling_v1(given, kind)) == tx
    written = json.loads(json.dumps(keras.serialize(tx, version=2)))
    assert keras.deserialize(written) == tx
    assert keras.deserialize(written | {"class_name": "LossScaleOptimizerV3"}) == tx
    assert keras.LossScaleOptimizerV1.from_config(written["config"]) == tx


def test_a_constant_scale_is_of_tensorflow():
    tx = keras.LossScaleOptimizer(keras.Adam(0.5), 128.0, dynamic=False)
    assert tx.growth_interval is None and tx.initial_scale == 128
    config = {"dynamic": False, "initial_scale": 128.0, "dynamic_growth_steps": None}
    config = {"inner_optimizer": keras.serialize(keras.Adam(0.5)), **config}
    expected = {"class_name": "LossScaleOptimizer", "config": config}
    assert keras.serialize(tx) == keras.serialize(tx, version=2) == expected
    assert keras.deserialize(expected) == keras.LossScaleOptimizer.from_config(config) == tx
    # Around an optimizer of later versions, too.
    later = keras.LossScaleOptimizer(keras3.Adam(0.5), 128.0, dynamic=False)
    assert keras.deserialize(keras.serialize(later)) == later
    # The scale of an optimizer that only TensorFlow 2.8 has adapts.
    adapts = keras.LossScaleOptimizer(keras.Adam(0.5, decay=0.1))
    assert keras.serialize(adapts)["config"]["dynamic"] is True
    assert keras.deserialize(keras.serialize(adapts)) == adapts


@pytest.mark.numeric
def test_a_constant_scale_stays_and_skips():
    tx = keras.LossScaleOptimizer(keras.SGD(1.0), 4.0, dynamic=False)
    params = {"w": jnp.ones(2)}
    state = tx.init(params)
    for g in (4.0, jnp.inf, 4.0):
        grads = {"w": jnp.full(2, g)}
        updates, state = tx.update(grads, state, params)
        np.testing.assert_allclose(updates["w"], 0.0 if g == jnp.inf else -1.0)
    assert state.loss_scale == 4.0 and state.total_skipped == 1


def test_a_loss_scale_reads_its_arguments():
    config = scaling(adam(learning_rate=0.5), initial_scale=8.0)["config"]
    tx = keras.LossScaleOptimizer(keras.Adam(0.5), 8.0)
    assert keras.LossScaleOptimizer.from_config(config) == tx
    assert keras3.LossScaleOptimizer.from_config(config) == tx
    own = {"inner_optimizer": {"class_name": "Mine", "config": {"learning_rate": 0.1}}}
    tx = keras.LossScaleOptimizer(gx.sgd(0.1))
    assert keras.LossScaleOptimizer.from_config(own, {"Mine": gx.sgd}) == tx
    with pytest.raises(TypeError, match=r"^LossScaleOptimizer\.from_config: config must be a dict"):
        keras.LossScaleOptimizer.from_config(3)
    with pytest.raises(ValueError, match="no inner_optimizer"):
        keras.LossScaleOptimizer.from_config({})


def nested_optimizers(n):
    config = {"class_name": "SGD", "config": {}}
    for _ in range(n):
        config = {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": config}}
    return config


def nested_schedules(n):
    rate = 0.1
    for _ in range(n):
        config = {"initial_learning_rate": rate, "decay_steps": 1, "decay_rate": 0.5}
        rate = {"class_name": "ExponentialDecay", "config": config}
    return rate


def nested_lists(n):
    data = 0.1
    for _ in range(n):
        data = [data]
    return data


@pytest.mark.parametrize("n", [500, 5_000])
@pytest.mark.parametrize("rate", [nested_schedules, nested_lists])
def test_a_config_that_is_too_deep(n, rate):
    sgd = {"class_name": "SGD", "config": {"learning_rate": rate(n)}}
    for read, config in (
        (keras.get, nested_optimizers(n)),
        (keras.get, sgd),
        (keras.deserialize, sgd),
        (keras.schedules.deserialize, nested_schedules(n)),
        (keras.SGD.from_config, sgd["config"]),
        (keras3.SGD.from_config, sgd["config"]),
        (keras.LossScaleOptimizer.from_config, nested_optimizers(n)["config"]),
    ):
        with pytest.raises(ValueError, match=r"config.*: nested more than 200 deep"):
            read(config)
    with pytest.raises(TypeError, match=r"^get_optimizer_class: .*, got a list nested more than"):
        returnn.from_config({"learning_rate": 0.1, "optimizer": nested_lists(n)})


def test_data_that_contains_itself_is_named():
    config = {"class_name": "SGD", "config": {}}
    config["config"]["learning_rate"] = config
    with pytest.raises(ValueError, match=r"config\.config\.learning_rate: contains itself"):
        keras.get(config)
    own: list = []
    own.append(own)
    with pytest.raises(ValueError, match="identifier a list nested more than 200 deep"):
        keras.get(own)


@pytest.mark.parametrize(
    "read",
    [
        keras.get,
        lambda name: keras.get({"class_name": name, "config": {}}),
        lambda name: keras.get({"class_name": "SGD", "config": {name: 1}}),
        keras.schedules.deserialize,
        lambda name: keras.schedules.deserialize({"class_name": name, "config": {}}),
        lambda name: keras3.SGD.from_config({name: 1}),
        returnn.get_optimizer_class,
        lambda name: gx.from_config({"name": name}),
    ],
)
def test_a_long_name_is_cut(read):
    with pytest.raises((KeyError, TypeError, ValueError)) as caught:
        read("x" * 10_000)
    assert len(str(caught.value)) < 600

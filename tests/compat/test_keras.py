"""Real Keras 3: its optimizers, files and `fit` beside ours."""

import json
import re

import h5py
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import gradxform as gx
from gradxform import compat
from tests.environment import ROOT

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


RANDOM = np.random.default_rng(0)
SHAPES = {"w": (3, 2), "b": (2,)}  # in Keras's order, which is not that of the tree
ORDER = list(SHAPES)
GRADS = [
    {k: RANDOM.normal(size=shape).astype(np.float32) for k, shape in SHAPES.items()}
    for _ in range(20)
]
START = {k: RANDOM.normal(size=shape).astype(np.float32) for k, shape in SHAPES.items()}
O = keras.optimizers
OPTIMIZERS = {
    "SGD": lambda: O.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=1.0),
    "SGD: plain": lambda: O.SGD(0.1, loss_scale_factor=4.0, weight_decay=0.1),
    "RMSprop": lambda: O.RMSprop(0.1, momentum=0.5, centered=True),
    "Adagrad": lambda: O.Adagrad(0.1, weight_decay=0.1),
    "Adadelta": lambda: O.Adadelta(O.schedules.ExponentialDecay(1.0, 5, 0.5)),
    "Adam": lambda: O.Adam(0.01, amsgrad=True),
    "Adamax": lambda: O.Adamax(0.01),
    "Nadam": lambda: O.Nadam(0.01),
    "Ftrl": lambda: O.Ftrl(0.1, l1_regularization_strength=0.01),
    "AdamW": lambda: O.AdamW(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2,
        gradient_accumulation_steps=4,
    ),
    "Lion": lambda: O.Lion(0.1),
    "ScheduleFreeAdamW": lambda: O.ScheduleFreeAdamW(
        0.1, beta_1=0.8, warmup_steps=14, weight_decay=0.2, clipnorm=1.0
    ),
    "ScheduleFreeAdamW: schedule": lambda: O.ScheduleFreeAdamW(
        O.schedules.ExponentialDecay(0.1, 4, 0.9), gradient_accumulation_steps=3, use_ema=True,
        weight_decay=0.1,
    ),
    "Lamb": lambda: O.Lamb(0.1, beta_1=0.8, weight_decay=0.1, clipnorm=1.0),
    "Lamb: schedule": lambda: O.Lamb(
        O.schedules.ExponentialDecay(0.3, 4, 0.7), gradient_accumulation_steps=3, use_ema=True
    ),
    "Adafactor": lambda: O.Adafactor(0.1, weight_decay=0.1),
    "Muon": lambda: O.Muon(0.05, adam_lr_ratio=0.5, gradient_accumulation_steps=2),
}  # fmt: skip


def stepped(optimizer, variables, grads):
    """Keras's parameters after these steps."""
    for g in grads:
        optimizer.apply([g[k] for k in ORDER], variables)
    return {k: np.asarray(v.value) for k, v in zip(ORDER, variables, strict=True)}


def variables_of(params=START):
    return [keras.Variable(params[k], name=k) for k in ORDER]


def run(tx, state, params, grads):
    @jax.jit
    def step(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        return (gx.apply_updates(params, updates), state), None

    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *grads)
    return jax.lax.scan(step, (jax.tree.map(jnp.asarray, params), state), stacked)[0]


def close(a, b, atol):
    for k in SHAPES:
        scale = np.max(np.abs(b[k]))
        np.testing.assert_allclose(a[k], b[k], rtol=0, atol=atol * scale, err_msg=k)


def weights_of(optimizer):
    return [np.asarray(v.value) for v in optimizer.variables]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_there_and_ten_more_here(name):
    optimizer, variables = OPTIMIZERS[name](), variables_of()
    config = O.serialize(optimizer)
    tx = compat.keras.deserialize(config)
    assert compat.keras.deserialize(compat.keras.serialize(tx, version=3)) == tx
    middle = stepped(optimizer, variables, GRADS[:10])
    weights = weights_of(optimizer)
    state = compat.keras.set_weights(tx, middle, weights, version=3, order=ORDER)
    back = compat.keras.get_weights(tx, state, middle, version=3, order=ORDER)
    assert len(back) == len(weights)
    for ours, theirs in zip(back, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    close(run(tx, state, middle, GRADS[10:])[0], stepped(optimizer, variables, GRADS[10:]), 1e-6)


def scaled_gradients():
    """Gradients of 24 steps, of which some are not finite."""
    bad = {3: np.inf, 4: np.nan, 11: -np.inf, 20: np.inf}
    grads = [GRADS[i % 20] for i in range(24)]
    return [
        g | {"b": np.array([g["b"][0], bad[i]], np.float32)} if i in bad else g
        for i, g in enumerate(grads)
    ]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_loss_scaling_with_steps_that_overflow(name):
    optimizer = O.LossScaleOptimizer(OPTIMIZERS[name](), 8.0, dynamic_growth_steps=3)
    config = O.serialize(optimizer)
    tx = compat.keras.get(config)
    assert isinstance(tx, gx.loss_scale) and (tx.initial_scale, tx.growth_interval) == (8.0, 3)
    again = compat.keras.serialize(tx, version=3)
    assert compat.keras.get(again) == tx
    assert again["config"].keys() == config["config"].keys()
    optimizer.build(variables_of())
    theirs = [jnp.asarray(START[k]) for k in ORDER]
    weights = [v.value for v in optimizer.variables]
    params = jax.tree.map(jnp.asarray, START)
    state, seen = tx.init(params), set()
    for i, g in enumerate(scaled_gradients()):
        if i == 10:  # over in the middle, by the weights
            state = compat.keras.set_weights(tx, params, weights, version=3, order=ORDER)
            back = compat.keras.get_weights(tx, state, params, version=3, order=ORDER)
            for ours, original in zip(back, weights, strict=True):
                np.testing.assert_allclose(ours, original, rtol=1e-5, atol=1e-7)
        counter, scale = int(weights[2]), float(weights[3])
        assert scale == gx.scaled_loss(1.0, state) and counter == state.finite_steps
        g = {k: scale * x for k, x in g.items()}
        updates, state = tx.update(jax.tree.map(jnp.asarray, g), state, params)
        params = gx.apply_updates(params, updates)
        theirs, weights = optimizer.stateless_apply(weights, [g[k] for k in ORDER], theirs)
        close(params, dict(zip(ORDER, theirs, strict=True)), 1e-5)
        seen.add(scale)
    assert {4.0, 8.0, 16.0, 32.0} == seen and state.total_skipped == 2


def test_a_file_with_loss_scaling(tmp_path):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2, name="dense")])
    optimizer = O.LossScaleOptimizer(O.Adam(0.1), dynamic_growth_steps=2)
    model.compile(optimizer, "mse")
    model.fit(np.ones((24, 3), np.float32), np.ones((24, 2), np.float32), 8, verbose=0)
    order = ["dense/kernel", "dense/bias"]
    values = dict(zip(("kernel", "bias"), model.trainable_variables, strict=True))
    params = {"dense": {k: jnp.asarray(v.value) for k, v in values.items()}}
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        tx, state = compat.keras.load_optimizer(tmp_path / name, params, order=order)
        assert isinstance(tx, gx.loss_scale) and tx.growth_interval == 2
        shown = gx.metrics(state)
        assert shown["loss_scale"] == 2.0**16 and shown["finite_steps"] == 1
        assert shown["step"] == 3
        back = compat.keras.get_weights(tx, state, params, version=3, order=order)
        for ours, theirs in zip(back, weights_of(optimizer), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


OTHER_SHAPES = {"wide": (2, 4), "tall": (4, 2), "square": (3, 3), "deep": (2, 3, 4), "b": (3,)}
OTHER_SHAPES |= {"embedding": (3, 2), "scalar": ()}
BY_SHAPE = {
    "Adafactor": lambda: O.Adafactor(0.1),
    "Adafactor: options": lambda: O.Adafactor(
        O.schedules.ExponentialDecay(0.5, 2, 0.9), relative_step=False, use_ema=True,
        gradient_accumulation_steps=2,
    ),
    "Muon": lambda: O.Muon(0.04, adam_lr_ratio=0.5, exclude_layers=["tall"]),
    "Muon: options": lambda: O.Muon(
        0.02, weight_decay=None, adam_weight_decay=None, nesterov=False, rms_rate=None,
        use_ema=True, loss_scale_factor=2.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_SHAPE)
def test_weights_that_depend_on_the_shape_go_there_and_back(name):
    order = list(OTHER_SHAPES)
    start = {k: RANDOM.normal(size=s).astype(np.float32) for k, s in OTHER_SHAPES.items()}
    grads = [
        {k: RANDOM.normal(size=s).astype(np.float32) for k, s in OTHER_SHAPES.items()}
        for _ in range(21)
    ]
    optimizer, variables = BY_SHAPE[name](), [keras.Variable(start[k], name=k) for k in order]

    def there(optimizer, variables, grads):
        for g in grads:
            optimizer.apply([g[k] for k in order], variables)
        return {k: np.asarray(v.value) for k, v in zip(order, variables, strict=True)}

    def check(ours, theirs):
        for k in order:
            scale = max(np.max(np.abs(x)) for x in theirs.values())
            np.testing.assert_allclose(ours[k], theirs[k], rtol=0, atol=1e-6 * scale, err_msg=k)

    tx = compat.keras.deserialize(O.serialize(optimizer))
    first = there(optimizer, variables, grads[:7])  # in the middle of an accumulation
    weights = weights_of(optimizer)
    state = compat.keras.set_weights(tx, first, weights, version=3, order=order)
    back = compat.keras.get_weights(tx, state, first, version=3, order=order)
    assert [x.dtype for x in back[1:]] == [x.dtype for x in weights[1:]]
    for ours, theirs in zip(back, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    # Here, and then there again, with a new optimizer that has our weights.
    middle, state = run(tx, state, first, grads[7:14])
    check(middle, there(optimizer, variables, grads[7:14]))
    variables = [keras.Variable(np.asarray(middle[k]), name=k) for k in order]
    again = BY_SHAPE[name]()
    again.build(variables)
    weights = compat.keras.get_weights(tx, state, middle, version=3, order=order)
    for v, x in zip(again.variables, weights, strict=True):
        v.assign(x)
    check(run(tx, state, middle, grads[14:])[0], there(again, variables, grads[14:]))


@pytest.mark.parametrize("optimizer", [O.Adafactor(0.1), O.Muon(0.1)], ids=["Adafactor", "Muon"])
def test_a_rate_of_the_state_goes_there_and_back(optimizer):
    """That of Adafactor is the number of its config, not what its steps take of it."""
    door = getattr(compat.keras3, type(optimizer).__name__)
    variables = variables_of()
    params = stepped(optimizer, variables, GRADS[:10])
    optimizer.learning_rate = 0.25
    tx = gx.inject_hyperparams(door)(0.1)
    weights = weights_of(optimizer)
    state = compat.keras.set_weights(tx, params, weights, version=3, order=ORDER)
    assert float(state.hyperparams["learning_rate"]) == 0.25
    back = compat.keras.get_weights(tx, state, params, version=3, order=ORDER)
    assert float(back[1]) == 0.25
    close(run(tx, state, params, GRADS[10:])[0], stepped(optimizer, variables, GRADS[10:]), 1e-6)
    with pytest.raises(ValueError, match=r"learning rate in the list is 0\.25, that of .* 0\.1"):
        compat.keras.set_weights(door(0.1), params, weights, version=3, order=ORDER)


@pytest.mark.parametrize("shape", [(5, 5, 2, 3), (5, 4, 3), (4, 3), (3, 4), (4,)])
def test_adafactor_factors_the_axes_that_keras_factors(shape):
    """The last two, also where others are longer; its weights go over and back."""
    rng = np.random.default_rng(0)
    tx, params = compat.keras3.Adafactor(0.1), {"k": rng.normal(size=shape).astype(np.float32)}
    grads = [{"k": rng.normal(size=shape).astype(np.float32)} for _ in range(4)]
    optimizer, variable = O.Adafactor(0.1), keras.Variable(params["k"], name="k")
    state = tx.init(params)
    for g in grads[:2]:
        optimizer.apply([g["k"]], [variable])
        updates, state = tx.update(g, state, params)
        params = gx.apply_updates(params, updates)
    np.testing.assert_allclose(params["k"], variable.value, 1e-5, 1e-6)
    theirs = [np.asarray(v.value) for v in optimizer.variables]
    ours = compat.keras.get_weights(tx, state, params, version=3)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5)
    state = compat.keras.set_weights(tx, params, theirs, version=3)
    for g in grads[2:]:
        optimizer.apply([g["k"]], [variable])
        updates, state = tx.update(g, state, params)
        params = gx.apply_updates(params, updates)
    np.testing.assert_allclose(params["k"], variable.value, 1e-5, 1e-6)


def test_moments_of_other_axes_are_refused():
    tx = gx.chain(gx.scale_by_factored_rms(min_dim_size_to_factor=0), gx.scale_by_learning_rate(1))
    params = {"k": np.ones((5, 4, 3), np.float32)}
    with pytest.raises(ValueError, match=r"^get_weights: \['k'\] has shape .*; Keras's Adafa"):
        compat.keras.get_weights(tx, tx.init(params), params, version=3)
    with pytest.raises(ValueError, match=r"^set_weights: \['k'\] has shape .* with init\.$"):
        compat.keras.set_weights(tx, params, [], version=3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_configs_go_round(name):
    """What Keras writes is what we write, and what Keras reads of it is the same optimizer."""
    config = O.serialize(OPTIMIZERS[name]())
    tx = compat.keras.deserialize(config)
    optimizer = OPTIMIZERS[name]()
    door = getattr(compat.keras3, type(optimizer).__name__)
    assert door.from_config(optimizer.get_config()) == tx
    ours = compat.keras.serialize(tx, version=3)
    # `O.deserialize` of Keras 3.15 does not know its own Lamb.
    again = O.serialize(keras.saving.deserialize_keras_object(json.loads(json.dumps(ours))))
    for c in (config, again):
        c["config"].pop("name")
    # AdamW with these arguments equals Adam with a weight decay: a transform knows no class.
    assert again["config"] == config["config"]


# ------------------------------------------------------------------------------------------ files

X = RANDOM.normal(size=(24, 4)).astype(np.float32)
Y = np.sin(3 * X[:, :2])


def model_of(optimizer, **layer):
    """A small model, always of the same numbers."""
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(3, activation="tanh", name="hidden", **layer)
    model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(2, name="out")])
    model.compile(optimizer, loss="mse")
    return model


def fit(model, epochs=2, callbacks=()):
    model.fit(X, Y, batch_size=6, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def params_of(model):
    """The parameters as a Flax tree has them, and their order in the model."""
    paths = ["/".join(v.path.split("/")[-2:]) for v in model.trainable_variables]
    tree = {}
    for path, v in zip(paths, model.trainable_variables, strict=True):
        layer, name = path.split("/")
        tree.setdefault(layer, {})[name] = np.asarray(v.value)
    return tree, paths


@pytest.fixture(scope="module")
def trained():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield fit(model_of(O.Adam(0.01, use_ema=True, weight_decay=0.1)), epochs=1)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_an_optimizer_comes_out_of_a_file_with_its_state(suffix, trained, tmp_path):
    path = tmp_path / f"model{suffix}"
    trained.save(path)
    params, order = params_of(trained)
    tx, state = compat.keras.load_optimizer(path, params, order=order)
    # The file has the learning rate of the variable, which is of 32 bits.
    rate = float(np.float32(0.01))
    assert tx == compat.keras3.Adam(rate, use_ema=True, weight_decay=0.1)
    weights = compat.keras.get_weights(tx, state, params, version=3, order=order)
    for ours, theirs in zip(weights, weights_of(trained.optimizer), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "optimizer",
    [O.Adafactor(0.01), O.Muon(0.01), O.Lamb(0.01), O.ScheduleFreeAdamW(0.01)],
    ids=["Adafactor", "Muon", "Lamb", "ScheduleFreeAdamW"],
)
def test_newer_optimizers_come_out_of_a_file(optimizer, tmp_path):
    path = tmp_path / "model.keras"
    model = fit(model_of(optimizer), epochs=1)
    model.save(path)
    params, order = params_of(model)
    tx, state = compat.keras.load_optimizer(path, params, order=order)
    assert tx == compat.keras.deserialize(O.serialize(optimizer))
    weights = compat.keras.get_weights(tx, state, params, version=3, order=order)
    for ours, theirs in zip(weights, weights_of(optimizer), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [O.Adam(0.01), "sgd"])
def test_an_optimizer_that_took_no_step_begins_anew(optimizer, tmp_path):
    path = tmp_path / "model.keras"
    model = model_of(optimizer)
    model.save(path)
    params, order = params_of(model)
    tx, state = compat.keras.load_optimizer(path, params, order=order)
    jax.tree.map(np.testing.assert_array_equal, state, tx.init(params))


def write_old(path, config, names, weights):
    """A file as Keras 1 and 2 write it: only what concerns the optimizer."""
    with h5py.File(path, "w") as file:
        file.attrs["training_config"] = json.dumps({"optimizer_config": config})
        group = file.create_group("optimizer_weights")
        half = len(names) // 2  # long lists of names are in several attributes
        group.attrs["weight_names0"] = [name.encode() for name in names[:half]]
        group.attrs["weight_names1"] = [name.encode() for name in names[half:]]
        for name, x in zip(names, weights, strict=True):
            group[name] = x


def test_files_of_keras_2_load(tmp_path):
    path = tmp_path / "old.h5"
    tx = compat.keras.Adam(0.1)
    state = run(tx, tx.init(START), START, GRADS[:3])[1]
    weights = compat.keras.get_weights(tx, state, START, order=ORDER)
    slots = [f"Adam/{k}/{slot}:0" for slot in "mv" for k in ORDER]
    write_old(path, compat.keras.serialize(tx), ["Adam/iter:0", *slots], weights)
    again, same = compat.keras.load_optimizer(path, START, order=ORDER)
    assert again == tx
    jax.tree.map(np.testing.assert_array_equal, same, state)


@pytest.mark.parametrize("with_rate", [False, True])
def test_files_of_keras_2_11_load(with_rate, tmp_path):
    path = tmp_path / "newer.h5"
    tx = compat.keras3.Adam(0.1)
    state = run(tx, tx.init(START), START, GRADS[:3])[1]
    iteration, rate, *slots = compat.keras.get_weights(tx, state, START, version=3, order=ORDER)
    config = {"class_name": "Adam", "config": {"learning_rate": 0.1, "jit_compile": True}}
    names = [f"Adam/{slot}/{k}:0" for k in ORDER for slot in "mv"]
    names = ["iteration:0", *(["learning_rate:0"] if with_rate else []), *names]
    write_old(path, config, names, [iteration, *([rate] if with_rate else []), *slots])
    again, same = compat.keras.load_optimizer(path, START, order=ORDER)
    assert again == tx
    jax.tree.map(np.testing.assert_array_equal, same, state)


# ---------------------------------------------------------------------------------------- as_keras


def test_a_bare_transform_is_refused_by_keras_and_as_keras_is_in_both_doors():
    # Keras looks at nothing but the class, and prints the transform: the guide quotes its words.
    model, tx = keras.Sequential([keras.layers.Dense(1)]), gx.sgd(0.1)
    words = "Could not interpret optimizer identifier"
    with pytest.raises(ValueError, match=f"^{words}: {re.escape(repr(tx))}$"):
        model.compile(optimizer=tx, loss="mse")
    guide = (ROOT / "docs" / "guides" / "keras_model.md").read_text()
    first = guide.split("\n\n")[1]
    assert "model.compile(optimizer=gx.compat.keras3.as_keras(tx), ...)" in first and words in first
    model.compile(optimizer=compat.keras3.as_keras(tx), loss="mse")
    assert model.optimizer.transform == tx
    for name in ("as_keras", "from_keras", "register_optimizer"):
        assert getattr(compat.keras3, name) is getattr(compat.keras, name)


class HalfTheRate(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        optimizer = self.model.optimizer
        optimizer.learning_rate = float(optimizer.learning_rate.value) / 2


OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.01},
    "average": {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3},
    "accumulation": {"gradient_accumulation_steps": 2},
    "loss scale": {"loss_scale_factor": 8.0},
    "constraint": {},
    "callback": {},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_fit_does_what_keras_own_optimizer_does(name):
    layer = {"kernel_constraint": keras.constraints.MaxNorm(0.7)} if name == "constraint" else {}
    calls = [HalfTheRate()] if name == "callback" else []
    options = OPTIONS[name]
    theirs, ours = (
        fit(model_of(optimizer, **layer), callbacks=calls).get_weights()
        for optimizer in (
            O.Adam(1e-2, **options),
            compat.keras.as_keras(compat.keras.Adam(1e-2), **options),
        )
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    if name != "plain":  # the option does something
        plain = fit(model_of(O.Adam(1e-2))).get_weights()
        seen = [np.max(np.abs(a - b)) for a, b in zip(plain, theirs, strict=True)]
        assert name == "loss scale" or max(seen) > 1e-4


TX = gx.chain(
    gx.add_noise(0.1, 0.5, 0),
    gx.masked(gx.trace(0.9), gx.path_matches("hidden/kernel")),
    gx.moving_average(gx.sgd(0.1), 0.9),
)


def test_a_saved_model_goes_on_bitwise(tmp_path):
    path = tmp_path / "model.keras"
    model = fit(model_of(compat.keras.as_keras(TX, 0.5, clipnorm=1.0, use_ema=True)))
    model.save(path)
    again = keras.saving.load_model(path)
    assert again.optimizer.transform == TX
    for m in (model, again):
        fit(m, epochs=1)
    assert again.optimizer.get_config() == model.optimizer.get_config()
    own = [v.value for m in (model, again) for v in (*m.variables, *m.optimizer.variables)]
    half = len(own) // 2
    for a, b in zip(own[:half], own[half:], strict=True):
        np.testing.assert_array_equal(a, b)


AS_KERAS = {
    "plain": (gx.adam(0.1), {}),
    "clip": (gx.chain(gx.trace(0.9), gx.scale(-0.5)), {"clipnorm": 0.1}),
    "groups": (gx.masked(gx.adam(0.1), gx.path_matches("hidden/kernel")), {"clipvalue": 0.01}),
    "options": (
        gx.chain(gx.moving_average(gx.sgd(0.1, 0.9), 0.9)),
        {"use_ema": True, "ema_momentum": 0.8, "gradient_accumulation_steps": 3},
    ),
    "scaled": (gx.adam(0.1), {"loss_scale_factor": 4.0, "weight_decay": 0.1}),
    "schedule": (
        gx.adam(gx.cosine_decay_schedule(0.1, 40)),
        {
            "learning_rate": O.schedules.ExponentialDecay(0.5, 3, 0.8),
            "gradient_accumulation_steps": 2,
        },
    ),
}


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("name", AS_KERAS)
def test_an_optimizer_of_as_keras_comes_out_of_a_file(name, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    inner, options = AS_KERAS[name]
    optimizer = compat.keras.as_keras(inner, **({"learning_rate": 0.5} | options))
    model = model_of(optimizer)
    fit(model)  # 8 steps: in the middle of three that accumulate
    model.save(path)
    params, order = params_of(model)
    tx, state = compat.keras.load_optimizer(path, params, order=order)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))
    # Go on with the same gradients there and here.
    variables = model.trainable_variables
    for seed in range(7):
        random = np.random.default_rng(seed)
        gradients = [random.normal(size=v.shape).astype(np.float32) for v in variables]
        optimizer.apply(gradients, variables)
        tree = {}
        for k, x in zip(order, gradients, strict=True):
            tree.setdefault(k.split("/")[0], {})[k.split("/")[1]] = x
        updates, state = jax.jit(tx.update)(tree, state, params)
        params = gx.apply_updates(params, updates)
    theirs, _ = params_of(model)
    for ours, x in zip(jax.tree.leaves(params), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(ours, x, rtol=0, atol=1e-6 * max(1, np.max(np.abs(x))))


def test_a_file_of_as_keras_with_other_parameters_is_refused(tmp_path):
    path = tmp_path / "model.keras"
    model = fit(model_of(compat.keras.as_keras(gx.adam(0.1))), epochs=1)
    model.save(path)
    params, order = params_of(model)
    with pytest.raises(ValueError, match=r"^load_optimizer: 0/mu/.* has shape .*, the file's"):
        compat.keras.load_optimizer(path, params, order=order[::-1])
    with pytest.raises(ValueError, match=r"^load_optimizer: the file has 9 arrays of chain, whose"):
        compat.keras.load_optimizer(path, {"hidden": params["hidden"]})
    model = fit(model_of(compat.keras.as_keras(gx.flatten(gx.trace(0.9)))), epochs=1)
    model.save(path)
    with pytest.raises(ValueError, match=r"^load_optimizer: flatten joins the parameters in the"):
        compat.keras.load_optimizer(path, params, order=order)


def test_slots_are_variables_named_by_their_paths():
    optimizer = compat.keras.as_keras(TX, name="mine")
    with pytest.raises(ValueError, match=r"mine: the optimizer has no state yet; call build"):
        _ = optimizer.state
    model = fit(model_of(optimizer), epochs=1)
    root = model.trainable_variables[0].path.split("/")[0]
    paths = [v.path for v in optimizer.variables]
    assert paths[:2] == ["mine/iteration", "mine/learning_rate"]
    assert f"mine/1.inner_state.trace.{root}.hidden.kernel" in paths
    assert not any("trace" in path and "out" in path for path in paths)
    momentum = optimizer.state[1].inner_state.trace[root]["hidden"]["kernel"]
    assert np.any(momentum)
    # A state may go out, and back.
    optimizer.set_state(jax.tree.map(jnp.zeros_like, optimizer.state))
    assert not np.any(optimizer.state[1].inner_state.trace[root]["hidden"]["kernel"])
    with pytest.raises(ValueError, match=r"mine: the state must have the structure and shapes of"):
        optimizer.set_state(optimizer.state[:2])


def test_what_is_saved_stands_in_the_order_of_the_model():
    """Not in that of names, in which dense_10 comes before dense_9; one name may serve twice."""
    tx = compat.keras.as_keras(gx.trace(0.9))
    own = ["m/dense_9/w", "m/dense_9/w", "m/dense_10/w", "m/dense_9/b", "m/dense_10"]
    variables = []
    for i, path in enumerate(own):
        variables.append(keras.Variable(np.zeros(i + 1, np.float32), name="x"))
        variables[-1]._path = path  # as the layers of a model name them
    tx.build(variables)
    assert [v.shape for v in tx.variables[2:]] == [(i + 1,) for i in range(5)]
    tx.apply([np.full(i + 1, i + 1, np.float32) for i in range(5)])
    for i, v in enumerate(variables):
        np.testing.assert_array_equal(v.value, np.full(i + 1, i + 1))


def test_a_missing_gradient_leaves_its_parameter_alone():
    tx, variables = compat.keras.as_keras(gx.adam(0.1)), variables_of()
    tx.build(variables)
    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        tx.apply([None, GRADS[0]["b"]], variables)
    np.testing.assert_array_equal(variables[0].value, START["w"])
    assert np.all(variables[1].value != START["b"])
    assert not np.any(tx.state[0].mu["w"]) and np.all(tx.state[0].mu["b"])


# -------------------------------------------------------------------------------------- from_keras


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adadelta"])
def test_a_keras_optimizer_is_a_transform(name):
    optimizer, variables = OPTIMIZERS[name](), variables_of()
    tx = compat.keras.from_keras(optimizer)
    assert tx == compat.keras.from_keras(OPTIMIZERS[name]()) != compat.keras.from_keras(O.SGD())
    assert hash(tx) == hash(compat.keras.from_keras(OPTIMIZERS[name]()))
    assert eval(repr(tx), vars(compat.keras)) == tx
    assert gx.from_json(gx.to_json(tx)) == tx
    here, state = run(tx, tx.init(START), START, GRADS[:4])
    close(here, stepped(optimizer, variables, GRADS[:4]), 1e-6)
    assert state.others["iteration"] == 4


def test_it_takes_part_in_chains_under_jit():
    tx = gx.chain(gx.scale(2.0), compat.keras.from_keras(O.SGD(0.1, momentum=0.9)))
    there = [jax.tree.map(lambda g: 2 * g, g) for g in GRADS[:3]]
    here, state = run(tx, tx.init(START), START, GRADS[:3])
    close(here, stepped(O.SGD(0.1, momentum=0.9), variables_of(), there), 1e-6)
    shapes = jax.eval_shape(tx.init, START)
    assert jax.tree.structure(shapes) == jax.tree.structure(state)
    # The rate is in the state, and what has no gradient stays.
    rated = state[1]._replace(others=state[1].others | {"learning_rate": jnp.float32(0.0)})
    updates, after = tx.update({"w": None, "b": GRADS[0]["b"]}, (state[0], rated), here)
    assert updates["w"] is None
    np.testing.assert_array_equal(after[1].slots["momentum"]["w"], rated.slots["momentum"]["w"])
    assert np.any(after[1].slots["momentum"]["b"] != rated.slots["momentum"]["b"])
    idle, same = tx.update({"w": None, "b": None}, state, here)
    assert idle == {"w": None, "b": None} and same[1].others["iteration"] == 3


@keras.saving.register_keras_serializable("tests")
class Mine(O.Optimizer):
    """A class of a user, which knows only one slot by its reference, and a plain variable."""

    def build(self, variables):
        super().build(variables)
        self.seen = self.add_variable(shape=(2,), name="seen")
        self.slots = [self.add_variable_from_reference(v, name="sum") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        slot = self.slots[self._get_variable_index(variable)]
        self.assign_add(slot, gradient)
        self.assign_add(self.seen, jnp.ones(2))
        self.assign_sub(variable, learning_rate * keras.ops.sign(slot.value))


def test_a_class_of_a_user_is_a_transform():
    tx = compat.keras.from_keras(Mine(0.5))
    here, state = run(tx, tx.init(START), START, GRADS[:3])
    close(here, stepped(Mine(0.5), variables_of(), GRADS[:3]), 1e-6)
    assert set(state.slots) == {"sum"}
    np.testing.assert_array_equal(state.others["seen"], [6.0, 6.0])


class Unregistered(Mine):
    pass


def test_strange_keras_are_refused(monkeypatch):
    """Another backend, and one that lacks what is overridden."""
    register = compat.keras.register_optimizer
    with monkeypatch.context() as patch:
        patch.setattr(keras.config, "backend", lambda: "torch")
        register.cache_clear()
        for make in (compat.keras.as_keras, lambda tx: compat.keras.from_keras(O.SGD())):
            with pytest.raises(RuntimeError, match=r"keras: Keras runs on the backend 'torch', on"):
                make(gx.sgd(0.1))
    with monkeypatch.context() as patch:
        patch.setattr(O, "Optimizer", object)
        with pytest.raises(RuntimeError, match=r"do not have the method _backend_update_step"):
            compat.keras.as_keras(gx.sgd(0.1))


REFUSED = [
    *(
        (lambda make=make, of=of: make(*of), kind, f"{name}: {words}")
        for name, make in (
            ("PiecewiseConstantDecay", compat.keras.PiecewiseConstantDecay),
            ("piecewise_constant", lambda *of: compat.tf1.piecewise_constant(None, *of)),
        )
        for of, kind, words in (
            (("ab", [1, 2, 3]), TypeError, "boundaries must be a list of numbers, got 'ab'."),
            ((3, [1, 2]), TypeError, "boundaries must be a list of numbers, got 3."),
            (({1: 2}, [1, 2]), TypeError, "boundaries must be a list of numbers, got {1: 2}."),
            (([1], None), TypeError, "values must be a list of numbers, got None."),
            (([1, "x"], [1, 2, 3]), TypeError, "boundaries[1] must be a number, got 'x'."),
            (([[1]], [1, 2]), TypeError, "boundaries[0] must be a number, got [1]."),
            (([True], [1, 2]), TypeError, "boundaries[0] must be a number, got True."),
            (([1j], [1, 2]), TypeError, "boundaries[0] must be a number, got 1j."),
            (([1], [[1], 2]), TypeError, "values[0] must be a number, got [1]."),
            (([np.inf], [1, 2]), ValueError, "boundaries[0] must be finite and at least 0, got in"),
            (([-4], [1, 2]), ValueError, "boundaries[0] must be finite and at least 0, got -4."),
            (([2, 1], [1, 2, 3]), ValueError, "boundaries must increase by whole steps, got 2 bef"),
            (([1], [1.0]), ValueError, "values must have one more element than boundaries, got 1"),
        )
    ),
    (lambda: compat.keras.as_keras(O.SGD()), TypeError, "as_keras: tx"),
    (lambda: compat.keras.as_keras(gx.sgd), TypeError, "as_keras: tx"),
    (
        lambda: compat.keras.as_keras(gx.sgd(0.1), weight_decay=0.004),
        ValueError,
        "as_keras: weight_decay=0.004 at a learning rate of 1 would shrink the parameters by that",
    ),
    (
        lambda: compat.keras.as_keras(gx.sgd(0.1), "fast"),
        TypeError,
        "as_keras: learning_rate must be a number or a schedule of Keras, got 'fast'.",
    ),
    (
        lambda: compat.keras.as_keras(gx.loss_scale(gx.sgd(0.1))),
        ValueError,
        "as_keras: Keras scales the loss only for its own class; leave loss_scale out, and",
    ),
    (
        lambda: compat.keras.from_keras("adam"),
        TypeError,
        "from_keras: optimizer must be an optimizer of Keras 3, got 'adam'; compat.keras.get reads",
    ),
    (
        lambda: compat.keras.from_keras(O.LossScaleOptimizer(O.SGD())),
        ValueError,
        "from_keras: LossScaleOptimizer is compat.keras.LossScaleOptimizer here, a loss_scale",
    ),
    (
        lambda: compat.keras.from_keras(Unregistered(0.1)),
        ValueError,
        "from_keras: Keras cannot make the optimizer of its config; register its class with",
    ),
    (
        lambda: compat.keras.from_keras(config=3),
        TypeError,
        "from_keras: config must be JSON text, and without an optimizer.",
    ),
    (
        lambda: compat.keras.from_keras(O.SGD()).update(GRADS[0], (), START),
        TypeError,
        "from_keras: the state must be of kind FromKerasState, got tuple.",
    ),
    (
        lambda: compat.keras.from_keras(O.SGD()).update(GRADS[0], None),
        ValueError,
        "from_keras: needs the parameters; call update(updates, state, params).",
    ),
]


@pytest.mark.parametrize("call, error, words", REFUSED, ids=[words for *_, words in REFUSED])
def test_wrong_input_is_refused(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)

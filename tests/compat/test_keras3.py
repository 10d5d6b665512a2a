"""The doors of Keras 3 beside their equations in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras
from gradxform.compat.keras import keras3, schedules
from tests.public import names_of

pytestmark = pytest.mark.numeric

SHAPES = {"embedding": (3, 2), "b": (4,), "w": (4, 3)}
RATE = keras.ExponentialDecay(0.5, 3, 0.6)


def rate(n):
    return 0.5 * 0.6 ** (n / 3)


class Original:
    """One optimizer of Keras 3: its step, and what the base class does around it.

    `step(g, p, slots, lr, t)` returns the new parameter; `slots` is a dict of the parameter's own.
    """

    def __init__(self, step, lr, **options):
        self.step, self.lr, self.options, self.calls = step, lr, options, 0
        self.slots, self.sums, self.averages = {}, {}, {}

    def apply(self, grads, ps):
        o = self.options
        k, steps = o.get("k", 1), self.calls // o.get("k", 1)
        lr = self.lr(self.calls) if callable(self.lr) else self.lr
        grads = {n: g / o.get("factor", 1) for n, g in grads.items()}
        for n, g in grads.items():
            self.sums[n] = self.sums.get(n, 0) + g
        if (self.calls + 1) % k == 0:
            grads = {n: g / k for n, g in self.sums.items()}
            self.sums = {}
            grads = self.clipped(grads)
            for n, g in grads.items():
                p = ps[n] - o.get("decay", 0) * lr * ps[n]
                ps[n] = self.step(n, g, p, self.slots.setdefault(n, {}), lr, steps + 1)
        if "ema" in o:
            for n, p in ps.items():
                d = 0 if steps == 0 else o["ema"]
                self.averages[n] = d * self.averages.get(n, 0) + (1 - d) * p
                if "every" in o and (steps + 1) % o["every"] == 0:
                    ps[n] = self.averages[n].copy()
        self.calls += 1

    def clipped(self, grads):
        if "clipnorm" in self.options:
            c = self.options["clipnorm"]
            return {n: g * c / max(np.sqrt(np.sum(g**2)), c) for n, g in grads.items()}
        return grads


def sgd(n, g, p, s, lr, t):
    s["m"] = 0.8 * s.get("m", 0) - lr * g
    return p + 0.8 * s["m"] - lr * g


def plain(n, g, p, s, lr, t):
    return p - lr * g


def rmsprop(n, g, p, s, lr, t):
    s["v"] = 0.8 * s.get("v", 0) + 0.2 * g**2
    return p - lr * g / np.sqrt(s["v"] + 0.1)


def centered(n, g, p, s, lr, t):
    s["v"] = 0.8 * s.get("v", 0) + 0.2 * g**2
    s["a"] = 0.8 * s.get("a", 0) + 0.2 * g
    s["m"] = 0.7 * s.get("m", 0) + lr * g / np.sqrt(s["v"] - s["a"] ** 2 + 0.1)
    return p - s["m"]


def adagrad(n, g, p, s, lr, t):
    s["v"] = s.get("v", 0.2) + g**2
    return p - lr * g / np.sqrt(s["v"] + 0.1)


def adam(n, g, p, s, lr, t):
    s["m"] = 0.8 * s.get("m", 0) + 0.2 * g
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g**2
    alpha = lr * np.sqrt(1 - 0.9**t) / (1 - 0.8**t)
    return p - alpha * s["m"] / (np.sqrt(s["v"]) + 0.1)


def nadam(n, g, p, s, lr, t):
    u, u_next = (0.8 * (1 - 0.5 * 0.96**i) for i in (t, t + 1))
    s["product"] = s.get("product", 1) * u
    s["m"] = 0.8 * s.get("m", 0) + 0.2 * g
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g**2
    m = u_next * s["m"] / (1 - s["product"] * u_next) + (1 - u) * g / (1 - s["product"])
    return p - lr * m / (np.sqrt(s["v"] / (1 - 0.9**t)) + 0.1)


def lion(n, g, p, s, lr, t):
    m = s.get("m", 0)
    s["m"] = 0.7 * m + 0.3 * g
    return p - lr * np.sign(0.8 * m + 0.2 * g)


def lamb(n, g, p, s, lr, t):
    s["m"] = 0.8 * s.get("m", 0) + 0.2 * g
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g**2
    u = s["m"] / (1 - 0.8**t) / (np.sqrt(s["v"] / (1 - 0.9**t)) + 0.1)
    return p - lr * np.sqrt(np.sum(p**2) / np.sum(u**2)) * u


def schedule_free(n, g, p, s, lr, t):
    """With p after the decay; lr is that of the decay, too, and warms up in 4 steps."""
    z = s.get("z", p / (1 - 0.3 * lr))
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g**2
    x = (p - (1 - 0.8) * z) / 0.8
    s["z"] = z - lr * min(t / 4, 1) * g / (np.sqrt(s["v"] / (1 - 0.9**t)) + 0.1)
    x = (1 - 1 / t) * x + s["z"] / t
    return 0.8 * x + (1 - 0.8) * s["z"]


def adafactor(n, g, p, s, lr, t):
    def rms(x):
        return np.sqrt(np.mean(x**2))

    square, b = g**2 + 1e-5, 1 - t**-0.7
    if g.ndim < 2:
        v = s["v"] = b * s.get("v", 0) + (1 - b) * square
    else:
        r = s["r"] = b * s.get("r", 0) + (1 - b) * square.mean(-1)
        c = s["c"] = b * s.get("c", 0) + (1 - b) * square.mean(-2)
        v = np.expand_dims(r / r.mean(-1, keepdims=True), -1) * np.expand_dims(c, -2)
    u = g / np.sqrt(v)
    return p - max(0.3, rms(p)) * min(lr, 1 / np.sqrt(t)) * u / max(1, rms(u) / 0.8)


def muon(n, g, p, s, lr, t):
    if n != "w":  # vectors and embeddings
        return adam(n, g, p, s, 0.5 * lr, t) - 0.2 * lr * 0  # their decay is in `decayed_muon`
    s["m"] = 0.9 * s.get("m", 0) + g
    x = (g + 0.9 * s["m"]).T
    x = x / (np.sqrt(np.sum(x**2)) + 1e-7)
    for _ in range(3):
        a = x @ x.T
        x = 3.4 * x + (-4.7 * a + 2.0 * a @ a) @ x
    return p - lr * x.T * np.sqrt(4) * 0.3


def decayed_muon(n, g, p, s, lr, t):
    return muon(n, g, p - lr * (0.3 if n == "w" else 0.2) * p, s, lr, t)


B = {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 0.1}
DOORS = {
    "SGD": (keras3.SGD(0.1, 0.8, True), Original(sgd, 0.1)),
    "SGD/decay": (
        keras3.SGD(RATE, weight_decay=0.2, clipnorm=0.7),
        Original(plain, rate, decay=0.2, clipnorm=0.7),
    ),
    "SGD/accumulated": (
        keras3.SGD(RATE, 0.8, True, gradient_accumulation_steps=2, clipnorm=0.7, weight_decay=0.1),
        Original(sgd, rate, k=2, clipnorm=0.7, decay=0.1),
    ),
    "RMSprop": (keras3.RMSprop(0.1, 0.8, epsilon=0.1), Original(rmsprop, 0.1)),
    "RMSprop/centered": (keras3.RMSprop(0.1, 0.8, 0.7, 0.1, True), Original(centered, 0.1)),
    "Adagrad": (keras3.Adagrad(0.1, 0.2, 0.1), Original(adagrad, 0.1)),
    "Adam": (keras3.Adam(RATE, **B, loss_scale_factor=4.0), Original(adam, rate, factor=4)),
    "Adam/average": (
        keras3.Adam(0.1, **B, use_ema=True, ema_momentum=0.6),
        Original(adam, 0.1, ema=0.6),
    ),
    "Adam/overwritten": (
        keras3.Adam(
            RATE,
            **B,
            use_ema=True,
            ema_momentum=0.6,
            ema_overwrite_frequency=2,
            gradient_accumulation_steps=2,
        ),
        Original(adam, rate, ema=0.6, every=2, k=2),
    ),
    "AdamW": (keras3.AdamW(RATE, 0.3, **B), Original(adam, rate, decay=0.3)),
    "Nadam": (keras3.Nadam(RATE, **B), Original(nadam, rate)),
    "Lion": (keras3.Lion(0.1, 0.8, 0.7), Original(lion, 0.1)),
    "Lamb": (keras3.Lamb(RATE, **B, weight_decay=0.3), Original(lamb, rate, decay=0.3)),
    "Lamb/accumulated": (
        keras3.Lamb(0.1, **B, gradient_accumulation_steps=2, clipnorm=0.7),
        Original(lamb, 0.1, k=2, clipnorm=0.7),
    ),
    "ScheduleFreeAdamW": (
        keras3.ScheduleFreeAdamW(RATE, **B, warmup_steps=4, weight_decay=0.3),
        Original(schedule_free, rate, decay=0.3),
    ),
    "Adafactor": (
        keras3.Adafactor(0.6, -0.7, 1e-5, 0.3, 0.8, weight_decay=0.1),
        Original(adafactor, 0.6, decay=0.1),
    ),
    "Muon": (
        keras3.Muon(
            RATE,
            adam_beta_1=0.8,
            adam_beta_2=0.9,
            adam_weight_decay=0.2,
            epsilon=0.1,
            weight_decay=0.3,
            muon_a=3.4,
            muon_b=-4.7,
            muon_c=2.0,
            adam_lr_ratio=0.5,
            momentum=0.9,
            ns_steps=3,
            rms_rate=0.3,
        ),
        Original(decayed_muon, rate),
    ),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", DOORS)
def test_every_door_of_keras_3_follows_its_equations(name):
    tx, original = DOORS[name]
    rng = np.random.default_rng(5)
    wide = {k: rng.normal(size=n) for k, n in SHAPES.items()}
    tree = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), wide)
    state = tx.init(tree)
    update = jax.jit(tx.update)
    for _ in range(8):
        grads = {k: rng.normal(size=n) for k, n in SHAPES.items()}
        original.apply({k: g.copy() for k, g in grads.items()}, wide)
        like = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads)
        updates, state = update(like, state, tree)
        tree = gx.apply_updates(tree, updates)
        for k, p in wide.items():
            np.testing.assert_allclose(tree[k], p, rtol=0, atol=1e-5 * np.max(np.abs(p)), err_msg=k)
    for k, average in original.averages.items():
        mine = gx.eval_params(state, tree)[k]
        np.testing.assert_allclose(mine, average, rtol=0, atol=1e-5 * np.max(np.abs(average)))


@pytest.mark.parametrize("name", DOORS)
def test_every_door_of_keras_3_is_read_off_its_parts(name):
    tx = DOORS[name][0]
    config = keras.serialize(tx, "mine", version=3)
    assert config["config"]["name"] == "mine" and config["module"] == "keras.optimizers"
    assert keras.deserialize(config) == tx
    assert eval(repr(tx), names_of(gx) | vars(schedules) | vars(keras3)) == tx
    assert gx.from_json(gx.to_json(tx)) == tx


@pytest.mark.parametrize("ratio", [1.0, 0.1, 0.3])
def test_the_ratio_of_two_learning_rates_is_read_off_both(ratio):
    tx = keras3.Muon(0.007, adam_lr_ratio=ratio, nesterov=False, rms_rate=None)
    config = keras.serialize(tx)
    assert keras.deserialize(config) == tx and config["config"]["adam_lr_ratio"] == ratio


@pytest.mark.parametrize("patterns", [["^head", "norm"], ["(?i)embedding"]])
@pytest.mark.parametrize("embeddings", [True, False])
def test_the_layers_that_muon_leaves_out_are_read_off(patterns, embeddings):
    tx = keras3.Muon(0.1, exclude_layers=patterns, exclude_embeddings=embeddings)
    config = keras.serialize(tx)
    assert keras.deserialize(config) == tx
    if "head" in patterns[0]:
        assert config["config"]["exclude_layers"] == patterns


def test_other_patterns_of_muon_leave_layers_to_adam():
    tx = keras3.Muon(0.1, exclude_layers=["^head"], exclude_embeddings=False)
    tree = {"head": jnp.ones((2, 3)), "embedding": jnp.ones((2, 3))}
    labels = tx.transforms[0].param_labels(tree)
    assert labels == {"head": "adam", "embedding": "muon"}


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"weight_decay": 0.1}])
def test_a_rate_that_is_a_function_without_arguments_is_called_at_each_step(options):
    now = [0.0]
    tx = keras3.SGD(lambda: now[0], **options)
    params, state = {"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)})
    for now[0] in (0.5, 0.25):
        for _ in range(options.get("gradient_accumulation_steps", 1)):
            old = params
            params, state = gx.apply_gradients(tx, {"w": jnp.ones(2)}, state, params)
        step = now[0] + now[0] * options.get("weight_decay", 0.0) * old["w"]
        np.testing.assert_allclose(params["w"], old["w"] - step, rtol=1e-6)
    with pytest.raises(TypeError, match="inject_hyperparams"):
        jax.jit(tx.update)(params, state, params)


REFUSED = [
    (lambda: keras3.SGD(clipnorm=1.0, clipvalue=2.0), "only one of clipnorm, global_clipnorm, cli"),
    (lambda: keras3.SGD(clipnrm=1.0), "SGD: unknown argument 'clipnrm', only learning_rate,"),
    (lambda: keras3.SGD(weight_decay=-0.1), "SGD: weight_decay must be at least 0, got -0.1."),
    (lambda: keras3.SGD(gradient_accumulation_steps=1), "must be an integer of at least 2, or"),
    (lambda: keras3.SGD(ema_overwrite_frequency=0.5), "ema_overwrite_frequency must be an integer"),
    (lambda: keras3.SGD(loss_scale_factor=0.0), "loss_scale_factor must be greater than 0, or"),
    (lambda: keras3.SGD(use_ema=True, ema_momentum=1.5), "decay must be in [0, 1), got 1.5."),
]


@pytest.mark.parametrize("call, words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_keras_3_refuses_is_refused(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{}, {"use_ema": True}, {"gradient_accumulation_steps": 2}, {"weight_decay": 0.1}],
)
def test_the_constant_scale_of_an_optimizer_does_not_count_inside_a_loss_scale(options):
    with_factor = keras3.SGD(0.1, loss_scale_factor=64, **options)
    tx = keras3.LossScaleOptimizer(with_factor)
    assert tx == keras3.LossScaleOptimizer(keras3.SGD(0.1, **options))


@pytest.mark.parametrize("name", ["Lamb", "Muon", "ScheduleFreeAdamW"])
def test_what_came_after_keras_2_15_is_not_written_in_its_form(name):
    with pytest.raises(ValueError, match=r"^serialize: no optimizer of Keras 2\.15 has these"):
        keras.serialize(getattr(keras3, name)(0.1), version=2.15)


def test_the_average_of_schedule_free_adamw_is_evaluated_and_swapped():
    tx = keras3.ScheduleFreeAdamW(0.1, 0.8, warmup_steps=3, weight_decay=0.2)
    rng = np.random.default_rng(3)
    params = {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}
    state = tx.init(params)
    for _ in range(4):
        grads = {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}
        params, state = gx.apply_gradients(tx, grads, state, params)
    y, z = params["w"], state[0].z["w"]
    x = gx.eval_params(state, params)["w"]
    np.testing.assert_allclose(0.8 * x + 0.2 * z, y, rtol=0, atol=1e-6)
    assert np.max(np.abs(x - y)) > 1e-3
    averages, swapped = gx.swap(state, params)
    np.testing.assert_array_equal(averages["w"], x)
    jax.tree.map(np.testing.assert_array_equal, gx.swap(swapped, averages), (params, state))


def test_the_weight_decay_of_schedule_free_adamw_leaves_z_where_it_is():
    tx, params = keras3.ScheduleFreeAdamW(0.1, weight_decay=0.5), {"w": jnp.ones(2)}
    zero = {"w": jnp.zeros(2)}
    state = tx.init(params)
    for _ in range(3):
        params, state = gx.apply_gradients(tx, zero, state, params)
    np.testing.assert_array_equal(state[0].z["w"], 1.0)
    assert np.all(params["w"] < 1)


def test_schedule_free_adamw_refuses_rows():
    rows = gx.sparse.RowSparse(jnp.array([0, 2]), jnp.ones((2, 2)), 5)
    params = {"w": jnp.ones((5, 2))}
    tx = keras3.ScheduleFreeAdamW(0.1)
    with pytest.raises(TypeError, match="step_by_schedule_free_adam: moves every row towards an"):
        tx.update({"w": rows}, tx.init(params), params)

"""The doors with other arguments than the recorded ones, beside their equations in NumPy."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, returnn, tf1, tf_contrib
from tests import references as ref
from tests.catalogue.case import gradients, matrix
from tests.public import names_of
from tests.references import as_tree

pytestmark = pytest.mark.numeric

FIRST = 4  # the global step of the first update
RATE = tf1.exponential_decay(0.5, decay_steps=3, decay_rate=0.6)


def rate(n):
    """The learning rate at the global step of the update number n."""
    return 0.5 * 0.6 ** ((n + FIRST) / 3)


def own(n):
    """The same where the global step is not read."""
    return 0.5 * 0.6 ** (n / 3)


def down(lr):
    return ref.scale((lambda n: -lr(n)) if callable(lr) else -lr)


def clipped(value=None, each=None, together=None):
    """Keras's clips in their order."""
    parts = [] if value is None else [ref.clip(value)]
    parts += [] if each is None else [ref.clip_by_block_norm(each)]
    return parts + ([] if together is None else [ref.clip_by_global_norm(together)])


def adamax(b1, b2, eps):
    def step(g, slots, p, t):
        m, v = b1 * slots[0] + (1 - b1) * g, np.maximum(b2 * slots[1], np.abs(g))
        return m / (1 - b1**t) / (v + eps), (m, v)

    return ref.Reference(ref.zeros(2), step)


def adadelta(rho, eps):
    def step(g, slots, p, t):
        s = rho * slots[0] + (1 - rho) * g**2
        u = np.sqrt(slots[1] + eps) / np.sqrt(s + eps) * g
        return u, (s, rho * slots[1] + (1 - rho) * u**2)

    return ref.Reference(ref.zeros(2), step)


def signs(left):
    return lambda agree, n: 0.5 + left(n + FIRST) * agree


def later(part):
    """The rule as if FIRST steps had gone before: it reads the global step."""
    return ref.Reference(part.start, lambda g, s, p, t: part.step(g, s, p, FIRST + t))


def only_b(p):
    """The parameter called b is the vector."""
    return p.ndim == 1


W, S = (4, 3), ()
HAT = ref.adam_hat(0.8, 0.9, 0.1)
DOORS = {
    "tf1.GradientDescent": (tf1.GradientDescent(RATE), [down(rate)]),
    "tf1.Momentum": (
        tf1.Momentum(RATE, 0.8, use_nesterov=True),
        [ref.trace(0.8, True), down(rate)],
    ),
    "tf1.Adagrad": (tf1.Adagrad(RATE, 0.01), [ref.adagrad(0.01, 0.0), down(rate)]),
    "tf1.Adadelta": (tf1.Adadelta(0.5, 0.8, 0.01), [adadelta(0.8, 0.01), down(0.5)]),
    "tf1.AdagradDA": (
        tf1.AdagradDA(0.1, None, 0.2, 0.01, 0.3),
        [later(ref.adagrad_da(0.1, 0.2, 0.01, 0.3))],
    ),
    "tf1.AdagradDA/constant": (
        tf1.AdagradDA(0.1, 2, 0.2, 0.01, 0.3),
        [ref.shifted(ref.adagrad_da(0.1, 0.2, 0.01, 0.3), 2)],
    ),
    "tf1.Adam": (tf1.Adam(RATE, 0.8, 0.9, 0.1), [HAT, down(rate)]),
    "tf1.RMSProp": (
        tf1.RMSProp(RATE, 0.8, 0.7, 0.1, centered=True),
        [ref.stddev(0.8, 0.1, 1.0), down(rate), ref.trace(0.7)],
    ),
    "tf1.Ftrl": (
        tf1.Ftrl(RATE, -0.6, 0.2, 0.01, 0.02, l2_shrinkage_regularization_strength=0.03),
        [ref.ftrl(rate, -0.6, 0.2, 0.01, 0.02, 0.03)],
    ),
    "tf1.ProximalAdagrad": (
        tf1.ProximalAdagrad(0.1, 0.2, 0.3, 0.4),
        [ref.proximal_adagrad(0.1, 0.2, 0.3, 0.4)],
    ),
    "tf1.ProximalGradientDescent": (
        tf1.ProximalGradientDescent(RATE, 0.3, 0.4),
        [ref.proximal_sgd(rate, 0.3, 0.4)],
    ),
    "contrib.AdaMax": (
        tf_contrib.AdaMax(RATE, 0.8, 0.9, 0.1),
        [adamax(0.8, 0.9, 0.1), down(rate)],
    ),
    "contrib.AdamGS": (
        tf_contrib.AdamGS(None, RATE, 0.8, 0.9, 0.1),
        [later(HAT), down(rate)],
    ),
    "contrib.AdamGS/default": (
        tf_contrib.AdamGS(learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=0.1),
        [ref.shifted(HAT, 0), down(0.1)],
    ),
    "contrib.AdamGS/constant": (  # the schedule follows the step all the same
        tf_contrib.AdamGS(np.int64(2), RATE, 0.8, 0.9, 0.1),
        [ref.shifted(HAT, 2), down(rate)],
    ),
    "contrib.LazyAdam": (tf_contrib.LazyAdam(0.1, 0.8, 0.9, 0.1), [HAT, down(0.1)]),
    "contrib.LazyAdamGS": (
        tf_contrib.LazyAdamGS(None, 0.1, 0.8, 0.9, 0.1),
        [later(HAT), down(0.1)],
    ),
    "contrib.LazyAdamGS/default": (
        tf_contrib.LazyAdamGS(learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=0.1),
        [ref.shifted(HAT, 0), down(0.1)],
    ),
    "contrib.LazyAdamGS/constant": (
        tf_contrib.LazyAdamGS(jnp.asarray(2), RATE, 0.8, 0.9, 0.1),
        [ref.shifted(HAT, 2), down(rate)],
    ),
    "contrib.AdamW": (
        tf_contrib.AdamW(0.2, RATE, 0.8, 0.9, 0.1, decay_var_list=["b"]),
        [HAT, down(rate), ref.only(only_b, ref.decay_down(0.2))],
    ),
    "contrib.AdamW/all": (
        tf_contrib.AdamW(0.2, 0.1, 0.8, 0.9, 0.1, decay_var_list=[]),
        [HAT, down(0.1), ref.decay_down(0.2)],
    ),
    "contrib.MomentumW": (
        tf_contrib.MomentumW(0.2, 0.1, 0.8, use_nesterov=True),
        [ref.trace(0.8, True), down(0.1), ref.decay_down(0.2)],
    ),
    "contrib.AddSign": (
        tf_contrib.AddSign(RATE, 0.5, 0.8, tf_contrib.get_linear_decay_fn(6)),
        [ref.agreement(0.8, signs(lambda n: max(0, (6 - n) / 6))), down(rate)],
    ),
    "contrib.PowerSign": (
        tf_contrib.PowerSign(0.1, 2.0, 0.8, tf_contrib.get_restart_decay_fn(20, 2)),
        [
            ref.agreement(
                0.8,
                lambda agree, n: (
                    2.0 ** ((1 + np.cos(np.pi * (2 * (n + FIRST) % 20) / 20)) / 2 * agree)
                ),
            ),
            down(0.1),
        ],
    ),
    "contrib.LARS": (
        tf_contrib.LARS(RATE, 0.8, 0.1, 0.05, 0.01, skip_list=["b", "s"], use_nesterov=True),
        [ref.lars_sum(0.1, 0.05, 0.01, matrix), down(rate), ref.trace(0.8, True)],
    ),
    "contrib.Nadam": (
        tf_contrib.Nadam(RATE, 0.8, 0.9, 0.1),
        [ref.adam_hat(0.8, 0.9, 0.1, True), down(rate)],
    ),
    "contrib.RegAdagrad": (
        tf_contrib.RegAdagrad(0.1, 0.2),
        [ref.adagrad(0.2, 0.0), down(0.1)],
    ),
    "returnn.AMSGrad": (
        returnn.AMSGrad(0.1, decay=True, beta1=0.8, beta2=0.9, epsilon=0.1),
        [
            ref.amsgrad(0.8, 0.9, 0.1, False, False),
            ref.scale(lambda n: -0.1 / np.sqrt(n + 1)),
        ],
    ),
    "returnn.CustomAdam": (
        returnn.CustomAdam(0.8, 0.9, 0.1, learning_rate=RATE),
        [HAT, down(rate)],
    ),
    "returnn.GradVarianceScaled": (
        returnn.GradVarianceScaled(0.8, 0.9, 0.1, learning_rate=0.1),
        [ref.grad_variance(0.8, 0.9, 0.1), down(0.1)],
    ),
    "returnn.NeuralOptimizer1": (
        returnn.NeuralOptimizer1(0.8, 0.3, learning_rate=0.1),
        [ref.agreement(0.8, lambda agree, n: np.where(agree > 0, 1, 0.3)), down(0.1)],
    ),
    "returnn.NormalizedSGD": (
        returnn.NormalizedSGD(0.1),
        [ref.block_normalized(), down(0.1)],
    ),
    "keras.SGD": (
        keras.SGD(keras.ExponentialDecay(0.5, 3, 0.6), 0.8, nesterov=True),
        [down(rate), ref.trace(0.8, True)],
    ),
    "keras.SGD/decay": (
        keras.SGD(0.1, decay=0.3, clipvalue=0.5, global_clipnorm=0.7),
        [*clipped(0.5, None, 0.7), ref.scale(lambda n: -0.1 / (1 + 0.3 * (n + FIRST)))],
    ),
    "keras.RMSprop": (
        keras.RMSprop(0.1, 0.8, epsilon=0.1, clipnorm=0.5),
        [*clipped(each=0.5), ref.rms(0.8, 0.1, inside=False), down(0.1)],
    ),
    "keras.RMSprop/momentum": (
        keras.RMSprop(0.1, 0.8, 0.7, 0.1, centered=True),
        [ref.stddev(0.8, 0.1), down(0.1), ref.trace(0.7)],
    ),
    "keras.RMSprop/centered": (
        keras.RMSprop(0.1, 0.8, 0.0, 0.1, centered=True),
        [ref.stddev(0.8, 0.1, inside=False), down(0.1)],
    ),
    "keras.Adagrad": (
        keras.Adagrad(lr=0.2, epsilon=0.1),
        [ref.adagrad_outside(0.1, 0.1), down(0.2)],
    ),
    "keras.Adadelta": (
        keras.Adadelta(0.5, 0.8, 0.01),
        [adadelta(0.8, 0.01), down(0.5)],
    ),
    "keras.Adam": (
        keras.Adam(0.1, 0.8, 0.9, 0.1, clipvalue=0.9, clipnorm=0.8),
        [*clipped(0.9, 0.8), HAT, down(0.1)],
    ),
    "keras.Adam/amsgrad": (
        keras.Adam(0.1, 0.8, 0.9, 0.1, amsgrad=True, decay=0.2),
        [
            ref.keras_amsgrad(0.8, 0.9, 0.1),
            ref.scale(lambda n: -0.1 / (1 + 0.2 * (n + FIRST))),
        ],
    ),
    "keras.Adam/no epsilon": (
        keras.Adam(0.1, epsilon=0),
        [ref.adam_hat(0.9, 0.999, 1e-7), down(0.1)],
    ),
    "keras.Adam/clip to nothing": (keras.Adam(0.1, clipnorm=0), [ref.set_to_zero]),
    "keras.Adamax": (keras.Adamax(0.1, 0.8, 0.9, 0.1), [adamax(0.8, 0.9, 0.1), down(0.1)]),
    "keras.Nadam": (
        keras.Nadam(0.1, 0.8, 0.9, 0.1, schedule_decay=0.2, decay=9.0),
        [ref.keras_nadam(0.8, 0.9, 0.1, 0.2), down(0.1)],
    ),
    "keras.Ftrl": (
        keras.Ftrl(keras.InverseTimeDecay(0.5, 3, 0.6), beta=0.4, decay=0.1),
        [ref.ftrl(lambda n: 0.5 / (1 + 0.6 * (n + FIRST) / 3) / (1 + 0.1 * (n + FIRST)), beta=0.4)],
    ),
}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_follows_its_equations(name):
    tx, parts = DOORS[name]
    reference = as_tree(ref.sequence(*parts))
    rng = np.random.default_rng(3)
    tree = {k: jnp.asarray(rng.normal(size=n), jnp.float32) for k, n in [("b", 4), ("s", S)]}
    tree["w"] = jnp.asarray(rng.normal(size=W), jnp.float32)
    wide = [np.asarray(p, np.float64) for p in jax.tree.leaves(tree)]
    theirs, state = reference.start(wide), tx.init(tree)
    start = [p.copy() for p in wide]
    update = jax.jit(tx.update)
    for t, g in enumerate(gradients(tree, 8), 1):
        flat = [np.asarray(x, np.float64) for x in jax.tree.leaves(g)]
        us, theirs = reference.step(flat, theirs, wide, t)
        wide = [p + u for p, u in zip(wide, us, strict=True)]
        step = jnp.asarray(FIRST + t - 1, jnp.int32)
        updates, state = update(g, state, tree, step=step)
        tree = gx.apply_updates(tree, updates)
    for ours, expected, first in zip(jax.tree.leaves(tree), wide, start, strict=True):
        moved = max(np.max(np.abs(expected - first)), 1e-3)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5 * moved + 3e-7)


@pytest.mark.parametrize("name", DOORS)
def test_every_door_is_a_value_that_prints_and_serializes(name):
    tx = DOORS[name][0]
    assert eval(repr(tx), names_of(gx)) == tx
    assert gx.from_json(gx.to_json(tx)) == tx


@pytest.mark.parametrize("module", [tf1, tf_contrib, returnn, keras])
def test_every_door_documents_its_composition(module):
    for name, door in vars(module).items():
        if inspect.isfunction(door) and name[0].isupper() and door.__module__ == module.__name__:
            assert "`" in (door.__doc__ or ""), name


def test_without_a_step_the_doors_count_for_themselves():
    tree = {"w": jnp.ones(3)}
    for tx in (tf1.GradientDescent(RATE), tf_contrib.AdamGS(None), tf1.AdagradDA(0.1)):
        state = tx.init(tree)
        for n in range(3):
            counted, after = tx.update(tree, state, tree)
            given, _ = tx.update(tree, state, tree, step=n)
            np.testing.assert_array_equal(counted["w"], given["w"])
            state = after


@pytest.mark.parametrize("constant", [0, 2])
def test_a_constant_global_step_of_shampoo_is_one_in_every_update(constant):
    tree = {"w": jnp.asarray([[1.0, -2.0], [0.5, 0.1]])}
    told = []

    def rate(T):
        told.append(T)
        return 0.1 * T

    given = tf_contrib.Shampoo(None, learning_rate=rate, svd_interval=2)
    constants = [tf_contrib.Shampoo(constant, learning_rate=rate, svd_interval=2)]
    constants += [tf_contrib.Shampoo(learning_rate=rate, svd_interval=2)] if not constant else []
    for held in constants:
        state, same = held.init(tree), given.init(tree)
        for n in (5, 6, 9):
            updates, state = held.update(tree, state, tree, step=n)
            expected, same = given.update(tree, same, tree, step=constant)
            np.testing.assert_array_equal(updates["w"], expected["w"])
            assert float(told[-2]) == constant + 1
        freely, _ = held.update(tree, state, tree)  # also where no step is given
        np.testing.assert_array_equal(
            freely["w"], held.update(tree, state, tree, step=constant)[0]["w"]
        )


SCHEDULE = keras.ExponentialDecay(0.1, 10, 0.5)
REFUSED = {
    "AdagradDA: global_step must be at least 0, got -1.": lambda: tf1.AdagradDA(0.1, -1),
    "AdagradDA: learning_rate must be a number where global_step is a constant": (
        lambda: tf1.AdagradDA(RATE, 0)
    ),
    "Adam: learning_rate must be at least 0, got -1.0.": lambda: keras.Adam(-1.0, decay=0.1),
    "AdamGS: global_step must be at least 0, got -3.": lambda: tf_contrib.AdamGS(-3),
    "LazyAdamGS: global_step must be at least 0, got -3.": lambda: tf_contrib.LazyAdamGS(-3),
    "Shampoo: global_step must be at least 0, got -3.": lambda: tf_contrib.Shampoo(-3),
    "Adagrad: initial_accumulator_value must be greater than 0, got 0.0.": (
        lambda: tf1.Adagrad(0.1, 0.0)
    ),
    "AdagradDA: initial_gradient_squared_accumulator_value must be greater than 0": (
        lambda: tf1.AdagradDA(0.1, None, 0.0)
    ),
    "AdagradDA: l1_regularization_strength must be at least 0": (
        lambda: tf1.AdagradDA(0.1, l1_regularization_strength=-1.0)
    ),
    "initial_accumulator_value must be at least 0, got -0.1.": lambda: tf1.Ftrl(0.1, -0.5, -0.1),
    "learning_rate_power must be at most 0, got 0.1.": lambda: tf1.Ftrl(0.1, 0.1),
    "l2 must be at least 0": lambda: tf1.Ftrl(0.1, l2_regularization_strength=-1.0),
    "l2_shrinkage must be at least 0": (
        lambda: tf1.Ftrl(0.1, l2_shrinkage_regularization_strength=-1.0)
    ),
    "step_by_proximal_adagrad: l1 must be at least 0": (
        lambda: tf1.ProximalAdagrad(0.1, l1_regularization_strength=-1.0)
    ),
    "initial_accumulator_value must be greater than 0": lambda: tf1.ProximalAdagrad(0.1, 0.0),
    "RegAdagrad: initial_accumulator_value must be": lambda: tf_contrib.RegAdagrad(0.1, -0.1),
    "LARS: momentum must be at least 0, got -0.1.": lambda: tf_contrib.LARS(0.1, -0.1),
    "LARS: weight_decay must be at least 0": lambda: tf_contrib.LARS(0.1, 0.9, -0.1),
    "SGD: momentum must be in [0, 1], got -0.1.": lambda: keras.SGD(momentum=-0.1),
    "RMSprop: momentum must be in [0, 1], got 2.": lambda: keras.RMSprop(momentum=2),
    "initial_accumulator_value must be at least 0, got -1.0.": (
        lambda: keras.Adagrad(initial_accumulator_value=-1)
    ),
    "SGD: clipnorm must be at least 0, got -1.": lambda: keras.SGD(clipnorm=-1),
    "SGD: decay must be at least 0": lambda: keras.SGD(decay=-0.1),
    "SGD: clipnorm and global_clipnorm cannot both be given, got 1 and 2.": (
        lambda: keras.SGD(clipnorm=1, global_clipnorm=2)
    ),
    "SGD: gradient_transformers cannot be given with clipvalue.": (
        lambda: keras.SGD(clipvalue=1, gradient_transformers=[len])
    ),
    "Nadam: learning_rate must be a number": lambda: keras.Nadam(SCHEDULE),
    "PiecewiseConstantDecay: values must have one more element": (
        lambda: keras.PiecewiseConstantDecay([1, 2], [1.0, 2.0])
    ),
    "piecewise_constant: values must have one more": (
        lambda: tf1.piecewise_constant(None, [1, 2], [1.0, 2.0])
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_door_keeps_the_checks_of_the_original(words):
    with pytest.raises(ValueError) as caught:
        REFUSED[words]()
    assert words in str(caught.value)


def test_a_door_refuses_arguments_that_the_original_refuses():
    with pytest.raises(TypeError, match=r"^SGD has no argument clipnrom; did you mean clipnorm\?$"):
        keras.SGD(clipnrom=1)
    with pytest.raises(TypeError, match="learning_rate"):
        open_door = returnn.CustomAdam
        open_door()
    with pytest.raises(NotImplementedError, match="BaseCustom"):
        returnn.BaseCustom(0.1)
    with pytest.raises(TypeError, match="exponential_decay: decay_steps is required"):
        tf1.exponential_decay(0.1)
    for name in ("AdamGS", "LazyAdamGS", "Shampoo"):
        for wrong in (0.0, True, "step", jnp.zeros(2)):
            with pytest.raises(TypeError, match=f"^{name}: global_step must be an integer"):
                getattr(tf_contrib, name)(wrong)
    with pytest.raises(TypeError, match=r"AdagradDA: global_step must be an integer.* got 0\.5"):
        tf1.AdagradDA(0.1, 0.5)
    with pytest.raises(TypeError, match="AdamW: decay_var_list must be a list"):
        tf_contrib.AdamW(0.1, decay_var_list="kernel")

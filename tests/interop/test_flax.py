"""Our transforms in Flax: linen's `TrainState`, `nnx.Optimizer`, `flax.serialization`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytest.importorskip("flax")
from flax import linen as nn, nnx, serialization
from flax.core import FrozenDict
from flax.training.train_state import TrainState

from tests.rules import scale_by_value
from tests.trees import assert_close

pytestmark = pytest.mark.numeric

X = jnp.asarray(np.random.default_rng(0).normal(size=(16, 4)), jnp.float32)
Y = jnp.sin(X[:, 0]) + X[:, 1]
KERNELS = gx.path_matches("kernel$")
MATRICES = gx.ndim_at_least(2)

# The same optimizers for linen and for nnx: both call the leaves kernel and bias.
OPTIMIZERS = {
    "adamw": lambda: gx.adamw(0.02, weight_decay=0.1, mask=KERNELS),
    "named_chain": lambda: gx.named_chain(
        ("clip", gx.clip_by_global_norm(0.5)), ("opt", gx.sgd(0.1, momentum=0.9))
    ),
    "masked": lambda: gx.chain(gx.masked(gx.trace(0.9), KERNELS), gx.scale(-0.02)),
    "partition": lambda: gx.partition(
        {"matrix": gx.adam(0.02), "rest": gx.sgd(0.05)},
        gx.label_by(("matrix", MATRICES), ("rest", True)),
    ),
    "MultiSteps": lambda: gx.MultiSteps(gx.adamw(0.05, mask=KERNELS), 2),
    "lookahead": lambda: gx.lookahead(gx.sgd(0.1), 3, 0.5),
    "apply_if_finite": lambda: gx.apply_if_finite(gx.rmsprop(0.01), 2),
    "inject_hyperparams": lambda: gx.inject_hyperparams(gx.adamw)(0.02, mask=KERNELS),
}
STEPS = 6


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="second")(nn.tanh(nn.Dense(3, name="first")(x)))[:, 0]


NET = Net()
PARAMS = NET.init(jax.random.key(0), X)["params"]


def loss_of(params):
    return jnp.mean((NET.apply({"params": params}, X) - Y) ** 2)


@functools.cache
def plain_loop(name, steps=STEPS):
    """Train with init, update and apply_updates, which linen and nnx must reproduce."""
    tx = OPTIMIZERS[name]()

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss_of)(params), state, params)
        return gx.apply_updates(params, updates), state

    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


# ----------------------------------------------------------------------------------------- linen


def train_state(tx, params=PARAMS):
    return TrainState.create(apply_fn=NET.apply, params=params, tx=tx)


@jax.jit
def linen_step(ts):
    return ts.apply_gradients(grads=jax.grad(loss_of)(ts.params))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_train_state_trains_as_the_plain_loop(name):
    ts = train_state(OPTIMIZERS[name]())
    for _ in range(STEPS):
        ts = linen_step(ts)
    params, state = plain_loop(name)
    assert int(ts.step) == STEPS
    assert loss_of(ts.params) < loss_of(PARAMS)
    assert_close(ts.params, params)
    assert_close(ts.opt_state, state)
    assert jax.tree.structure(ts.opt_state) == jax.tree.structure(state)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_train_states_of_equal_optimizers_have_equal_structure(name):
    a, b = train_state(OPTIMIZERS[name]()), train_state(OPTIMIZERS[name]())
    assert a.tx is not b.tx
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert hash(jax.tree.structure(a)) == hash(jax.tree.structure(b))
    assert jax.tree.structure(a) != jax.tree.structure(train_state(gx.sgd(0.123)))
    jax.tree.map(lambda x, y: None, a, b)  # needs equal structures


def test_apply_gradients_runs_eagerly():
    ts = train_state(gx.adam(0.02))
    grads = jax.grad(loss_of)(PARAMS)
    assert_close(ts.apply_gradients(grads=grads).params, linen_step(ts).params)


def test_train_state_takes_optax_beside_ours():
    optax = pytest.importorskip("optax")
    ours = train_state(gx.chain(gx.clip_by_global_norm(0.5), gx.adamw(0.02)))
    theirs = train_state(optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.02)))
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam needs it
        for _ in range(3):
            ours, theirs = linen_step(ours), linen_step(theirs)
    assert_close(ours.params, theirs.params)


@pytest.mark.parametrize("frozen_params", [True, False])
def test_frozen_dict_parameters_take_dict_gradients(frozen_params):
    params, grads = PARAMS, jax.grad(loss_of)(PARAMS)
    tx = gx.chain(gx.clip_by_global_norm(0.5), gx.masked(gx.trace(0.9), KERNELS), gx.adamw(0.02))
    want, want_state = tx.update(grads, tx.init(params), params)
    if frozen_params:
        params = FrozenDict(params)
    else:
        grads = FrozenDict(grads)
    updates, state = tx.update(grads, tx.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(grads)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))
    assert_close(updates, want)
    assert_close(state, want_state)
    new = gx.apply_updates(params, updates)
    assert jax.tree.structure(new) == jax.tree.structure(params)


# ------------------------------------------------------------------------------------------- nnx


class Model(nnx.Module):
    def __init__(self):
        self.first = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.second = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))  # not a Param: left alone
        for name in ("first", "second"):  # begin where linen does
            nnx.update(getattr(self, name), jax.tree.map(jnp.copy, PARAMS[name]))

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))[:, 0]


def nnx_loss(model):
    return jnp.mean((model(X) - Y) ** 2)


@nnx.jit
def nnx_step(model, optimizer):
    optimizer.update(model, nnx.grad(nnx_loss)(model))


def pure_params(model):
    return jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_nnx_optimizer_trains_as_the_plain_loop(name):
    model = Model()
    optimizer = nnx.Optimizer(model, OPTIMIZERS[name](), wrt=nnx.Param)
    for _ in range(STEPS):
        nnx_step(model, optimizer)
    params, state = plain_loop(name)
    assert nnx_loss(model) < loss_of(PARAMS)
    assert int(optimizer.step[...]) == STEPS
    assert_close(pure_params(model), params)
    assert_close(nnx.as_pure(optimizer.opt_state), state)


@pytest.mark.parametrize("name", ["adamw", "partition", "lookahead"])
def test_nnx_optimizer_runs_eagerly(name):
    model = Model()
    optimizer = nnx.Optimizer(model, OPTIMIZERS[name](), wrt=nnx.Param)
    for _ in range(2):
        optimizer.update(model, nnx.grad(nnx_loss)(model))
    assert_close(pure_params(model), plain_loop(name, 2)[0])


@pytest.mark.parametrize("mask", [KERNELS, MATRICES, KERNELS & ~gx.path_matches("^second/")])
def test_nnx_masks_mean_the_same_at_init_and_update(mask):
    # nnx shows `kernel.value` to init and `kernel` to update.
    model = Model()
    before = pure_params(model)
    optimizer = nnx.Optimizer(model, gx.masked(gx.set_to_zero(), mask), wrt=nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    for name, layer in pure_params(model).items():
        for leaf, x in layer.items():
            selected = leaf == "kernel" and not (name == "second" and "second" in repr(mask))
            assert np.array_equal(x, before[name][leaf] + (0 if selected else 1)), (name, leaf)


def test_nnx_decay_reaches_the_masked_parameters_only():
    model = Model()
    before = pure_params(model)
    before["first"]["bias"] = before["first"]["bias"] + 1
    model.first.bias[...] = before["first"]["bias"]
    tx = gx.chain(gx.add_decayed_weights(0.5, KERNELS), gx.scale(-1.0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
    after = pure_params(model)
    assert_close(after["first"]["kernel"], 0.5 * before["first"]["kernel"])
    assert_close(after["first"]["bias"], before["first"]["bias"])


def test_nnx_state_has_the_metadata_of_its_parameter():
    # Parameter-shaped state carries the Variable's metadata, all other state has none of it.
    model = Model()
    kernel_init = nnx.with_metadata(nnx.initializers.lecun_normal(), role="weight")
    model.first = nnx.Linear(4, 3, kernel_init=kernel_init, rngs=nnx.Rngs(0))
    tx = gx.chain(gx.clip_by_global_norm(1.0), gx.MultiSteps(gx.adam(0.02), 2))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    named = 0
    for variable in jax.tree.leaves(
        optimizer.opt_state, is_leaf=lambda x: isinstance(x, nnx.Variable)
    ):
        assert isinstance(variable, nnx.Variable)
        if variable.get_metadata().get("role"):
            named += 1
            assert variable.get_value().shape == (4, 3)
    assert named == 3  # mu, nu and the accumulator
    nnx_step(model, optimizer)


def test_nnx_hyperparameters_can_be_set():
    model = Model()
    optimizer = nnx.Optimizer(model, gx.inject_hyperparams(gx.sgd)(0.05), wrt=nnx.Param)
    before = pure_params(model)
    optimizer.opt_state.hyperparams["learning_rate"][...] = jnp.zeros(())
    nnx_step(model, optimizer)
    assert_close(pure_params(model), before)
    optimizer.opt_state.hyperparams["learning_rate"][...] = jnp.asarray(0.05)
    nnx_step(model, optimizer)
    assert not np.array_equal(pure_params(model)["first"]["kernel"], before["first"]["kernel"])


def test_nnx_optimizer_hands_on_extra_arguments():
    model = Model()
    before = pure_params(model)
    optimizer = nnx.Optimizer(model, gx.chain(scale_by_value(), gx.scale(1.0)), wrt=nnx.Param)
    ones = jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param))
    optimizer.update(model, ones, value=jnp.asarray(3.0))
    assert_close(pure_params(model), jax.tree.map(lambda x: x + 3, before))


# --------------------------------------------------------------------------------- serialization


@functools.cache
def mixed():
    return gx.chain(
        gx.clip_by_global_norm(0.5),
        gx.masked(gx.trace(0.9), KERNELS),
        gx.MultiSteps(gx.inject_hyperparams(gx.adamw)(0.02, mask=KERNELS), 2),
        gx.partition({"a": gx.sgd(1.0), "b": gx.identity()}, {"first": "a", "second": "b"}),
    )


def test_training_continues_bit_for_bit_from_bytes():
    tx = mixed()
    step = jax.jit(tx.update)
    grads = jax.grad(loss_of)(PARAMS)
    state = tx.init(PARAMS)
    for _ in range(3):
        _, state = step(grads, state, PARAMS)
    restored = serialization.from_bytes(tx.init(PARAMS), serialization.to_bytes(state))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    a, b = (step(grads, s, PARAMS) for s in (state, restored))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_a_state_dict_round_trips_with_its_names():
    tx = mixed()
    state = tx.init(PARAMS)
    _, state = tx.update(jax.grad(loss_of)(PARAMS), state, PARAMS)
    as_dict = serialization.to_state_dict(state)
    assert set(as_dict) == {"0", "1", "2", "3"}
    assert set(as_dict["1"]) == {"inner_state"}
    injected = as_dict["2"]["inner_opt_state"]
    assert set(injected) == {"count", "hyperparams", "hyperparams_states", "inner_state"}
    assert set(injected["inner_state"]["0"]) == {"count", "mu", "nu"}
    assert set(as_dict["3"]["inner_states"]) == {"a", "b"}
    restored = serialization.from_state_dict(tx.init(PARAMS), as_dict)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_train_state_round_trips_through_bytes():
    ts = linen_step(train_state(mixed()))
    restored = serialization.from_bytes(train_state(mixed()), serialization.to_bytes(ts))
    assert jax.tree.structure(restored) == jax.tree.structure(ts)
    a, b = linen_step(ts), linen_step(restored)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)

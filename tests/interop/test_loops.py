"""Our transforms in plain loops of Haiku and Equinox models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

X = jnp.asarray(np.random.default_rng(0).normal(size=(16, 4)), jnp.float32)
Y = jnp.sin(X[:, 0]) + X[:, 1]
MATRICES = gx.ndim_at_least(2)


def optimizers(weight):
    """Optimizers whose masks select by path; `weight` matches the matrices of a library."""
    return {
        "adamw": gx.adamw(0.02, weight_decay=0.1, mask=gx.path_matches(weight)),
        "partition": gx.partition(
            {"matrix": gx.adam(0.02), "rest": gx.sgd(0.05, 0.9)},
            gx.label_by(("matrix", MATRICES), ("rest", True)),
        ),
        "wrapped": gx.chain(
            gx.clip_by_global_norm(0.5),
            gx.MultiSteps(
                gx.apply_if_finite(gx.inject_hyperparams(gx.lion)(0.02, mask=MATRICES), 2), 2
            ),
        ),
        "lookahead": gx.lookahead(gx.sgd(0.1), 3, 0.5),
    }


NAMES = list(optimizers(""))
STEPS = 6


def initial(seed=1):
    """The arrays of a two-layer perceptron, as (outputs, inputs) matrices and biases."""
    rng = np.random.default_rng(seed)
    shapes = [(3, 4), (3,), (1, 3), (1,)]
    return [jnp.asarray(0.5 * rng.normal(size=shape), jnp.float32) for shape in shapes]


def plain_loss(params):
    hidden = params["layers"][0]
    out = params["layers"][1]
    h = jnp.tanh(X @ hidden["weight"].T + hidden["bias"][None])
    return jnp.mean(((h @ out["weight"].T)[:, 0] + out["bias"] - Y) ** 2)


@functools.cache
def reference(name):
    """The losses and the last parameters of a loop without any library."""
    tx = optimizers("weight")[name]
    w1, b1, w2, b2 = initial()
    params = {"layers": [{"weight": w1, "bias": b1}, {"weight": w2, "bias": b2}]}
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(plain_loss)(params)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state, value

    losses = []
    for _ in range(STEPS):
        params, state, value = step(params, state)
        losses.append(float(value))
    assert plain_loss(params) < losses[0]
    first, last = params["layers"]
    return losses, [first["weight"], first["bias"], last["weight"], last["bias"]]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


# ----------------------------------------------------------------------------------------- Haiku


@pytest.mark.parametrize("name", NAMES)
def test_a_haiku_model_trains_in_a_plain_loop(name):
    hk = pytest.importorskip("haiku")

    def forward(x):
        return hk.nets.MLP([3, 1], activation=jnp.tanh)(x)[:, 0]

    net = hk.without_apply_rng(hk.transform(forward))
    with jax.numpy_rank_promotion("allow"):
        shapes = jax.eval_shape(net.init, jax.random.key(0), X)
    w1, b1, w2, b2 = initial()
    params = {"mlp/~/linear_0": {"w": w1.T, "b": b1}, "mlp/~/linear_1": {"w": w2.T, "b": b2}}
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    tx = optimizers("/w$")[name]

    def loss(params):
        with jax.numpy_rank_promotion("allow"):
            return jnp.mean((net.apply(params, X) - Y) ** 2)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state, value

    state = tx.init(params)
    losses = []
    for _ in range(STEPS):
        params, state, value = step(params, state)
        losses.append(float(value))
    want_losses, (w1, b1, w2, b2) = reference(name)
    assert_same(losses, want_losses)
    first, last = params["mlp/~/linear_0"], params["mlp/~/linear_1"]
    assert_same([first["w"].T, first["b"], last["w"].T, last["b"]], [w1, b1, w2, b2])


# --------------------------------------------------------------------------------------- Equinox


def equinox_model():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(4, "scalar", 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    w1, b1, w2, b2 = initial()

    def arrays(m):
        return [m.layers[0].weight, m.layers[0].bias, m.layers[1].weight, m.layers[1].bias]

    return eqx, eqx.tree_at(arrays, model, [w1, b1, w2, b2]), arrays


@pytest.mark.parametrize("name", NAMES)
def test_an_equinox_model_trains_in_a_plain_loop(name):
    eqx, model, arrays = equinox_model()
    tx = optimizers("weight$")[name]

    def loss(model):
        return jnp.mean((jax.vmap(model)(X) - Y) ** 2)

    @eqx.filter_jit
    def step(model, state):
        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    params = eqx.filter(model, eqx.is_inexact_array)
    assert len(jax.tree.leaves(params, is_leaf=lambda x: x is None)) > len(jax.tree.leaves(params))
    state = tx.init(params)
    losses = []
    for _ in range(STEPS):
        model, state, value = step(model, state)
        losses.append(float(value))
    want_losses, want = reference(name)
    assert_same(losses, want_losses)
    assert_same(arrays(model), want)


def test_equinox_partition_trains_one_layer():
    eqx, model, arrays = equinox_model()
    before = arrays(model)
    spec = jax.tree.map(lambda _: False, model)
    spec = eqx.tree_at(lambda m: m.layers[1].weight, spec, True)
    trained, frozen = eqx.partition(model, spec)
    tx = gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(0.1, mask=MATRICES))
    state = tx.init(trained)
    assert len(jax.tree.leaves(state[1][0].mu)) == 1

    def loss(trained):
        return jnp.mean((jax.vmap(eqx.combine(trained, frozen))(X) - Y) ** 2)

    first = loss(trained)
    for _ in range(3):
        updates, state = tx.update(eqx.filter_grad(loss)(trained), state, trained)
        trained = eqx.apply_updates(trained, updates)
    assert loss(trained) < first
    after = arrays(eqx.combine(trained, frozen))
    changed = [not np.array_equal(a, b) for a, b in zip(after, before, strict=True)]
    assert changed == [False, False, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_of_none_freezes_its_parameter_for_the_step(name):
    tx = optimizers("weight$")[name]
    w1, b1, w2, b2 = initial()
    params = {"layers": [{"weight": w1, "bias": b1}, {"weight": w2, "bias": b2}]}
    grads = jax.grad(plain_loss)(params)
    grads["layers"][1]["weight"] = None
    state = tx.init(params)
    for _ in range(2):
        updates, new_state = tx.update(grads, state, params)
        assert updates["layers"][1]["weight"] is None
        assert jax.tree.structure(new_state) == jax.tree.structure(state)
        state = new_state
    new = gx.apply_updates(params, updates)
    assert np.array_equal(new["layers"][1]["weight"], w2)
    assert not np.array_equal(new["layers"][0]["weight"], w1)


def test_an_equinox_model_is_the_parameter_tree_of_a_state():
    """A module is a pytree like any other: the state mirrors it, with its static fields."""
    eqx, model, _ = equinox_model()
    params = eqx.filter(model, eqx.is_inexact_array)
    state = gx.scale_by_adam().init(params)
    assert jax.tree.structure(state.mu) == jax.tree.structure(params)
    assert isinstance(state.mu, type(model))

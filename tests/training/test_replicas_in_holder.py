"""A holder of an optimizer over replicas: of one replica, or of all of `Replicas`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.compat import keras, tf1, tf_contrib

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

PARAMS = {"w": jnp.arange(1.0, 7.0).reshape(3, 2), "b": jnp.ones(2)}
SGD = tf1.Momentum(0.1, 0.5)
DOORS = {
    "Tower": lambda: tf_contrib.Tower(SGD),
    "SyncReplicas": lambda: tf1.SyncReplicas(SGD, 1),
    "ModelAverage": lambda: tf_contrib.ModelAverage(SGD, interval_steps=2),
    "ElasticAverage": lambda: tf_contrib.ElasticAverage(SGD, rho=0.5, communication_period=2),
    "AGN": lambda: tf_contrib.AGN(SGD, communication_period=2),
    "DropStaleGradient": lambda: tf_contrib.DropStaleGradient(SGD, 0),
    "moving average": lambda: tf1.SyncReplicas(SGD, 1, variable_averages=0.9),
    "zero1": lambda: gd.zero1(SGD, "replica"),
}


def loss_fn(params, x):
    return jnp.sum((x @ params["w"] + params["b"][None]) ** 2)


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), a, b)


def batches(n, steps=4):
    return np.random.default_rng(0).normal(size=(steps, n, 5, 3)).astype(np.float32)


def by_step(tx, replicas, xs):
    """The same by `make_step`, wrapped for all replicas."""
    step, params = replicas.wrap(gx.make_step(tx, loss_fn)), replicas.replicate(PARAMS)
    state = replicas.wrap(tx.init)(params)
    for x in xs:
        params, state, loss = step(params, state, replicas.place(x))
    return params, state, loss


@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
@pytest.mark.parametrize("name", DOORS)
def test_all_replicas_step_as_in_make_step(name, mode):
    replicas, tx = gd.Replicas("replica", n=2, mode=mode, mesh=two_devices(mode)), DOORS[name]()
    opt, params = gx.Optimizer(tx, replicas=replicas), replicas.replicate(PARAMS)
    for x in batches(2):
        params, loss = opt.minimize(loss_fn, params, replicas.place(x))
    close((params, opt.state, loss), by_step(tx, replicas, batches(2)))
    assert opt.iterations == 4 and loss.shape == (2,)
    again = gx.Optimizer(tx, replicas.replicate(PARAMS), replicas=replicas)
    for x in batches(2):
        _, grads = again.compute_gradients(loss_fn, params, replicas.place(x))
        assert grads["b"].shape == (2, 2)
        again.apply_gradients(grads, params)
    assert again.iterations == 4


def two_devices(mode):
    auto = (jax.sharding.AxisType.Auto,)
    return None if mode == "vmap" else jax.make_mesh((2,), ("replica",), axis_types=auto)


@pytest.mark.parametrize("name", DOORS)
def test_without_replicas_there_is_one(name):
    tx, (opt, params) = DOORS[name](), (gx.Optimizer(DOORS[name]()), PARAMS)
    for (x,) in batches(1):
        params, loss = opt.minimize(loss_fn, params, x)
    one = gd.Replicas("replica", n=1, mode="vmap")
    expected = by_step(tx, one, batches(1))
    close((params, opt.state, loss), one.unreplicate(expected))
    if name in ("Tower", "SyncReplicas", "DropStaleGradient", "zero1", "moving average"):
        alone, expected = gx.Optimizer(SGD), PARAMS
        for (x,) in batches(1):
            expected, _ = alone.minimize(loss_fn, expected, x)
        close(params, expected)


@pytest.mark.parametrize("name", DOORS)
def test_gradients_slots_and_weights_of_one_replica(name):
    opt, params = gx.Optimizer(DOORS[name](), PARAMS, names="tf1"), PARAMS
    for (x,) in batches(1, 2):
        _, grads = opt.compute_gradients(loss_fn, params, x)
        params = opt.apply_gradients(grads, params)
    # The center of AGN has an optimizer of its own.
    slot = opt.get_slot("w", ("" if name != "AGN" else "inner.0.") + "momentum")
    assert np.size(slot) == 6 and np.any(slot)
    other = gx.Optimizer(DOORS[name](), PARAMS, names="tf1")
    other.set_weights(opt.get_weights())
    close(other.get_weights(), opt.get_weights())


def test_a_gradient_that_is_applied_later_is_stale():
    opt, params = gx.Optimizer(tf_contrib.DropStaleGradient(tf1.GradientDescent(0.1), 0)), PARAMS
    opt.apply_gradients(PARAMS, params)
    _, grads = opt.compute_gradients(loss_fn, params, np.ones((5, 3), np.float32))
    began = opt.state.global_step
    for moves in (True, True):  # the next one begins anew
        new = opt.apply_gradients(grads, params)
        assert np.any(new["w"] != params["w"]) == moves
    stale = opt.apply_gradients(grads, params, grad_step=began)
    assert np.all(stale["w"] == params["w"]) and opt.state.stale_counter == 1
    opt = gx.Optimizer(tf_contrib.DropStaleGradient(tf1.GradientDescent(0.1), 0))
    _, grads = opt.compute_gradients(loss_fn, params, np.ones((5, 3), np.float32))
    opt.state = opt.state._replace(global_step=jnp.asarray(4, jnp.int32))
    assert np.all(opt.apply_gradients(grads, params)["w"] == params["w"])  # begun at step 0


def test_make_step_records_the_step_of_its_gradient():
    tx = tf_contrib.DropStaleGradient(tf1.GradientDescent(0.1), 0)
    params, state = jax.tree.map(jnp.copy, PARAMS), tx.init(PARAMS)
    step = gx.make_step(tx, loss_fn)
    for (x,) in batches(1):
        params, state, _ = step(params, state, x)
    assert state.global_step == 4 and state.stale_counter == 0
    _, state, _ = step(params, state, x, grad_step=np.int32(3))
    assert state.stale_counter == 1


def test_some_variables_are_averaged():
    tx = tf1.SyncReplicas(SGD, 1, variable_averages=0.5, variables_to_average=["w"])
    opt, params = gx.Optimizer(tx, PARAMS), PARAMS
    for (x,) in batches(1):
        params, _ = opt.minimize(loss_fn, params, x)
    averages = gx.eval_params(opt.state, params)
    whole = gx.Optimizer(tf1.SyncReplicas(SGD, 1, variable_averages=0.5), PARAMS)
    expected = PARAMS
    for (x,) in batches(1):
        expected, _ = whole.minimize(loss_fn, expected, x)
    close(averages["w"], gx.eval_params(whole.state, expected)["w"])
    close(averages["b"], params["b"])
    with pytest.raises(ValueError, match="variables_to_average needs variable_averages"):
        tf1.SyncReplicas(SGD, 1, variables_to_average=["w"])


def test_regularization_leaves_the_slots():
    opt, params = gx.Optimizer(tf_contrib.RegAdagrad(0.1), PARAMS), PARAMS
    before = opt.get_slots() if hasattr(opt, "get_slots") else opt.get_slot("w", "sum_of_squares")
    with opt.avoid_updating_slots():
        params, _ = opt.minimize(lambda p: jnp.sum(p["w"] ** 2), params)
        params = opt.apply_gradients(PARAMS, params)
    close(opt.get_slot("w", "sum_of_squares"), before)
    with opt.avoid_updating_slots():
        with opt.avoid_updating_slots():
            pass
        opt.apply_gradients(PARAMS, params)
        close(opt.get_slot("w", "sum_of_squares"), before)
    other, expected = gx.Optimizer(tf_contrib.RegAdagrad(0.1), PARAMS), PARAMS
    expected, _ = other.minimize(lambda p: jnp.sum(p["w"] ** 2), expected, update_slots=False)
    expected = other.apply_gradients(PARAMS, expected, update_slots=False)
    close(params, expected)
    opt.minimize(lambda p: jnp.sum(p["w"] ** 2), params)
    assert np.any(opt.get_slot("w", "sum_of_squares") != before)
    with (
        pytest.raises(TypeError, match="Momentum always updates its slots; only RegAdagrad"),
        gx.Optimizer(SGD).avoid_updating_slots(),
    ):
        pass


def test_iterations_are_set_before_there_is_a_state():
    decayed = keras.SGD(keras.schedules.InverseTimeDecay(1.0, 1, 1.0), momentum=0.0)
    opt = gx.Optimizer(decayed, names="keras")
    opt.iterations = 9
    params = opt.apply_gradients({"b": jnp.ones(2)}, {"b": jnp.ones(2)})
    np.testing.assert_allclose(params["b"], 0.9, 1e-6)
    assert opt.iterations == 10 and opt.get_weights()[0] == 10
    with pytest.raises(RuntimeError, match="Optimizer: iterations can be set until there is"):
        opt.iterations = 0
    with pytest.raises(ValueError, match="can be set for one of Keras's optimizers"):
        gx.Optimizer(tf1.SyncReplicas(SGD, 2, 1)).iterations = 5  # which counts contributions
    for wrong in (-1, 1.5, True, "x", 2**31):
        with pytest.raises(ValueError, match="iterations must be an integer from 0 to"):
            gx.Optimizer(decayed).iterations = wrong


def test_numbers_of_an_optimizer_over_replicas_can_be_set():
    opt = gx.Optimizer(tf_contrib.Tower(SGD), PARAMS)
    opt.hyperparams["decay"] = 0.0
    opt.apply_gradients(PARAMS, PARAMS)
    moved = opt.apply_gradients(PARAMS, PARAMS)
    close(moved, jax.tree.map(lambda x: 0.9 * x, PARAMS))
    replicas = gd.Replicas("replica", n=2, mode="vmap")
    both = replicas.replicate(PARAMS)
    for tx in (gd.tower(gx.inject_hyperparams(gx.sgd)(0.1), "replica"), tf_contrib.Tower(SGD)):
        opt = gx.Optimizer(tx, both, replicas=replicas)
        opt.hyperparams["learning_rate"] = 0.5
        close(opt.apply_gradients(both, both), jax.tree.map(lambda x: 0.5 * x, both))
    with pytest.raises(ValueError, match="set_weights takes the weights of one replica"):
        opt.set_weights(opt.get_weights())
    opt = gx.Optimizer(keras.SGD(0.1), both, replicas=replicas)
    with pytest.raises(AttributeError, match="clipnorm of all replicas cannot be set once"):
        opt.clipnorm = 1.0


def test_what_is_wrong_is_named():
    with pytest.raises(
        TypeError, match=r"Optimizer: replicas must be gradxform\.distributed\.Repl"
    ):
        gx.Optimizer(SGD, replicas="replica")
    with pytest.raises(TypeError, match="Tower: optimizer_or_optimizer_fn is req"):
        tf_contrib.Tower()
    with pytest.raises(TypeError, match="no part takes the extra argument 'update_slot'"):
        gx.Optimizer(tf_contrib.RegAdagrad(0.1)).minimize(
            loss_fn, PARAMS, np.ones((5, 3)), update_slot=False
        )
    assert tf_contrib.Tower(optimizer_or_optimizer_fn=SGD) == tf_contrib.Tower(opt=SGD)

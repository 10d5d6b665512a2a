"""A parameter on which the loss does not depend stays where it is, with its slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd

pytestmark = pytest.mark.numeric

PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([3.0, 4.0]), "t": jnp.ones((4, 2))}


def copied(tree):
    return jax.tree.map(jnp.copy, tree)


def of_a(p):
    return jnp.sum(jnp.square(p["a"]))


def stopped(p):
    return of_a(p) + jnp.sum(jax.lax.stop_gradient(p["b"]))


def rounded(p):
    return of_a(p) * jnp.argmax(p["b"]).astype(jnp.float32)


def scanned(p):
    def turn(carry, x):
        return (carry[0] + x * p["a"], carry[1] + p["b"]), None

    return jnp.sum(jax.lax.scan(turn, (p["a"], p["b"]), jnp.ones(3))[0][0])


def compiled(p):
    return jax.jit(lambda p: jnp.sum(p["a"] ** 2))(p)


def rematerialized(p):
    return jax.checkpoint(of_a)(p)


@pytest.mark.parametrize("loss", [of_a, stopped, rounded, scanned, compiled, rematerialized])
def test_its_gradient_is_none(loss):
    _, grads = gx.compute_gradients(loss, PARAMS)
    wanted = jax.grad(loss)(PARAMS)
    np.testing.assert_array_equal(grads["a"], wanted["a"])
    assert grads["b"] is None
    assert grads["t"] is None


def test_a_factor_of_zero_and_a_branch_are_dependences():
    def loss(p):
        branch = jax.lax.cond(p["a"][0] > 0, lambda: jnp.sum(p["a"]), lambda: jnp.sum(p["t"] ** 2))
        return branch + 0.0 * jnp.sum(p["b"])

    _, grads = gx.compute_gradients(loss, PARAMS)
    np.testing.assert_array_equal(grads["b"], [0.0, 0.0])
    np.testing.assert_array_equal(grads["t"], np.zeros((4, 2)))


def test_a_table_without_a_lookup_has_none():
    _, grads = gx.compute_gradients(of_a, PARAMS, sparse=["t"])
    assert grads["t"] is None
    _, grads = gx.compute_gradients(lambda p: of_a(p) + jnp.sum(p["t"][1]), PARAMS, sparse=["t"])
    assert grads["t"].values.shape == (1, 2)


TX = gx.adamw(0.1, weight_decay=0.5)


def by_make_step(steps):
    step, params, state = gx.make_step(TX, of_a), copied(PARAMS), TX.init(PARAMS)
    for _ in range(steps):
        params, state, _ = step(params, state)
    return params, gx.get_slots(TX, state)


def by_holder(steps):
    holder, params = gx.Optimizer(TX), PARAMS
    for _ in range(steps):
        params, _ = holder.minimize(of_a, params)
    return params, gx.get_slots(TX, holder.state)


def by_pairs(steps):
    params, state = PARAMS, TX.init(PARAMS)
    for _ in range(steps):
        _, grads = gx.compute_gradients(of_a, params)
        params, state = gx.apply_gradients(TX, grads, state, params)
    return params, gx.get_slots(TX, state)


@pytest.mark.parametrize("run", [by_make_step, by_holder, by_pairs])
def test_neither_momentum_nor_decay_moves_it(run):
    params, slots = run(2)
    for name in ("b", "t"):
        np.testing.assert_array_equal(params[name], PARAMS[name])
        assert not np.any(slots["mu"][name])
    grads = jax.grad(of_a)(PARAMS)["a"]
    alone = gx.adamw(0.1, weight_decay=0.5)
    a, state = PARAMS["a"], alone.init(PARAMS["a"])
    for _ in range(2):
        updates, state = alone.update(2 * a, state, a)
        a = gx.apply_updates(a, updates)
    np.testing.assert_allclose(params["a"], a, rtol=1e-6)
    assert np.any(grads)


def test_momentum_of_earlier_losses_stays():
    tx = gx.sgd(0.1, 0.9)
    params, state = PARAMS, tx.init(PARAMS)
    for loss in (lambda p: of_a(p) + jnp.sum(p["b"]), of_a):
        _, grads = gx.compute_gradients(loss, params)
        params, state = gx.apply_gradients(tx, grads, state, params)
    np.testing.assert_allclose(params["b"], PARAMS["b"] - 0.1)
    np.testing.assert_array_equal(gx.get_slots(tx, state)["trace"]["b"], [1.0, 1.0])


def test_minimize_leaves_it():
    result = gx.minimize(of_a, PARAMS, TX, max_evaluations=20)
    np.testing.assert_array_equal(result.params["b"], PARAMS["b"])
    assert not np.array_equal(result.params["a"], PARAMS["a"])


def test_get_gradients_are_those_of_all_parameters():
    opt = gx.Optimizer(TX)
    only = {"a": PARAMS["a"], "none": None}
    (got,) = opt.get_gradients(of_a, only)
    np.testing.assert_array_equal(got, jax.grad(of_a)(only)["a"])
    with pytest.raises(ValueError, match="get_gradients: the loss does not depend on b;"):
        opt.get_gradients(of_a, PARAMS)


SEARCHES = {
    "backtracking": gx.scale_by_backtracking_linesearch(10, store_grad=True),
    "zoom": gx.scale_by_zoom_linesearch(10),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_minimize_leaves_it_where_a_search_keeps_the_gradient(name):
    tx = gx.chain(gx.add_decayed_weights(0.1), gx.sgd(0.1), SEARCHES[name])
    result = gx.minimize(of_a, copied(PARAMS), tx, max_evaluations=30)
    np.testing.assert_array_equal(result.params["b"], PARAMS["b"])
    assert np.all(np.abs(result.params["a"]) < 0.5)


def test_a_loss_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no gradients for any of the parameters 'a', 'b', 't'"):
        gx.make_step(TX, lambda p: jnp.zeros(()))(copied(PARAMS), TX.init(PARAMS))


@pytest.mark.parametrize("tracked", [True, False])
def test_replicas_agree(tracked):
    devices = min(len(jax.devices()), 2)
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def gradients(params, x):
        params = gd.local_view(params, "d")
        _, grads = gx.compute_gradients(lambda p, x: of_a(p) * jnp.mean(x), params, x)
        assert grads["b"] is None
        return jax.tree.map(lambda g: g[None], grads)

    spec = jax.P("d")
    run = jax.shard_map(
        gradients, mesh=mesh, in_specs=(jax.P(), spec), out_specs=spec, check_vma=tracked
    )
    grads = run(PARAMS, jnp.arange(float(devices)))
    expected = np.outer(np.arange(devices), 2 * np.asarray(PARAMS["a"]))
    np.testing.assert_allclose(grads["a"], expected)


def test_derivatives_pass_through():
    def hyper(rate, p):
        _, grads = gx.compute_gradients(lambda p: of_a(p) ** 2, p)
        return jnp.sum(p["a"] - rate * grads["a"])

    def plain(rate, p):
        return jnp.sum(p["a"] - rate * jax.grad(lambda p: of_a(p) ** 2)(p)["a"])

    for derivative in (jax.grad, jax.jacfwd):
        ours = derivative(hyper, argnums=(0, 1))(0.1, PARAMS)
        jax.tree.map(
            np.testing.assert_array_equal, ours, derivative(plain, argnums=(0, 1))(0.1, PARAMS)
        )

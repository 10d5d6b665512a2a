"""Newton-CG against dense Newton steps in float64, in wrappers and on meshes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
from gradxform import curvature
from tests.curvature.problem import (
    batch,
    dense_of,
    flat,
    hessian_of,
    loss,
    model,
    params,
    squared_error,
)

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


GAUSS_NEWTON = curvature.gauss_newton_product(model, squared_error)
PRODUCTS = {
    "hessian of value_fn": curvature.hessian_product(),
    "hessian": curvature.hessian_product(loss),
    "gauss_newton": GAUSS_NEWTON,
    "fisher": curvature.fisher_product(model, "normal"),
}


def step_of(tx, state, params, **given):
    value, grads = jax.value_and_grad(loss)(params, **given)
    updates, state = tx.update(grads, state, params, value=value, value_fn=loss, **given)
    return gx.apply_updates(params, updates), state


def run(tx, start, steps=3, **given):
    def step(carry, _):
        return step_of(tx, carry[1], carry[0], **given), None

    return jax.lax.scan(step, (start, tx.init(start)), length=steps)[0][0]


def assert_same(got, expected, atol=1e-12):
    np.testing.assert_allclose(flat(jax.device_get(got)), flat(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("warm", [0.0, 0.95])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_step_is_a_dense_newton_step(name, warm):
    product = PRODUCTS[name]
    damping = 2.0 if "hessian" in name else 0.01
    tx = gx.scale_by_newton_cg(product, 80, damping, damping_factor=1.0, warm_start=warm)
    state, at = tx.init(params()), params()
    for _ in range(2):  # the second one starts from the first
        grads = jax.grad(loss)(at, **batch())
        updates, state = tx.update(grads, state, at, value_fn=loss, **batch())
        if "hessian" in name:
            c = hessian_of(lambda p: loss(p, **batch()), at)
        else:
            c = dense_of(GAUSS_NEWTON.at(at, **batch()), at)
        expected = np.linalg.solve(c + damping * np.eye(len(c)), flat(grads))
        size = np.max(np.abs(expected))
        np.testing.assert_allclose(flat(updates), expected, rtol=0, atol=1e-10 * size)
        at = gx.apply_updates(at, jax.tree.map(lambda u: -u, updates))
    assert state.info.is_convex


def test_without_damping_it_converges_quadratically():
    def bowl(p):
        return jnp.sum(jnp.cosh(p - jnp.arange(4.0)))

    tx = gx.newton_cg(steps=8, damping=0.0, damping_factor=1.0)
    at, state, errors = jnp.arange(4.0) + 0.7, tx.init(jnp.zeros(4)), []
    for _ in range(4):
        updates, state = tx.update(jax.grad(bowl)(at), state, at, value_fn=bowl)
        at = at + updates
        errors.append(float(jnp.max(jnp.abs(at - jnp.arange(4.0)))))
    # For cosh the error is cubed, times 1/3.
    for before, after in itertools.pairwise(errors):
        assert after <= before**3 / 2 + 1e-15
    assert errors[-1] < 1e-12


def test_the_damping_follows_the_ratio_of_actual_and_predicted_decrease():
    def make(value_of_step):
        # A loss of curvature 1 whose value after the step says the ratio.
        def loss(p):
            return 0.5 * jnp.sum(p**2) + value_of_step * (jnp.sum(p**2) - 4.0)

        return loss

    p = jnp.full((4,), 1.0)
    cases = {0.0: 0.5, -0.2: 1.0, -0.45: 2.0, -0.7: 2.0}
    for tilt, expected in cases.items():
        f = make(tilt)
        matrix = curvature.hessian_product(lambda p: 0.5 * jnp.sum(p**2))
        tx = gx.scale_by_newton_cg(matrix, 3, 1.0, 0.5, 0.0)
        # d = p / 2 for the gradient p: a predicted decrease of 3/2, which is the actual one of
        # the loss without a tilt.
        updates, state = tx.update(p, tx.init(p), p, value=f(p), value_fn=f)
        actual = float(f(p) - f(p / 2))
        np.testing.assert_allclose(float(state.info.ratio), actual / 1.5, rtol=1e-12)
        assert float(state.damping) == expected
        assert bool(state.info.is_accepted) == (actual > 0)
        np.testing.assert_allclose(updates, p / 2 if actual > 0 else 0 * p, rtol=1e-12)


def test_a_decrease_within_roundings_keeps_the_damping():
    def flat_loss(p):
        return 1e6 + 1e-12 * jnp.sum(p**2)

    tx, p = gx.scale_by_newton_cg(damping=1e-12), jnp.ones(3)
    grads = jax.grad(flat_loss)(p)
    updates, state = tx.update(grads, tx.init(p), p, value=flat_loss(p), value_fn=flat_loss)
    assert float(state.damping) == 1e-12 and bool(state.info.is_accepted)
    assert float(jnp.max(jnp.abs(updates))) > 0.1


def saddle(p):
    return 0.5 * (p[0] ** 2 - 2 * p[1] ** 2) + p[1] ** 4 / 4


def test_negative_curvature_ends_the_search_and_still_descends():
    tx = gx.scale_by_newton_cg(damping=0.0, damping_factor=1.0, warm_start=0.0)
    # At the first step: along the gradient, as far as |<g, H g>| says.
    p = jnp.asarray([0.0, 0.1])
    grads, h = jax.grad(saddle)(p), jax.hessian(saddle)(p)
    updates, state = tx.update(grads, tx.init(p), p, value_fn=saddle)
    expected = grads * (grads @ grads) / jnp.abs(grads @ h @ grads)
    np.testing.assert_allclose(updates, expected, rtol=1e-12)
    assert not bool(state.info.is_convex) and saddle(p - updates) < saddle(p)
    # Later: the solution so far.
    p = jnp.asarray([1.0, 0.2])
    grads, h = jax.grad(saddle)(p), jax.hessian(saddle)(p)
    updates, state = tx.update(grads, tx.init(p), p, value_fn=saddle)
    np.testing.assert_allclose(updates, grads * (grads @ grads) / (grads @ h @ grads), rtol=1e-12)
    assert not bool(state.info.is_convex) and int(state.info.num_products) == 2
    # With damping it leaves the saddle for a minimum.
    result = gx.minimize(saddle, p, gx.newton_cg(steps=4), tol=1e-9)
    np.testing.assert_allclose(float(result.value), -1.0, rtol=1e-12)


def test_a_start_that_is_worse_than_none_is_left_out():
    tx = gx.scale_by_newton_cg(steps=1, damping=0.0, damping_factor=1.0, warm_start=1.0)
    h = jnp.asarray([1.0, 4.0, 9.0])

    def parabola(p):
        return 0.5 * jnp.sum(h * p**2)

    p = jnp.ones(3)
    g = h * p
    away = tx.init(p)._replace(solution=-3 * p)
    updates, _ = tx.update(g, away, p, value_fn=parabola)
    np.testing.assert_allclose(updates, g * (g @ g) / (g @ (h * g)), rtol=1e-14)
    near = tx.init(p)._replace(solution=p)
    updates, state = tx.update(g, near, p, value_fn=parabola)
    np.testing.assert_allclose(updates, p, rtol=1e-14)
    assert int(state.info.num_products) == 1  # that of the start


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_gradient_that_is_not_finite_is_not_hidden(bad):
    tx, p = gx.scale_by_newton_cg(), params()
    grads = jax.grad(loss)(p, **batch())
    grads["b"] = grads["b"].at[0].set(bad)
    updates, state = tx.update(grads, tx.init(p), p, value=1.0, value_fn=loss, **batch())
    assert not np.all(np.isfinite(updates["b"]))
    assert np.all(np.isfinite(flat(state.solution))) and float(state.damping) == 1.0


def test_a_loss_that_is_not_finite_after_the_step_rejects_it():
    def cliff(p):
        return jnp.where(p < 0.5, jnp.nan, p**2)

    tx, p = gx.scale_by_newton_cg(damping=1e-3), jnp.asarray(1.0)
    updates, state = tx.update(2 * p, tx.init(p), p, value=cliff(p), value_fn=cliff)
    assert float(updates) == 0.0 and float(state.damping) > 1e-3
    assert not bool(state.info.is_accepted)


@pytest.mark.parametrize("name", PRODUCTS)
def test_in_partition_it_solves_with_its_own_block(name):
    tx = gx.scale_by_newton_cg(PRODUCTS[name], 60, 2.0, damping_factor=1.0)
    tx = gx.partition(
        {"curved": tx, "other": gx.scale(1.0)}, {"w": "curved", "b": "other", "v": "curved"}
    )
    p = params()
    grads = jax.grad(loss)(p, **batch())
    updates, _ = jax.jit(lambda p: tx.update(grads, tx.init(p), p, value_fn=loss, **batch()))(p)
    own = {k: p[k] for k in ("w", "v")}
    if "hessian" in name:
        c = hessian_of(lambda own: loss(own | {"b": p["b"]}, **batch()), own)
    else:
        vectors = curvature.gauss_newton_product(
            lambda own, inputs: model(own | {"b": p["b"]}, inputs), squared_error
        )
        c = dense_of(vectors.at(own, **batch()), own)
    expected = np.linalg.solve(c + 2.0 * np.eye(len(c)), flat({k: grads[k] for k in own}))
    np.testing.assert_allclose(flat({k: updates[k] for k in own}), expected, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(updates["b"], grads["b"])


def test_a_parameter_without_a_gradient_stays_where_it_is():
    tx, p = gx.scale_by_newton_cg(GAUSS_NEWTON, 60, 1.0, 1.0), params()
    grads = jax.grad(loss)(p, **batch()) | {"b": None}
    updates, _ = tx.update(grads, tx.init(p), p, value_fn=loss, **batch())
    assert updates["b"] is None
    masked = gx.masked(tx, {"w": True, "b": False, "v": True})
    full = jax.grad(loss)(p, **batch())
    expected, _ = masked.update(full, masked.init(p), p, value_fn=loss, **batch())
    assert_same({k: updates[k] for k in "wv"}, {k: expected[k] for k in "wv"})


@pytest.mark.parametrize("name", PRODUCTS)
def test_make_step_and_vmap_take_the_same_steps(name):
    tx = gx.newton_cg(product=PRODUCTS[name], steps=5)
    expected = run(tx, params(), **batch())
    step = gx.make_step(tx, loss)
    p, state = params(), tx.init(params())
    given = {} if name == "hessian of value_fn" else batch()
    given = {k: given[k] for k in given if name != "fisher" or k == "inputs"}
    for _ in range(3):
        p, state, _ = step(p, state, *batch().values(), **given)
    assert_same(p, expected)
    starts = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), params())
    both = jax.vmap(lambda p: run(tx, p, **batch()))(starts)
    assert_same(jax.tree.map(lambda x: x[0], both), expected)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_on_a_mesh_it_takes_the_same_steps(name, kind, compiled):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)
    is_explicit = kind is AxisType.Explicit

    def on_mesh(params, inputs):
        if is_explicit:  # the model of the user sees how its batch lies
            assert jax.typeof(inputs).sharding.spec == P("x", None)
        hidden = jnp.tanh(inputs @ params["w"] + params["b"][None])
        out = P("x", None) if is_explicit else None
        return jnp.matmul(hidden, params["v"], out_sharding=out)

    def loss_on_mesh(params, inputs, labels):
        return squared_error(on_mesh(params, inputs), labels)

    products = {
        "hessian of value_fn": curvature.hessian_product(),
        "hessian": curvature.hessian_product(loss_on_mesh),
        "gauss_newton": curvature.gauss_newton_product(on_mesh, squared_error),
        "fisher": curvature.fisher_product(on_mesh, "normal"),
    }
    expected = run(gx.newton_cg(product=PRODUCTS[name], steps=5), params(), 2, **batch())
    tx = gx.newton_cg(product=products[name], steps=5)
    with jax.set_mesh(mesh):
        place = {"w": P("y", None), "b": P(), "v": P()}
        p = jax.tree.map(
            lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), params(), place
        )
        given = jax.device_put(batch(), NamedSharding(mesh, P("x", None)))

        def two(p, given):
            state = tx.init(p)
            for _ in range(2):
                value, grads = jax.value_and_grad(loss_on_mesh)(p, **given)
                updates, state = tx.update(
                    grads, state, p, value=value, value_fn=loss_on_mesh, **given
                )
                p = gx.apply_updates(p, updates)
            return p

        got = (jax.jit(two) if compiled else two)(p, given)
    assert_same(got, expected)
    assert got["w"].sharding.is_equivalent_to(p["w"].sharding, 2)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", PRODUCTS)
def test_in_shard_map_devices_average_their_parts_of_the_batch(name, checked):
    product = gx.replace(PRODUCTS[name], batch_axis_name="data")
    tx = gx.newton_cg(product=product, steps=5)

    def local(p, given):
        state = tx.init(p)
        for _ in range(2):
            mine = gx.distributed.local_view(p, "data")
            value, grads = jax.value_and_grad(loss)(mine, **given)
            grads = jax.lax.pmean(grads, "data")
            updates, state = tx.update(grads, state, p, value=value, value_fn=loss, **given)
            p = gx.apply_updates(p, updates)
        return p, state[0].damping

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    run_all = jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=checked
    )
    got, _ = jax.jit(run_all)(params(), batch())
    assert_same(got, run(gx.newton_cg(product=PRODUCTS[name], steps=5), params(), 2, **batch()))
    assert tx.transforms[0].exchanges == ("data",)


@pytest.mark.usefixtures("eight_devices")
def test_in_shard_map_the_loss_may_be_that_of_the_whole_batch():
    def whole(params, inputs, labels):
        return jax.lax.pmean(loss(params, inputs, labels), "data")

    def whole_of_outputs(outputs, labels):
        return jax.lax.pmean(squared_error(outputs, labels), "data")

    for name, product in (
        ("hessian", curvature.hessian_product()),
        ("gauss_newton", curvature.gauss_newton_product(model, whole_of_outputs)),
    ):
        tx = gx.newton_cg(product=product, steps=5)

        def one(p, given, tx=tx):
            value, grads = jax.value_and_grad(whole)(p, **given)
            updates, _ = tx.update(grads, tx.init(p), p, value=value, value_fn=whole, **given)
            return gx.apply_updates(p, updates)

        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        run_all = jax.shard_map(one, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
        expected = run(gx.newton_cg(product=PRODUCTS[name], steps=5), params(), 1, **batch())
        assert_same(jax.jit(run_all)(params(), batch()), expected)


def test_sampled_labels_are_drawn_anew_for_each_step():
    product = curvature.fisher_product(model, "normal", sampled=True)
    tx, p = gx.scale_by_newton_cg(product, damping_factor=1.0, key=7), params()
    grads, state = jax.grad(loss)(p, **batch()), tx.init(p)
    one, after = tx.update(grads, state, p, value_fn=loss, **batch())
    again, _ = tx.update(grads, state, p, value_fn=loss, **batch())
    other, _ = tx.update(
        grads, after._replace(solution=state.solution), p, value_fn=loss, **batch()
    )
    assert_same(one, again)
    assert np.max(np.abs(flat(one) - flat(other))) > 1e-3
    # All products of one step are with the same matrix.
    key = jax.random.split(state.key)[1]
    c = dense_of(product.at(p, key=key, inputs=batch()["inputs"]), p)
    exact = gx.replace(tx, steps=80)
    updates, _ = exact.update(grads, exact.init(p), p, value_fn=loss, **batch())
    expected = np.linalg.solve(c + np.eye(len(c)), flat(grads))
    np.testing.assert_allclose(flat(updates), expected, rtol=0, atol=1e-10)


def test_sophia_takes_bartletts_estimate():
    diagonal = curvature.bartlett_diagonal(model, "normal")
    estimator = gx.estimate_diagonal(diagonal, key=3)
    p, state = params(), estimator.init(params())
    got, _ = estimator.update(p, state, p, value_fn=loss, **batch())
    key = jax.random.split(state.key)[1]
    assert_same(got, diagonal(p, key=key, inputs=batch()["inputs"]))
    tx = gx.sophia(0.1, hessian_diagonal_fn=estimator)
    _, state = tx.update(p, tx.init(p), p, inputs=batch()["inputs"])
    assert_same(state[0].nu, jax.tree.map(lambda d: 0.01 * d, got))


def test_a_diagonal_in_partition_is_that_of_its_own_parameters():
    diagonal = curvature.bartlett_diagonal(model, "normal")
    tx = gx.masked(gx.estimate_diagonal(diagonal, key=3), {"w": True, "b": False, "v": True})
    p = params()
    got, _ = tx.update(p, tx.init(p), p, value_fn=loss, **batch())
    plain = gx.estimate_diagonal(diagonal, key=3)
    expected, _ = plain.update(p, plain.init(p), p, **batch())
    assert_same(got, expected | {"b": p["b"]})


def test_products_are_counted():
    tx, p = gx.scale_by_newton_cg(GAUSS_NEWTON, steps=4), params()
    _, state = tx.update(
        jax.grad(loss)(p, **batch()), tx.init(p), p, value=1.0, value_fn=loss, **batch()
    )
    assert int(state.info.num_products) == 5
    vector, _ = ravel_pytree(p)
    assert vector.size > 4

"""`lbfgsb` beside SciPy's L-BFGS-B, at bounds of every kind, and in every form of a run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import gradxform as gx
from gradxform.values.config import from_json, to_json

pytestmark = pytest.mark.numeric


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def quadratic(x):
    n = x.size
    slope = 30 * jnp.sin(jnp.arange(n, dtype=x.dtype))
    return jnp.sum(jnp.linspace(1, 1e3, n, dtype=x.dtype) * x * x) / 2 + x.sum() ** 2 - x @ slope


def least_squares(x):
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=s), x.dtype) for s in ((40, 20), (40,)))
    return jnp.sum((a @ x - 3 * b) ** 2) / 2


def hs5(x):
    return jnp.sin(x[0] + x[1]) + (x[0] - x[1]) ** 2 - 1.5 * x[0] + 2.5 * x[1] + 1


def hs38(x):
    a = 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2 + 90 * (x[3] - x[2] ** 2) ** 2
    b = (1 - x[2]) ** 2 + 10.1 * ((x[1] - 1) ** 2 + (x[3] - 1) ** 2)
    return a + b + 19.8 * (x[1] - 1) * (x[3] - 1)


def hs45(x):
    return 2 - jnp.prod(x) / 120


def hs110(x):
    return jnp.sum(jnp.log(x - 2) ** 2 + jnp.log(10 - x) ** 2) - jnp.prod(x) ** 0.2


# The loss, the start and the bounds; how many evaluations have SciPy's points.
PROBLEMS = {
    "an upper bound is active": (rosenbrock, [-1.2, 1.0], -2, [0.5, 2], 20),
    "a lower bound is active": (rosenbrock, [-2.0, 1.6], [-np.inf, 1.5], np.inf, 15),
    "odd entries are bounded": (rosenbrock, [3.0] * 25, [1, -100] * 12 + [1], 100, 40),
    "many upper bounds": (rosenbrock, [-1.2, 0.8] * 15, -np.inf, 0.9, 80),
    "no bounds": (rosenbrock, [-1.2, 1.0] * 5, -np.inf, np.inf, 60),
    "a boxed quadratic": (quadratic, [0.5] * 50, 0, 1, 15),
    "more breaks than a chunk": (quadratic, [0.0] * 200, -0.01, 0.02, 10),
    "non-negative least squares": (least_squares, [1.0] * 20, 0, np.inf, 10),
    "HS5": (hs5, [0.0, 0.0], [-1.5, -3], [4, 3], 6),
    "HS38": (hs38, [-3.0, -1, -3, -1], -10, 10, 20),
    "HS45": (hs45, [1.0] * 5, 0, [1, 2, 3, 4, 5], 10),
    "HS110": (hs110, [9.0] * 10, 2.001, 9.999, 5),
}


def arrays(start, *bounds):
    start = np.asarray(start, np.float64)
    return start, *(np.broadcast_to(np.asarray(x, np.float64), start.shape) for x in bounds)


@functools.cache
def scipy_run(name):
    """The points and values of SciPy's evaluations, and its result."""
    loss, *where, _ = PROBLEMS[name]
    start, low, high = arrays(*where)
    points, values = [], []
    value_and_grad = jax.jit(jax.value_and_grad(loss))

    def fun(x):
        value, grad = value_and_grad(x)
        points.append(x.copy())
        values.append(float(value))
        return float(value), np.asarray(grad)

    options = {"ftol": 0, "gtol": 1e-10, "maxfun": 1000, "maxiter": 1000}
    bounds = list(zip(low, high, strict=True))
    result = minimize(fun, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return points, values, result


def run(loss, params, tx, steps):
    """The points that were evaluated, their values, the parameters and the state."""
    value_and_grad, update = jax.jit(jax.value_and_grad(loss)), jax.jit(tx.update)
    state, points, values = tx.init(params), [], []
    for _ in range(steps):
        value, grad = value_and_grad(params)
        points.append(params)
        values.append(float(value))
        updates, state = update(grad, state, params, value=value)
        params = gx.apply_updates(params, updates)
        if state.converged | state.stalled | state.failed:
            break
    return points, values, params, state


def own_run(name, dtype):
    loss, *where, _ = PROBLEMS[name]
    start, low, high = arrays(*where)
    return run(loss, jnp.asarray(start, dtype), gx.lbfgsb(10, low, high), 400)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_minimum_and_the_points_are_those_of_scipy(name):
    with jax.enable_x64(True):
        theirs, their_values, result = scipy_run(name)
        points, values, params, state = own_run(name, jnp.float64)
        _, low, high = arrays(*PROBLEMS[name][1:-1])
    same = PROBLEMS[name][-1]
    for mine, other in zip(points[:same], theirs[:same], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-8)
    assert min(values) <= result.fun + 1e-8 * max(1, abs(result.fun))
    np.testing.assert_allclose(gx.eval_params(state, params), result.x, atol=1e-5)
    for x in map(np.asarray, points):
        assert np.all((low <= x) & (x <= high))
    # As many evaluations until the gap is 1e-8 of the first one.
    good = result.fun + 1e-8 * (their_values[0] - result.fun)
    first = [next(i for i, v in enumerate(vs, 1) if v <= good) for vs in (values, their_values)]
    assert first[0] <= 1.1 * first[1]


@pytest.mark.parametrize("name", ["many upper bounds", "a boxed quadratic", "HS38", "HS110"])
def test_float32_reaches_the_minimum(name):
    with jax.enable_x64(True):
        _, their_values, result = scipy_run(name)
    points, values, _, state = own_run(name, jnp.float32)
    assert state.converged | state.stalled
    assert min(values) - result.fun <= 2e-6 * (their_values[0] - result.fun)
    low, high = (np.float32(x) for x in arrays(*PROBLEMS[name][1:-1])[1:])
    for x in map(np.asarray, points):
        assert np.all((low <= x) & (x <= high))


def test_a_separable_quadratic_has_its_minimum_at_the_nearest_point_of_the_box():
    with jax.enable_x64(True):
        aim = jnp.linspace(-3, 3, 13)
        *_, params, state = run(
            lambda x: jnp.sum(jnp.linspace(1, 13, 13) * (x - aim) ** 2),
            jnp.zeros(13),
            gx.lbfgsb(lower=-1, upper=2, tol=1e-9),
            50,
        )
    assert state.converged
    np.testing.assert_allclose(params, np.clip(aim, -1, 2), atol=1e-9)
    assert np.all(np.asarray(params)[np.asarray(aim) > 2] == 2)


def test_without_bounds_the_path_is_that_of_lbfgs_steps():
    with jax.enable_x64(True):
        start = jnp.asarray([-1.2, 1.0] * 3)
        mine, *_ = run(rosenbrock, start, gx.lbfgsb(upper=jnp.inf), 30)
        others, *_ = run(rosenbrock, start, gx.lbfgs_steps(), 30)
    for x, other in zip(mine, others, strict=True):
        np.testing.assert_allclose(x, other, rtol=1e-6, atol=1e-9)


def test_several_problems_under_vmap_go_on_by_themselves():
    tx = gx.lbfgsb(lower=-2, upper=[0.5, 2.0])
    starts = jnp.asarray([[-1.2, 1.0], [0.0, 0.0], [0.5, -2.0], [-2.0, 2.0]])

    def steps(params):
        def step(carry, _):
            params, state = carry
            value, grad = jax.value_and_grad(rosenbrock)(params)
            updates, state = tx.update(grad, state, params, value=value)
            return (gx.apply_updates(params, updates), state), params

        (params, state), path = jax.lax.scan(step, (params, tx.init(params)), length=60)
        return gx.eval_params(state, params), path

    ends, paths = jax.jit(jax.vmap(steps))(starts)
    np.testing.assert_allclose(ends, [[0.5, 0.25]] * 4, atol=1e-5)
    for start, path in zip(starts, paths, strict=True):
        alone = np.stack(run(rosenbrock, start, tx, 8)[0])
        np.testing.assert_allclose(path[: len(alone)], alone, rtol=1e-3, atol=1e-4)


def test_bounds_may_be_trees_of_numbers_arrays_and_none():
    params = {"a": jnp.zeros(3), "b": {"c": jnp.ones((2, 2)), "d": jnp.zeros(())}, "e": None}
    tx = gx.lbfgsb(
        lower={"a": np.asarray([-1.0, 0.0, -jnp.inf]), "b": 0.0, "e": None},
        upper={"a": None, "b": {"c": [[1, 2], [3, 4]], "d": 0}, "e": None},
    )
    state = tx.init(params)
    np.testing.assert_array_equal(state.lower["a"], [-1, 0, -np.inf])
    np.testing.assert_array_equal(state.lower["b"]["c"], np.zeros((2, 2)))
    np.testing.assert_array_equal(state.upper["a"], [np.inf] * 3)
    np.testing.assert_array_equal(state.upper["b"]["c"], [[1, 2], [3, 4]])
    assert from_json(to_json(tx)) == tx

    def loss(p):
        return jnp.sum((p["a"] + 2) ** 2) + jnp.sum((p["b"]["c"] - 2.5) ** 2) + p["b"]["d"]

    _, _, params, state = run(loss, params, tx, 40)
    best = gx.eval_params(state, params)
    np.testing.assert_allclose(best["a"], [-1, 0, -2], atol=1e-5)
    np.testing.assert_allclose(best["b"]["c"], [[1, 2], [2.5, 2.5]], atol=1e-5)
    assert best["b"]["d"] == 0


def test_a_function_of_the_parameters_may_return_arrays():
    tx = gx.lbfgsb(lower=lambda params: jax.tree.map(lambda p: p - 1, params))
    params = {"w": jnp.asarray([1.0, 2.0])}
    *_, params, state = run(lambda p: jnp.sum(p["w"]), params, tx, 10)
    np.testing.assert_array_equal(params["w"], [0, 1])
    assert state.converged


def test_entries_with_equal_bounds_do_not_move():
    params = jnp.asarray([0.3, -0.7])
    *_, end, state = run(rosenbrock, params, gx.lbfgsb(lower=[0.3, -0.7], upper=[0.3, -0.7]), 5)
    np.testing.assert_array_equal(end, params)
    assert state.converged
    *_, end, state = run(rosenbrock, params, gx.lbfgsb(lower=[0.3, -9.0], upper=[0.3, 9.0]), 40)
    np.testing.assert_allclose(end, [0.3, 0.09], rtol=1e-5)


@pytest.mark.parametrize("wrap", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn])
def test_bounds_that_a_dtype_lacks_are_rounded_inward(dtype, wrap):
    wanted = np.asarray([0.1, 0.3, 1 / 3, -0.7, 5.003], np.float32)
    tx = gx.lbfgsb(lower=lambda p: wrap(-wanted), upper=lambda p: wrap(wanted))
    params = jnp.zeros(5, dtype)
    with pytest.raises(ValueError, match=r"they are .* and .* for"):
        tx.init(params)
    wanted = np.abs(wanted)
    for init in (tx.init, jax.jit(tx.init)):
        state = init(params)
        np.testing.assert_array_equal(state.lower, -state.upper)
        upper = np.asarray(state.upper)
        assert np.all(upper <= wanted) and np.all(upper > 0.85 * wanted)
        np.testing.assert_array_equal(upper, np.asarray(state.upper.astype(dtype), np.float32))
    # The solver ends at the bound, and asks for no point beyond it.
    points, *_ = run(lambda x: -jnp.sum(x.astype(jnp.float32)), params, tx, 5)
    assert np.all(np.asarray(points[-1], np.float32) == upper)


def test_a_traced_start_outside_of_the_bounds_begins_at_the_nearest_point():
    tx = gx.lbfgsb(lower=0.0, upper=1.0)
    params = jnp.asarray([-3.0, 0.5, 7.0])
    state = jax.jit(tx.init)(params)
    updates, state = tx.update(params, state, params, value=1.0)
    np.testing.assert_array_equal(params + updates, [0, 0.5, 1])
    assert not state.started and not state.failed


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_roundings_of_the_update_do_not_lead_outside(dtype):
    """A step to a bound near 0 from far away is rounded more coarsely than the bound."""
    rng = np.random.default_rng(0)
    low = jnp.asarray(rng.uniform(0, 0.01, 500), dtype)
    params = jnp.asarray(rng.uniform(10, 300, 500), dtype)
    tx = gx.lbfgsb(lower=low, upper=1000)
    state, gaps = tx.init(params), []
    for _ in range(4):
        grads = params - low + jnp.asarray(1000, dtype)
        value = jnp.sum(params.astype(jnp.float32))
        updates, state = tx.update(grads, state, params, value=value)
        params = gx.apply_updates(params, updates)
        gaps.append(np.asarray(params - low, np.float32))
    assert np.min(gaps) >= 0
    assert np.max(gaps[0]) <= 2


@pytest.mark.parametrize("value, size", [(jnp.nan, 1.0), (jnp.inf, 1.0), (1.0, 1e30), (1.0, 1e-30)])
def test_extreme_values_leave_finite_parameters(value, size):
    tx = gx.lbfgsb(lower=-1.0, upper=[2.0, jnp.inf, 5.0])
    params = jnp.asarray([0.0, 1.0, 2.0])
    state = tx.init(params)
    for i in range(4):
        grads = jnp.asarray([1.0, -1.0, 0.0]) * size * (i + 1)
        updates, state = tx.update(grads, state, params, value=value)
        params = gx.apply_updates(params, updates)
        assert np.all(np.isfinite(params))
        assert np.all((params >= -1) & (params <= np.asarray([2, np.inf, 5])))


def test_a_value_that_is_not_finite_shortens_the_step():
    def loss(x):
        return jnp.sum(-jnp.log(x)) + 3 * jnp.sum(x)

    *_, params, state = run(loss, jnp.full(2, 0.2), gx.lbfgsb(lower=-1.0, upper=4.0), 60)
    np.testing.assert_allclose(gx.eval_params(state, params), [1 / 3] * 2, rtol=1e-4)


def test_a_traced_bound_is_refused_with_a_remedy():
    with pytest.raises(TypeError, match="lbfgsb: lower must not be traced; give a function"):
        jax.jit(lambda x: gx.lbfgsb(lower=x).init(x))(jnp.ones(3))

"""`lbfgs_steps`: one value and one gradient at each update, in any loop."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from scipy.optimize import minimize as scipy_minimize

import gradxform as gx

pytestmark = pytest.mark.numeric


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def quartic(x):
    return jnp.sum(jnp.arange(1.0, len(x) + 1, dtype=x.dtype) * (x - 1) ** 4 + x**2)


def bowl(x):
    return jnp.sum(jnp.logspace(0, 3, len(x), dtype=x.dtype) * (x - 1) ** 2)


def run(loss, params, steps, tx=None):
    """The points that are evaluated, their values, and the last parameters and state."""
    tx = gx.lbfgs_steps() if tx is None else tx

    def step(carry, _):
        params, state = carry
        value, grad = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grad, state, params, value=value)
        return (gx.apply_updates(params, updates), state), (params, value)

    carry = params, tx.init(params)
    carry, seen = jax.jit(lambda c: jax.lax.scan(step, c, None, length=steps))(carry)
    return *seen, *carry


def scipys(loss, start, steps):
    seen = []
    value_and_grad = jax.jit(jax.value_and_grad(loss))

    def fun(x):
        seen.append(x.copy())
        value, grad = value_and_grad(jnp.asarray(x))
        return float(value), np.asarray(grad)

    options = {"maxcor": 10, "maxfun": steps, "ftol": 0, "gtol": 0}
    scipy_minimize(fun, start, jac=True, method="L-BFGS-B", options=options)
    return np.stack(seen)[:steps]


@pytest.mark.parametrize(
    ("loss", "start"),
    [
        (rosenbrock, np.tile([-1.2, 1.0], 10)),
        (quartic, np.linspace(3.0, -5.0, 8)),
        (bowl, np.linspace(-3.0, 4.0, 12)),
    ],
)
def test_the_points_are_those_of_scipys_l_bfgs_b(loss, start):
    with jax.enable_x64(True):
        mine = np.asarray(run(loss, jnp.asarray(start), 30)[0])
        theirs = scipys(loss, start, 30)
        np.testing.assert_allclose(mine[: len(theirs)], theirs, atol=1e-7)


def test_a_hundred_variables_in_float32():
    loss = lambda x: jnp.sum(100 * (x[1::2] - x[::2] ** 2) ** 2 + (1 - x[::2]) ** 2)  # noqa: E731
    start = jnp.asarray([-1.2, 1.0] * 50, jnp.float32)
    _, values, params, state = run(loss, start, 600)
    assert loss(gx.eval_params(state, params)) <= 1e-9 * values[0]
    assert np.argmax(values <= 1e-6 * values[0]) < 50


def test_a_loss_times_a_large_power_of_two_has_the_same_points():
    start = jnp.asarray([-1.2, 1.0])
    points, *_ = run(rosenbrock, start, 12)
    far, _, _, state = run(lambda x: 2.0**70 * rosenbrock(x), start, 12)
    assert state.scale > 2.0**70
    np.testing.assert_allclose(far, points, rtol=1e-4, atol=1e-5)


def test_the_evaluated_point_is_the_accepted_one():
    tx, x = gx.lbfgs_steps(), jnp.asarray([-1.2, 1.0])
    state = tx.init(x)
    np.testing.assert_array_equal(gx.eval_params(state, x), x)
    step = jax.jit(lambda v, g, s, p: tx.update(g, s, p, value=v))
    value_and_grad = jax.jit(jax.value_and_grad(rosenbrock))
    best, refused = np.inf, 0
    for _ in range(60):
        value, grad = value_and_grad(x)
        at = state.iterations
        updates, state = step(value, grad, state, x)
        evaluated = gx.eval_params(state, x)
        refused += int(state.iterations == at)
        if state.iterations > at:
            np.testing.assert_array_equal(evaluated, x)
        assert rosenbrock(evaluated) <= best
        best = rosenbrock(evaluated)
        x = gx.apply_updates(x, updates)
    assert refused > 3 and best < 1e-9


def test_the_loss_is_in_the_program_once():
    def loss(x):
        return jnp.sum(jnp.cosh(x))

    tx, x = gx.lbfgs_steps(), jnp.ones(3)

    def step(x, state):
        value, grad = jax.value_and_grad(loss)(x)
        return tx.update(grad, state, x, value=value)

    assert len(re.findall(r"\bcosh\b", str(jax.make_jaxpr(step)(x, tx.init(x))))) == 1


def test_under_vmap_every_problem_is_as_by_itself():
    starts = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, (5, 2)), jnp.float32)
    points, *_, state = jax.vmap(lambda x: run(rosenbrock, x, 20))(starts)
    assert len(set(np.asarray(state.iterations).tolist())) > 1
    for one, start in zip(points, starts, strict=True):
        alone = run(rosenbrock, start, 20)[0]
        np.testing.assert_allclose(one[:8], alone[:8], rtol=1e-2, atol=1e-3)


def tree_loss(params):
    leaves = jax.tree.leaves(params)
    return sum(jnp.sum((i + 1.0) * (x.astype(jnp.float32) - 1) ** 2) for i, x in enumerate(leaves))


def test_leaves_of_several_dtypes_and_none():
    params = {
        "a": jnp.zeros((2, 3), jnp.bfloat16),
        "b": FrozenDict({"c": jnp.full(4, 3.0), "none": None}),
        "d": jnp.zeros((0, 2)),
    }
    *_, params, state = run(tree_loss, params, 15)
    assert params["a"].dtype == jnp.bfloat16 and state.params["a"].dtype == jnp.float32
    found = gx.eval_params(state, params)
    for leaf in jax.tree.leaves(found):
        np.testing.assert_allclose(leaf.astype(jnp.float32), np.ones(leaf.shape), atol=1e-2)
    assert isinstance(found["b"], FrozenDict) and found["b"]["none"] is None


def test_state_and_parameters_can_be_donated():
    tx, x = gx.lbfgs_steps(3), jnp.asarray([-1.2, 1.0])

    def step(x, state):
        value, grad = jax.value_and_grad(rosenbrock)(x)
        updates, state = tx.update(grad, state, x, value=value)
        return gx.apply_updates(x, updates), state

    state, step = tx.init(x), jax.jit(step, donate_argnums=(0, 1))
    for _ in range(60):
        x, state = step(x, state)
    assert rosenbrock(gx.eval_params(state, x)) < 1e-6


# --------------------------------------------------------------------------------- how a run ends


def test_a_run_has_converged_where_the_gradient_is_short():
    _, values, params, state = run(bowl, jnp.zeros(6), 200, gx.lbfgs_steps(tol=1e-3))
    assert state.converged and not state.stalled and not state.failed
    assert jnp.linalg.norm(jax.grad(bowl)(params)) <= 1e-3
    np.testing.assert_array_equal(params, gx.eval_params(state, params))
    assert values[-1] == values[-2]


def test_a_run_stalls_where_values_differ_by_roundings():
    def loss(x):
        return 1e3 + jnp.sum(jnp.cos(3 * x) + (x - 0.3) ** 2)

    _, _, params, state = run(loss, jnp.linspace(-2.0, 2.0, 7), 400)
    assert state.stalled and not state.failed
    assert jnp.linalg.norm(jax.grad(loss)(params)) < 1e-3


def test_a_loss_that_is_finite_at_its_start_only_fails():
    def loss(x):
        return jnp.sum(x) + jnp.where(jnp.all(x == 0), 0.0, jnp.nan)

    _, _, params, state = run(loss, jnp.zeros(3), 30)
    assert state.failed and not state.stalled and not state.converged
    np.testing.assert_array_equal(params, 0.0)


def test_a_gradient_of_another_sign_ends_the_run():
    tx, x = gx.lbfgs_steps(), jnp.ones(3)
    state, step = tx.init(x), jax.jit(lambda s, x: tx.update(-x, s, x, value=jnp.sum(x * x) / 2))
    for _ in range(30):
        updates, state = step(state, x)
        x = x + updates
    assert state.failed | state.stalled
    assert state.iterations == 0
    np.testing.assert_allclose(x, 1.0, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_first_value_that_is_not_finite_fails(bad):
    _, _, params, state = run(lambda x: jnp.sum(x) * bad, jnp.ones(3), 5)
    assert state.failed
    np.testing.assert_array_equal(params, 1.0)


def test_a_value_that_is_not_finite_shortens_the_step():
    def loss(x):  # not a number outside of (-1e-3, 1e-3)
        return jnp.sum(-jnp.log(1e-3 - x) - 2 * jnp.log(1e-3 + x))

    _, values, params, state = run(loss, jnp.zeros(2), 60)
    assert not np.all(np.isfinite(values)) and not state.failed
    np.testing.assert_allclose(gx.eval_params(state, params), 1e-3 / 3, rtol=1e-3)


def test_a_failed_search_forgets_the_memory_and_tries_the_gradient():
    tx, x = gx.lbfgs_steps(4), jnp.asarray([-1.2, 1.0])

    def step(carry, i):
        x, state = carry
        value, grad = jax.value_and_grad(rosenbrock)(x)
        is_lost = (i >= 10) & (i < 32)  # more trials than a search may take
        updates, new = tx.update(grad, state, x, value=jnp.where(is_lost, jnp.nan, value))
        forgot = (state.pairs > 0) & (new.pairs == 0)
        is_gradient = jnp.allclose(new.direction * new.theta, -new.updates, rtol=1e-5)
        return (x + updates, new), (forgot, is_gradient)

    scan = jax.jit(lambda carry: jax.lax.scan(step, carry, jnp.arange(110)))
    (x, state), (forgot, is_gradient) = scan((x, tx.init(x)))
    assert forgot[:40].sum() == 1 and is_gradient[np.argmax(forgot)]
    assert not state.failed
    assert rosenbrock(gx.eval_params(state, x)) < 1e-6


def test_pairs_of_roundings_are_not_stored():
    def loss(x):  # linear: the gradient does not change
        return jnp.sum(x * jnp.asarray([1.0, 2.0]))

    *_, state = run(loss, jnp.zeros(2), 12)
    assert state.pairs == 0 and state.count == 12


# ------------------------------------------------------------------------------------ on a mesh


def logistic(n=64, d=8):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, d)).astype(np.float32), rng.choice([-1.0, 1.0], n)

    def loss(params, x, y):
        return jnp.mean(jax.nn.softplus(-y * (x @ params["w"]))) + 0.01 * jnp.sum(params["w"] ** 2)

    return loss, jnp.asarray(x), jnp.asarray(y, jnp.float32)


def test_logistic_regression_on_eight_devices_equals_one(eight_devices):
    loss, x, y = logistic()
    mesh = Mesh(np.asarray(jax.devices()), ("x",))
    tx = gx.lbfgs_steps()

    def solve(x, y):
        return run(lambda p: loss(p, x, y), {"w": jnp.zeros(8)}, 25, tx)[0]["w"]

    cut = NamedSharding(mesh, P("x"))
    alone = solve(x, y)
    np.testing.assert_allclose(solve(*jax.device_put((x, y), cut)), alone, atol=2e-4)

    def mapped(x, y):
        def step(carry, _):
            params, state = carry
            value, grad = jax.value_and_grad(loss)(params, x, y)
            value, grad = jax.lax.pmean((value, grad), "x")
            updates, state = tx.update(grad, state, params, value=value)
            return (gx.apply_updates(params, updates), state), params["w"]

        params = {"w": jnp.zeros(8)}
        return jax.lax.scan(step, (params, tx.init(params)), None, length=25)[1]

    over = jax.shard_map(
        mapped, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P(), check_vma=False
    )
    np.testing.assert_allclose(jax.jit(over)(x, y), alone, atol=2e-4)


def test_a_direction_takes_one_exchange_on_a_mesh(eight_devices):
    mesh = Mesh(np.asarray(jax.devices()), ("x",))
    tx = gx.lbfgs_steps(10)
    params = {"w": jnp.ones((16, 4)), "b": jnp.ones(8)}
    params = jax.device_put(params, NamedSharding(mesh, P("x")))
    state = tx.init(params)

    def place(path, x):
        name = path[0].name
        if name in ("params", "updates", "direction"):
            return NamedSharding(mesh, P("x"))
        return NamedSharding(mesh, P(None, "x") if name.startswith("diff_") else P())

    state = jax.device_put(state, jax.tree_util.tree_map_with_path(place, state))
    update = jax.jit(lambda g, s, p: tx.update(g, s, p, value=1.0))
    compiled = update.lower(params, state, params).compile().as_text()
    exchanges = re.findall(r"= .* (all-reduce|all-gather|all-to-all)(?:-start)?\(", compiled)
    assert exchanges == ["all-reduce"], exchanges


@pytest.mark.parametrize("tx", [gx.lbfgs_steps(), gx.lbfgsb()])
def test_trial_points_are_not_averaged(tx):
    with pytest.raises(ValueError, match=r"step_by_lbfgsb? in it tries points, .* eval_params"):
        gx.moving_average(tx, 0.9)


def test_what_comes_after_it_must_not_change_its_steps():
    with pytest.raises(ValueError, match="step_by_lbfgs"):
        gx.chain(gx.step_by_lbfgs(), gx.scale(0.5))

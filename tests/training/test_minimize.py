"""`minimize`: any optimizer in one loop, and why it ends."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

START = jnp.asarray([-1.2, 1.0])


def rosenbrock(x):
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def bowl(params):
    return sum(jnp.sum((x - 1) ** 2) for x in jax.tree.leaves(params))


@pytest.mark.parametrize(
    "tx", [gx.lbfgs_steps(), gx.lbfgs(), optax.lbfgs()], ids=["steps", "lbfgs", "optax"]
)
def test_methods_with_a_line_search_converge(tx):
    with jax.numpy_dtype_promotion("standard"):
        result = jax.jit(lambda x: gx.minimize(rosenbrock, x, tx, 1e-3, 200))(START)
    assert result.why() == "converged"
    np.testing.assert_allclose(result.params, 1.0, atol=1e-2)
    np.testing.assert_allclose(result.value, rosenbrock(result.params), rtol=1e-3)
    assert 30 < result.evaluations < 80 and 20 < result.iterations <= result.evaluations


def test_every_evaluation_of_a_search_is_counted():
    result = gx.minimize(rosenbrock, START, gx.lbfgs(), 0.0, 25)
    calls = []

    def counted(x):
        jax.debug.callback(lambda: calls.append(1))
        return rosenbrock(x)

    again = jax.jit(lambda x: gx.minimize(counted, x, gx.lbfgs(), 0.0, 25))(START)
    jax.block_until_ready(again)
    jax.effects_barrier()
    assert result.evaluations == again.evaluations == len(calls) >= 25


@pytest.mark.parametrize("tx", [gx.lbfgs(), gx.sgd(0.01)], ids=["lbfgs", "sgd"])
def test_a_function_with_aux_is_minimized_and_gives_it_at_the_best_point(tx):
    def both(x):
        return rosenbrock(x), {"at": 2 * x}

    result = jax.jit(lambda x: gx.minimize(both, x, tx, 0.0, 20, has_aux=True))(START)
    plain = jax.jit(lambda x: gx.minimize(rosenbrock, x, tx, 0.0, 20))(START)
    assert result.evaluations == plain.evaluations and plain.aux is None
    np.testing.assert_array_equal(result.aux["at"], 2 * result.params)
    np.testing.assert_allclose(result.params, plain.params, rtol=1e-5)
    with pytest.raises(TypeError, match=r"minimize: fun must return a pair .*leave out has_aux"):
        gx.minimize(rosenbrock, START, tx, has_aux=True)


@pytest.mark.parametrize(
    "tx", [gx.adam(0.1), gx.sophia(0.1), gx.sgd(0.1), optax.adam(0.1), gx.momo(0.3)]
)
def test_any_optimizer_runs(tx):
    params = {"w": jnp.zeros((2, 2)), "none": None}
    with jax.numpy_dtype_promotion("standard"):
        result = gx.minimize(bowl, params, tx, 0.0, 100)
    assert result.why() == "max_evaluations"
    assert result.evaluations == result.iterations == 100
    assert result.value == bowl(result.params) < 0.5 and result.params["none"] is None


def test_the_result_is_the_best_point_and_not_the_last():
    result = gx.minimize(bowl, jnp.zeros(2), gx.sgd(1.0), 0.0, 7)  # from 0 to 2 and back
    np.testing.assert_array_equal(result.params, 0.0)


def test_parameters_that_are_not_finite_end_the_run():
    result = gx.minimize(rosenbrock, START, gx.sgd(10.0))
    assert result.why() == "not finite"
    np.testing.assert_array_equal(result.params, START)


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (lambda x: 1e3 + jnp.sum(jnp.cos(3 * x) + (x - 0.3) ** 2), "stalled"),
        (lambda x: jnp.sum(x) * jnp.nan, "failed"),
    ],
)
def test_the_flags_of_a_state_end_the_run(loss, wanted):
    for tx in (gx.lbfgs_steps(), gx.chain(gx.identity(), gx.lbfgs_steps())):
        result = gx.minimize(loss, START, tx, 0.0, 400)
        assert result.why() == wanted and result.evaluations < 200


def test_under_vmap_every_problem_ends_by_itself():
    starts = jnp.asarray(np.random.default_rng(1).uniform(-2, 2, (6, 2)), jnp.float32)

    def solve(x):
        return gx.minimize(rosenbrock, x, gx.lbfgs_steps(), 1e-2, 200)

    together = jax.jit(jax.vmap(solve))(starts)
    assert len(set(together.evaluations.tolist())) > 1
    assert set(together.why()) == {"converged"}
    assert together.value.max() < 1e-3


def far(p):
    """A loss of complex numbers, least at 1 + 2i."""
    return jnp.sum(jnp.abs(p["x"] - (1 + 2j)) ** 2)


@pytest.mark.parametrize(
    "tx",
    [
        gx.sgd(0.1),
        gx.lbfgs_steps(),
        gx.lbfgs(),
        optax.lbfgs(),
        gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(20)),
    ],
    ids=["sgd", "steps", "lbfgs", "optax", "backtracking"],
)
def test_complex_parameters_move_downhill(tx):
    with jax.numpy_dtype_promotion("standard"):
        result = gx.minimize(far, {"x": jnp.zeros(3, jnp.complex64)}, tx, max_evaluations=60)
    np.testing.assert_allclose(result.params["x"], 1 + 2j, atol=1e-3)


@pytest.mark.parametrize(
    "tx", [gx.lbfgs_steps(), gx.lbfgsb(lower=-9.0, upper=9.0)], ids=["steps", "boxes"]
)
def test_a_loss_whose_squares_leave_float32_has_the_same_minimum(tx):
    def solve(scale):
        weights = scale * jnp.asarray([1.0, 3.0, 10.0])
        loss = lambda x: jnp.sum(weights * (x - 1) ** 2)  # noqa: E731
        return gx.minimize(loss, jnp.zeros(3), tx, tol=0.0)

    for scale in (1e-25, 1.0, 1e20):
        result = solve(scale)
        assert result.why() in ("converged", "stalled") and result.evaluations < 60
        np.testing.assert_allclose(result.params, 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: gx.minimize(bowl, START, gx.adam), TypeError, "minimize: tx is .*call it: adam"),
        (lambda: gx.minimize(bowl, START, 3), TypeError, "minimize: tx must have init and update"),
        (
            lambda: gx.minimize(bowl, START, gx.sgd(0.1), -1.0),
            ValueError,
            "tol must be a number",
        ),
        (lambda: gx.minimize(bowl, START, gx.sgd(0.1), 0.1, 0), ValueError, "max_evaluations must"),
        (
            lambda: gx.minimize(bowl, START, gx.sgd(0.1), 0.1, 1.5),
            ValueError,
            "an integer .*1.5",
        ),
        (lambda: gx.minimize(bowl, START, gx.sgd(0.1), "a"), ValueError, "tol must be a number"),
        (lambda: gx.minimize(bowl, START, gx.sgd(0.1), True), ValueError, "tol must be .* True"),
        (
            lambda: gx.minimize(bowl, START, gx.sgd(0.1), jnp.ones(2)),
            ValueError,
            "tol must be a number",
        ),
        (
            lambda: gx.minimize(bowl, START, gx.sgd(0.1), 0.1, "a"),
            ValueError,
            "max_evaluations must be an integer .*'a'",
        ),
        (
            lambda: gx.minimize(bowl, START, gx.sgd(0.1), 0.1, jnp.asarray(1.5)),
            ValueError,
            "max_evaluations must be an integer",
        ),
        (
            lambda: gx.minimize(bowl, START, gx.sgd(0.1), 0.1, 2**31),
            ValueError,
            "at most 2147483647, got 2147483648",
        ),
        (
            lambda: gx.minimize(bowl, None, gx.sgd(0.1)),
            TypeError,
            "params is None; pass the parameters to start from",
        ),
        (
            lambda: gx.minimize(START, bowl, gx.sgd(0.1)),
            TypeError,
            "minimize: fun must be a function of the parameters",
        ),
        (
            lambda: gx.minimize(lambda x: x, START, gx.sgd(0.1)),
            TypeError,
            "minimize: the value of fun must be the loss, a scalar, got an array",
        ),
        (
            lambda: gx.minimize(lambda x: (x @ x, x), START, gx.sgd(0.1)),
            TypeError,
            r"minimize: the value of fun must be .* Of a pair \(value, aux\), say has_aux=True\.",
        ),
        (
            lambda: gx.minimize(lambda: 1.0, START, gx.sgd(0.1)),
            TypeError,
            r"^minimize: fun is called as fun\(params\), here with 1 argument: .*let it take the p",
        ),
        (
            lambda: gx.minimize(lambda: (1.0, 2), START, gx.lbfgs_steps(), has_aux=True),
            TypeError,
            r"^minimize: fun is called as fun\(params\), .* without arguments cannot be differ",
        ),
        (
            lambda: gx.minimize(lambda x, batch: x @ batch, START, gx.sgd(0.1)),
            TypeError,
            r"^minimize: fun is called as fun\(params\), .*'batch'.*pass a lambda as fun\.",
        ),
        (
            lambda: gx.minimize(lambda x: jnp.sum(x).astype(jnp.int32), START, gx.sgd(0.1)),
            TypeError,
            "minimize: fun returned a scalar of dtype int32, which has no gradient",
        ),
        (
            lambda: gx.value_and_grad_from_state(lambda: 1.0)(
                START, state=gx.lbfgs().init(jnp.asarray(START))
            ),
            TypeError,
            r"^value_and_grad_from_state: value_fn is called as value_fn\(params, \*args, .*diff",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("x64", [False, True])
def test_the_dtype_of_the_parameters_says_what_is_a_rounding(x64):
    """One last place above the lowest value, at a short gradient: float32 rounds that away."""

    def rounded(x):
        rounding = jax.lax.stop_gradient(jnp.where(jnp.abs(x) < 0.01, 0.0078125, 0))
        return 1e5 + rounding.astype(x.dtype) + x**2

    with jax.enable_x64(x64):
        start = jnp.asarray(0.05, jnp.float32)
        result = gx.minimize(rounded, start, gx.sgd(0.45), 2e-2, 20)
        assert result.why() == "converged" and result.evaluations == 2
        assert result.value.dtype == jnp.float32
        if x64:
            wide = gx.minimize(rounded, start.astype(jnp.float64), gx.sgd(0.45), 2e-2, 20)
            assert wide.why() == "max_evaluations" and wide.value.dtype == jnp.float64

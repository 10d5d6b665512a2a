"""`lbfgs_steps` and `lbfgsb` in any units: c f(a x + b) over forty decades of c and of a."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric


def parabola(x):
    return jnp.sum(jnp.arange(1, x.size + 1, dtype=x.dtype) * (x - 3) ** 2)


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def quartic(x):
    return jnp.sum((x - 1) ** 4 + x**2)


def exponential(x):
    return jnp.sum(jnp.exp(x) - 2 * x)


def himmelblau(x):
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


# The loss, its start, and its value at the minimum.
LOSSES = {
    "one parameter": (parabola, [7.0], 0.0),
    "a parabola": (parabola, [0.0, 5.0, 1.0], 0.0),
    "Rosenbrock": (rosenbrock, [-1.2, 1.0], 0.0),
    "a quartic": (quartic, [3.0, -5.0, 2.0], 3 * 0.289273423),
    "concave at the start": (himmelblau, [0.0, 0.0], 0.0),
    "an exponential": (exponential, [2.0, -3.0], 4 - 4 * np.log(2)),
}
DECADES = (-20, -13, -6, 0, 6, 13, 20)
# With and without bounds; those of the last one are in the units of the parameters.
FORMS = {
    "lbfgs_steps": lambda a: gx.lbfgs_steps(),
    "lbfgsb": lambda a: gx.lbfgsb(),
    "lbfgsb, bounded": lambda a: gx.lbfgsb(lower=lambda x: jnp.full_like(x, -9 / a)),
}


def units(dtype):
    """Pairs (c, a) for which the dtype holds values and gradients along the run."""
    largest = 1e37 if dtype == jnp.float32 else 1e300
    for c, a in itertools.product(*[[10.0**d for d in DECADES]] * 2):
        sizes = np.asarray([c, c * a, 1 / a])
        if np.all(sizes * 1e4 < largest) and np.all(sizes / 1e6 > 1 / largest):
            yield c, a


def gaps(name, form, dtype, steps):
    """The gaps to the minimum in terms of the first one: a row for each pair of units."""
    loss, start, least = LOSSES[name]

    def solve(c, a):
        tx = FORMS[form](a)
        x = (jnp.asarray(start, dtype) - 1) / a

        def step(carry, _):
            x, state = carry
            value, grad = jax.value_and_grad(lambda x: c * loss(a * x + 1))(x)
            updates, state = tx.update(grad, state, x, value=value)
            return (x + updates, state), loss(a * gx.eval_params(state, x) + 1)

        return jax.lax.scan(step, (x, tx.init(x)), None, length=steps)[1]

    c, a = (jnp.asarray(x, dtype) for x in zip(*units(dtype), strict=True))
    found = np.asarray(jax.jit(jax.vmap(solve))(c, a), np.float64) - least
    return found / found[:, :1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_any_units_of_the_loss_and_the_parameters_in_float32(name, form):
    assert np.all(np.nanmin(gaps(name, form, jnp.float32, 90), axis=1) <= 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_any_units_of_the_loss_and_the_parameters_in_float64(name, form):
    with jax.enable_x64(True):
        assert np.all(np.nanmin(gaps(name, form, jnp.float64, 90), axis=1) <= 1e-8)


@pytest.mark.parametrize("make", [gx.lbfgs_steps, gx.lbfgsb])
def test_a_first_step_that_rounds_to_nothing_is_not_the_last(make):
    """x - g is x, in float32."""

    def loss(x):
        return 1e-8 * jnp.sum((x - 2000) ** 2)

    result = gx.minimize(loss, jnp.full(3, 1000.0), make(), tol=0, max_evaluations=60)
    np.testing.assert_allclose(result.params, 2000, rtol=1e-4)


@pytest.mark.parametrize("make", [gx.lbfgs_steps, gx.lbfgsb])
def test_a_loss_of_ten_decades_more_is_solved_in_float64(make):
    with jax.enable_x64(True):
        start = jnp.asarray([-1.2, 1.0] * 2)
        result = gx.minimize(lambda x: 1e10 * rosenbrock(x), start, make(), 0, 80)
        np.testing.assert_allclose(result.params, 1, atol=1e-6)


def older(tx, state):
    """A state in the form that had no unit of lengths, as a pickle of it loads."""
    if isinstance(tx, gx.step_by_lbfgs):
        return state._replace(unit=None, theta=None)
    target = state.params + state.direction
    theta = jnp.where(state.pairs > 0, state.theta, 1)
    return state._replace(direction=target, theta=theta, unit=None, squared=None)


@pytest.mark.parametrize("steps", [0, 1, 2, 9])
@pytest.mark.parametrize("tx", [gx.lbfgs_steps(4), gx.lbfgsb(4, lower=-2.0, upper=2.0)])
def test_a_state_of_the_older_form_goes_on_once_migrated(tx, steps):
    with jax.enable_x64(True):
        x = jnp.asarray([-1.2, 1.0])
        step = jax.jit(lambda g, s, x, v: tx.update(g, s, x, value=v))
        state = tx.init(x)
        for _ in range(steps):
            value, grad = jax.value_and_grad(rosenbrock)(x)
            updates, state = step(grad, state, x, value)
            x = x + updates
        old = older(tx, state)
        value, grad = jax.value_and_grad(rosenbrock)(x)
        with pytest.raises(ValueError, match=r"older form; go on with that of migrate_state"):
            tx.update(grad, old, x, value=value)
        fields = {k: v for k, v in old._asdict().items() if v is not None}
        if "lower" in fields:
            fields["target"] = fields.pop("direction")
        for form in (old, fields):  # from a pickle, and from a checkpoint without a target
            migrated, report = gx.migrate_state(form, tx, tx, x)
            assert report.is_identity
            jax.tree.map(np.testing.assert_allclose, migrated, state)
        inside, _ = gx.migrate_state((old,), gx.chain(tx), gx.chain(tx), x)
        jax.tree.map(np.testing.assert_allclose, inside[0], state)
        after, _ = step(grad, migrated, x, value)
        np.testing.assert_allclose(after, step(grad, state, x, value)[0])


@pytest.mark.parametrize("make", [gx.lbfgs_steps, gx.lbfgsb])
def test_counts_do_not_wrap(make):
    tx, x = make(), jnp.asarray([-1.2, 1.0])
    last = jnp.asarray(2**31 - 1, jnp.int32)
    state = tx.init(x)._replace(count=last, iterations=last)
    step = jax.jit(lambda g, s, x, v: tx.update(g, s, x, value=v))
    for i in range(60):
        value, grad = jax.value_and_grad(rosenbrock)(x)
        updates, state = step(grad, state, x, value)
        x = x + updates
        if i == 20:  # a full memory, of as many pairs as can be counted
            assert state.pairs >= 10
            full = last - (last - state.pairs) % 10
            state = state._replace(pairs=full)
    assert state.count == last and state.iterations == last and state.pairs >= 10
    assert rosenbrock(gx.eval_params(state, x)) < 1e-6

"""`lbfgs_steps` and `lbfgsb` in any units: c f(a x + b) over forty decades of c and of a."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradxform as gx
from gradxform.transforms.lbfgs.units import FAR, NEAR, SMALL, squares_in_range

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


def gaps(form, dtype, steps):
    """The gaps to the minima in terms of the first ones: by loss, by units and by step.

    One program solves all: each loss reads the first of three parameters.
    """
    sizes = [len(start) for _, start, _ in LOSSES.values()]
    losses = [
        lambda x, loss=loss, n=n: loss(x[:n])
        for n, (loss, *_) in zip(sizes, LOSSES.values(), strict=True)
    ]
    starts = [[*start, *[1.0] * (3 - len(start))] for _, start, _ in LOSSES.values()]

    def solve(i, start, c, a):
        tx = FORMS[form](a)
        x = (start - 1) / a

        def step(carry, _):
            x, state = carry
            value, grad = jax.value_and_grad(lambda x: c * lax.switch(i, losses, a * x + 1))(x)
            updates, state = tx.update(grad, state, x, value=value)
            end = lax.switch(i, losses, a * gx.eval_params(state, x) + 1)
            return (x + updates, state), end

        return lax.scan(step, (x, tx.init(x)), None, length=steps)[1]

    every = jax.vmap(jax.vmap(solve, (None, None, 0, 0)), (0, 0, None, None))
    c, a = (jnp.asarray(x, dtype) for x in zip(*units(dtype), strict=True))
    ends = jax.jit(every)(jnp.arange(len(losses)), jnp.asarray(starts, dtype), c, a)
    found = np.asarray(ends, np.float64) - np.reshape([x for *_, x in LOSSES.values()], (-1, 1, 1))
    return dict(zip(LOSSES, found / found[..., :1], strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_any_units_of_the_loss_and_the_parameters_in_float32(form):
    for name, gap in gaps(form, jnp.float32, 90).items():
        assert np.all(np.nanmin(gap, axis=1) <= 1e-5), name


@pytest.mark.parametrize("form", FORMS)
def test_any_units_of_the_loss_and_the_parameters_in_float64(form):
    with jax.enable_x64(True):
        for name, gap in gaps(form, jnp.float64, 90).items():
            assert np.all(np.nanmin(gap, axis=1) <= 1e-8), name


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


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("form", ["lbfgs_steps", "lbfgsb"])
def test_one_entry_by_itself_is_found_in_any_units(form, shape):
    """Of arrays of one entry, a compiler may square what protects a square."""
    tx, x = FORMS[form](1.0), jnp.zeros(shape)

    @jax.jit
    def step(c, x, state):
        value, grad = jax.value_and_grad(lambda x: jnp.sum(c * (x - 3) ** 2))(x)
        updates, state = tx.update(grad, state, x, value=value)
        return x + updates, state

    for c in (1e-30, 1e-20, 1e-13, 1.0, 1e13, 1e20, 1e30):
        at, state = x, tx.init(x)
        for _ in range(15):
            at, state = step(jnp.float32(c), at, state)
        np.testing.assert_allclose(gx.eval_params(state, at), 3.0, rtol=1e-5)
        assert not state.failed


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_squares_in_range_are_those_of_the_entries(shape):
    compiled = jax.jit(squares_in_range)
    for size in (6.0, 6e13, 6e20, 1e37, 6e-20, 1e-30):
        count = math.prod(shape)
        wide = count * size**2
        expected = wide, wide / FAR**2, wide * NEAR**2 if size < SMALL else 0.0
        got = compiled(jnp.full(shape, size))
        for x, y in zip(got, expected, strict=True):
            normal = y if 1.2e-38 < y < 3.4e38 else np.inf if y > 1 else 0.0
            np.testing.assert_allclose(x, normal, rtol=1e-5)

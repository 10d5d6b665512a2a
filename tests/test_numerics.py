"""Scalar arithmetic at its ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import gradxform as gx
from gradxform.numerics import overflow, roots, shrinking, squarable
from gradxform.numerics.erfi import erfi

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "uint32", "float32", "bfloat16"])
def test_a_count_stops_at_the_largest_of_its_dtype(dtype):
    info = jnp.iinfo(dtype) if "int" in dtype else jnp.finfo(dtype)
    for increment in (gx.safe_increment, jax.jit(gx.safe_increment)):
        for shape in ((), (2,)):
            last = jnp.full(shape, info.max, dtype)
            assert increment(last).dtype == dtype
            np.testing.assert_array_equal(increment(last), last)
            np.testing.assert_array_equal(increment(jnp.full(shape, 3, dtype)), 4)
        if info.min < 0:
            np.testing.assert_array_equal(increment(jnp.asarray(-1, dtype)), 0)


def test_a_count_costs_no_copy_in_a_donated_step():
    """The new count goes where the old one was, and what corrects for it reads the new one."""
    tx = gx.scale_by_adam()
    params = jnp.ones((64, 64))
    step = jax.jit(tx.update, donate_argnums=(0, 1))
    compiled = step.lower(params, tx.init(params), params).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 2 * 64  # two corrections


# What each guard is for, as a function of x and of another number y, in the range wherever x is.
GUARDED = {
    "squares": lambda x, y: jnp.square(overflow.bounded_square(x)) < jnp.inf,
    "sums of squares": lambda x, y: jnp.sum(jnp.square(squarable(x))) < jnp.inf,
    "unit vectors": lambda x, y: squarable(x) / roots.norm(squarable(x)),
    "shared divisors": lambda x, y: overflow.quotient_by_shared(x, jnp.max(x)),
    "factors": lambda x, y: x * shrinking(jnp.max(x), 1.0),
    "roots": lambda x, y: roots.over_root(jnp.minimum(x, 1e18), jnp.minimum(x, 1e18) ** 2, 0.0),
    "products": lambda x, y: jnp.square(overflow.settled(jnp.maximum(x, 1) / 2.0**64)) >= 0,
    "quotients": lambda x, y: overflow.settled(x / y) / y * y * y / x,
    "quotients of quotients": lambda x, y: overflow.settled(x / y) / overflow.settled(y / x),
}


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
@pytest.mark.parametrize("name", GUARDED)
def test_a_compiler_does_not_take_a_guard_away(name, shape):
    """Compiled, also for one entry, it does what its operations do one by one."""
    guarded, compiled = GUARDED[name], jax.jit(GUARDED[name])
    for size in (1e-17, 1e-10, 1.0, 1e13, 1e20, 1e30, 1e38):
        x, y = jnp.full(shape, size), jnp.full(shape, min(size**0.75, 1e20))
        expected = guarded(x, y)
        assert np.all(np.isfinite(expected))
        np.testing.assert_allclose(compiled(x, y), expected, rtol=1e-5)


def test_xla_merges_operations_that_are_not_settled():
    """If it no longer does, `settled` is not needed, and the test above shows nothing."""
    x, y = jnp.full(1, 1e30), jnp.full(1, 1e20)
    assert jax.jit(lambda x, y: x / y / y)(x, y) == 0
    assert jax.jit(lambda x, y: overflow.settled(x / y) / y)(x, y) > 0


@pytest.mark.parametrize("dtype, most", [("float32", 9.3), ("float64", 26.5)])
def test_erfi_is_right_as_far_as_it_is_finite(dtype, most):
    """But for a rounding of its argument, which counts 2 x^2 times, and a few of the sum."""
    with jax.enable_x64(True):
        x = np.concatenate([np.logspace(-25, 0, 300), np.linspace(1, most, 300)]).astype(dtype)
        got = np.asarray(jax.jit(erfi)(jnp.asarray(np.concatenate([x, -x]))), np.float64)
        expected = scipy.special.erfi(x.astype(np.float64))
        allowed = 32 * np.finfo(dtype).eps * (1 + x.astype(np.float64) ** 2) * expected
        assert np.all(np.abs(got[: len(x)] - expected) <= allowed)
        np.testing.assert_array_equal(got[len(x) :], -got[: len(x)])
        ends = np.asarray(erfi(jnp.asarray([0.0, 30.0, -np.inf, np.nan], dtype)))
        assert ends.dtype == dtype and ends[0] == 0 and np.isnan(ends[3])
        assert np.isfinite(ends[1]) and ends[1] == -ends[2] > expected[-1] / 2

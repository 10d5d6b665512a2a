"""Scalar arithmetic at its ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

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

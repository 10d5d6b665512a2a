"""Steps under `jax_debug_nans`, which ends a program at any NaN, also one that nothing keeps."""

import jax
import jax.numpy as jnp
import pytest

from gradxform.numerics.overflow import settled
from gradxform.testing.promise import settings
from tests.catalogue import CASES

# Numbers that are infinite meet variances, means and norms of 0; ratios of 0 meet guards.
ROWS = [name for name, case in CASES.items() if not case.foreign and "inf" in repr(case.tx)]
ROWS += ["gsam", "looksam/opaque", "wsam", "momo", "ftrl"]


@pytest.mark.parametrize("name", ROWS)
def test_no_step_makes_a_nan_on_its_way(name):
    case = CASES[name]
    with settings(case):
        params = case.params()
        state, grads = case.bound.init(params), case.gradients(params, 2)
        zeros = jax.tree.map(jnp.zeros_like, grads[0])
        with jax.debug_nans(True):
            for g in (*grads, zeros):
                _, state = case.bound.update(g, state, params)


def test_what_keeps_operations_apart_makes_no_nan():
    with jax.debug_nans(True):
        for x in (jnp.zeros(3), jnp.float32(2.0), jnp.asarray([1j])):
            settled(x)
    assert jnp.isnan(settled(jnp.float32(jnp.nan)))

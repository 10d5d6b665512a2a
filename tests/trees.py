"""Comparisons of trees that several test files share."""

import jax
import numpy as np


def _pairs(a, b):
    """The leaves of two trees side by side, of equal dtypes; PRNG keys as their data."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        yield np.asarray(x), np.asarray(y)


def assert_close(a, b, rtol=2e-5, atol=2e-6):
    """Require equal dtypes and values, up to what another compilation may round differently."""
    for x, y in _pairs(a, b):
        np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=rtol, atol=atol)


def assert_identical(a, b):
    """Require equal structures, dtypes and bits."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in _pairs(a, b):
        assert x.tobytes() == y.tobytes()

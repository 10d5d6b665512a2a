"""The imaginary error function, which JAX does not have."""

import math

import jax.numpy as jnp
import numpy as np

from gradxform.types import Array

STEP = 0.25  # of the sum below: the error is exp(-(pi / (2 STEP))^2) = 7e-18 of Dawson's integral
REACH = 6.5  # how far from x terms count: exp(-REACH^2) = 4e-19


def erfi(x: Array) -> Array:
    """Return -i erf(i x) elementwise; where that overflows, the largest such number.

    That is exp(x^2) times Dawson's integral, by a sum in which nothing cancels, over odd n > 0 and
    with t = n / 4:

        erfi(x) = (2 / pi) exp(x^2) sum_n exp(-(x - t)^2) (1 - exp(-4 t x)) / n

    From 9.3 on in float32, 26.5 in float64, it is erfi of that bound. The relative error is that of
    x, rounded, times 2 x^2; NaN stays.

    Reference: Rybicki, Dawson's Integral and the Sampling Theorem, 1989, for the sum.
    """
    most = math.sqrt(math.log(float(jnp.finfo(x.dtype).max))) - 0.1
    n = np.arange(1, (most + REACH) / STEP, 2)
    t, n = jnp.asarray(n * STEP, x.dtype), jnp.asarray(n, x.dtype)
    size = jnp.minimum(jnp.abs(x), most)
    a = jnp.expand_dims(size, -1)
    t, n = (jnp.reshape(y, (1,) * x.ndim + y.shape) for y in (t, n))
    terms = jnp.exp(-jnp.square(a - t)) * -jnp.expm1(-4 * t * a) / n
    return jnp.sign(x) * (2 / math.pi) * jnp.exp(jnp.square(size)) * jnp.sum(terms, -1)

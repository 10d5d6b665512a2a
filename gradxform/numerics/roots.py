"""Square roots, norms and signs with a derivative everywhere, also where they are 0.

The derivative of a root at 0 is infinite, and times the 0 beside it not a number. Whoever
differentiates through a step, as meta-learning does, meets 0 at once: in biases, slots and frozen
gradients. Here it is 0 there.

What tells 0 at the end is the root, and not `x`. XLA computes cheap operations anew wherever they
are used: for a norm that scales all leaves, `x` is the sum of their squares, which every leaf would
add up again.
"""

import math

import jax.numpy as jnp
from jax import lax

from gradxform.numerics.numbers import abs_sq, not_zero, over, plus
from gradxform.types import Array, Scalar

# `lax` rather than `jnp`: an operator of `jnp` takes several times as long to trace.


def root(x: Array) -> Array:
    """Return sqrt(x), with a derivative of 0 where `x` is 0."""
    least = float(jnp.finfo(x.dtype).tiny)  # its root is exact
    zero = lax.full_like(x, 0)
    root = lax.sqrt(lax.select(lax.eq(x, zero), lax.full_like(x, least), x))
    return lax.select(lax.eq(root, lax.full_like(x, least**0.5)), zero, root)


def one_over_root(x: Array) -> Array:
    """Return 1 / sqrt(x), and 0, with a derivative of 0, where `x` is 0.

    A quotient, because the derivative of `lax.rsqrt` overflows below 1e-25 (in float32).
    """
    least = float(jnp.finfo(x.dtype).tiny)
    zero, one = lax.full_like(x, 0), lax.full_like(x, 1)
    root = lax.sqrt(lax.select(lax.eq(x, zero), lax.full_like(x, least), x))
    is_zero = lax.eq(root, lax.full_like(x, least**0.5))
    return lax.select(is_zero, zero, lax.div(one, root))


def cube_root(x: Array) -> Array:
    """Return the cube root of `x`, with a derivative of 0 where `x` is 0."""
    is_zero = lax.eq(x, lax.full_like(x, 0))
    return lax.select(is_zero, x, lax.cbrt(lax.select(is_zero, lax.full_like(x, 1), x)))


def power(x: Array, exponent: Scalar) -> Array:
    """Return a power of `x`, at least 0, with a derivative of 0 where `x` is 0; it is 0 there."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.where(is_zero, 1, x) ** exponent)


def sign(x: Array) -> Array:
    """Return the sign of `x`; of a complex number x / |x|, whose derivative JAX takes for 0."""
    if not jnp.iscomplexobj(x):
        return jnp.sign(x)
    is_zero = lax.eq(x, lax.full_like(x, 0))
    return lax.select(is_zero, x, x / jnp.abs(lax.select(is_zero, lax.full_like(x, 1), x)))


def norm(x: Array, axes: int | tuple[int, ...] | None = None) -> Array:
    """Return the Euclidean norm of an array, or norms along `axes`, which stay with length 1."""
    return root(jnp.sum(abs_sq(x), axis=axes, keepdims=axes is not None))


def over_root(top: Array, square: Array, eps: Scalar, eps_root: Scalar = 0.0) -> Array:
    """Return `top / (sqrt(square + eps_root) + eps)`; 0 where the root is 0 if both epsilons are.

    A live epsilon of 0 counts as the least root of a normal number, so that a `top` of 0 stays 0.
    """
    if isinstance(eps, float) and isinstance(eps_root, float) and (eps or eps_root):
        # The least normal number keeps the derivative at 0 finite without a comparison. Beside the
        # epsilon its root is nothing.
        least = float(jnp.finfo(square.dtype).tiny)
        return top / (lax.sqrt(square + (eps_root or least)) + eps)
    eps = not_zero(eps, square.dtype, 0.5)
    eps_root = not_zero(eps_root, square.dtype)
    return over(top, plus(root(plus(square, eps_root)), eps), eps, eps_root)


def atan2_root(top: Array, square: Array) -> Array:
    """Return atan2(top, sqrt(square)), and 0, with a derivative of 0, where both are 0."""
    steep = jnp.sign(top) * (math.pi / 2)
    return jnp.where(square == 0, steep, jnp.arctan(over_root(top, square, 0.0)))

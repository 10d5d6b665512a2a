"""Arithmetic next to the largest numbers: squares, quotients and casts that stay finite."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform.numerics.numbers import cast
from gradxform.types import Array


def bounded_square(x: Array) -> Array:
    """Return `x`, entries above 9.2e18 (in float32) as that number: their squares are finite.

    For rules by entry that do not depend on the scale of gradients. An infinity and a NaN stay.
    """
    if jnp.iscomplexobj(x):
        return lax.complex(bounded_square(x.real), bounded_square(x.imag))
    most = float(jnp.finfo(x.dtype).max) ** 0.5 / 2
    bounded = lax.clamp(lax.full_like(x, -most), x, lax.full_like(x, most))
    return lax.select(lax.is_finite(x), bounded, x)


def saturated(x: Array) -> Array:
    """Return `x`, but at most half of the largest number of its dtype; NaN stays.

    For squares in a state: one that is infinite would never become another number again, and the
    average of two that are half of the largest does not overflow.
    """
    return lax.min(x, lax.full_like(x, float(jnp.finfo(x.dtype).max) / 2))


def clipped(x: Array) -> Array:
    """Return `x`, clipped to half of the range of its dtype on both sides; NaN stays.

    As `saturated`, for a state of numbers of either sign.
    """
    most = float(jnp.finfo(x.dtype).max) / 2
    return lax.clamp(lax.full_like(x, -most), x, lax.full_like(x, most))


def quotient_by_shared(x: Array, divisor: Array) -> Array:
    """Return `x / divisor` for a divisor that many entries share; both float32 or wider.

    XLA multiplies by `1 / divisor`, which is subnormal above 2**126 in float32, and processors make
    it 0. A quarter of the divisor has a normal inverse.
    """
    quarter, one = divisor.dtype.type(0.25), divisor.dtype.type(1)
    # Below 2**100 the inverse is normal as it is, and a quarter could take digits from `x`.
    lift = jnp.where(jnp.abs(divisor) > 2.0**100, quarter, one)
    return (x * cast(lift, x.dtype)) / cast(divisor * lift, x.dtype)


def settled(x: Array) -> Array:
    """Return `x`, with whose operations the compiler does not merge those that follow.

    Where `x` is in the range, what XLA makes of both may not be: it turns (a / b) / c into
    a / (b c), (a / b) / (c / d) into (a d) / (b c), and with a constant c, of arrays of one entry,
    (c x) (c x) into (c c) (x x). It does not know that no entry is negated here but NaN.
    """
    return lax.select(lax.eq(x, x), x, lax.neg(x))


def cast_slot(new: Array, old: Array) -> Array:
    """Return `new` as the state keeps it in the place of `old`; see `cast_finite`."""
    if new.dtype == old.dtype and not getattr(new, "weak_type", False):
        return new
    return cast_finite(new, old.dtype)


def cast_finite(x: Array, dtype: Any) -> Array:
    """Return `x` in `dtype`: where the range of `dtype` is smaller, at most its ends.

    An average of squares that became infinite in float16 would stay so, and stop its entry. An
    infinity and a NaN stay.
    """
    if not jnp.issubdtype(dtype, jnp.floating) or not jnp.issubdtype(x.dtype, jnp.floating):
        return cast(x, dtype)
    limits = jnp.finfo(dtype)
    if limits.nexp >= jnp.finfo(x.dtype).nexp:
        return cast(x, dtype)
    most = float(limits.max)
    return cast(jnp.where(jnp.isfinite(x), jnp.clip(x, -most, most), x), dtype)

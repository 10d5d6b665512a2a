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
    return jnp.where(jnp.isinf(x), x, jnp.clip(x, -most, most))


def saturated(x: Array) -> Array:
    """Return `x`, but at most half of the largest number of its dtype; NaN stays.

    For squares in a state: one that is infinite would never become another number again, and the
    average of two that are half of the largest does not overflow.
    """
    return jnp.minimum(x, float(jnp.finfo(x.dtype).max) / 2)


def quotient_by_shared(x: Array, divisor: Array) -> Array:
    """Return `x / divisor` for a divisor that many entries share; both float32 or wider.

    XLA multiplies by `1 / divisor`, which is subnormal above 2**126 in float32, and processors make
    it 0. A quarter of the divisor has a normal inverse.
    """
    quarter, one = divisor.dtype.type(0.25), divisor.dtype.type(1)
    # Below 2**100 the inverse is normal as it is, and a quarter could take digits from `x`.
    lift = jnp.where(jnp.abs(divisor) > 2.0**100, quarter, one)
    return (x * cast(lift, x.dtype)) / cast(divisor * lift, x.dtype)


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

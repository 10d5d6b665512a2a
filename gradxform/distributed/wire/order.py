"""Running collectives one after the other on CPUs.

XLA for CPUs orders what does not depend on each other as it likes, and may run it at the same time.
The messages of all arrays are then in memory at once, and a device waits in several collectives,
each with a thread that others may need. A barrier of XLA's does not help, since compilers for CPUs
remove it.
"""

import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import varying_axes
from gradxform.types import Array


def ordered_after(x: Array, *earlier: Array) -> Array:
    """Return `x`, which a program for CPUs does not know before the arrays in `earlier`.

    One that varies along axes of the mesh along which `x` does not is not waited for, so that `x`
    is marked as before.
    """
    own_axes = varying_axes(x)
    firsts = [jnp.real(e.reshape(-1)[0]) for e in earlier if e.size and varying_axes(e) <= own_axes]
    if not firsts:
        return x
    return lax.platform_dependent(x, firsts, cpu=_tied, default=lambda x, firsts: x)


def _tied(x: Array, firsts: list[Array]) -> Array:
    """Return `x` by a choice that is always the same, which no compiler knows."""
    always = jnp.ones((), jnp.bool_)
    for first in firsts:
        bits = lax.bitcast_convert_type(first, jnp.dtype(f"uint{8 * first.dtype.itemsize}"))
        always = always & ((bits | jnp.ones_like(bits)) != 0)
    return jnp.where(always, x, jnp.zeros_like(x))

"""Arrays that are made together, in one pass over memory.

Where an intermediate result leads to several arrays, XLA may make each in a pass of its own, and
computes the intermediate result twice. The second pass then needs the old arrays that the first one
overwrites, so that these are copied. Where the last array depends on the others, one pass makes all
of them.
"""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import platform_of
from gradxform.numerics import cast, promote
from gradxform.types import Array


def made_with(x: Array, others: Iterable[Any]) -> Array:
    """Return `x`, which on TPUs is made in the pass that makes the others of its shape."""
    if platform_of(x) != "tpu":
        return x
    never = lax.optimization_barrier(jnp.zeros((), bool))  # XLA does not see that it is false
    for other in others:
        if jnp.shape(other) == x.shape and _fits(other.dtype, x.dtype):
            x = jnp.where(never, cast(other, x.dtype), x)
    return x


def _fits(dtype: Any, wide: Any) -> bool:
    """Whether numbers of a dtype are a part of those of another."""
    return jnp.issubdtype(dtype, jnp.number) and promote(dtype, wide) == wide

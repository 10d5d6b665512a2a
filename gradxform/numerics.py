"""Scalar and elementwise arithmetic that rules share."""

import functools
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.errors import name_of, shown
from gradxform.types import Array, Scalar


def safe_increment(count: Any) -> Array:
    """Return `count + 1`, or `count` where that would overflow its dtype.

    Args:
      count: an integer or floating scalar, or array.

    Raises:
      ValueError: if `count` is neither integer nor floating.
    """
    count = count if isinstance(count, jax.Array) else jnp.asarray(count)
    if not any(jnp.issubdtype(count.dtype, k) for k in (jnp.integer, jnp.floating)):
        raise ValueError(f"safe_increment: a count must be a number, got dtype {count.dtype}.")
    # Once a step and in every chain, so in as few operations as it takes, and in those of `lax`,
    # which trace several times faster than those of `jnp`. An integer wraps around to its least
    # value, and the maximum takes that back. (As min(count, last - 1) + 1 XLA copies the count.)
    one = np.asarray(1, count.dtype)
    return lax.max(lax.add(count, lax.full_like(count, one) if count.ndim else one), count)


safe_int32_increment = safe_increment  # its old name in Optax


def bias_correction(decay: Scalar, count: Array) -> Array:
    """Return 1 / (1 - decay**count) in float32: what debiases a moving average started at 0.

    Computed as `-1 / expm1(count * log(decay))`: for a decay of 0.999 and the first step,
    `1 - decay` formed in float32 is off by 1e-5, this is not.

    Args:
      decay: the decay of the average, in [0, 1).
      count: how many gradients the average has seen, at least 1.
    """
    if isinstance(decay, jax.Array):
        log = lax.log(cast(decay, jnp.float32))
    else:
        log = np.float32(math.log(decay) if decay > 0 else -math.inf)
    wide = cast(count, jnp.float32)
    return lax.div(np.float32(-1), lax.expm1(lax.mul(wide, log)))


class ScheduleError(TypeError):
    """What is wrong with a schedule; whoever knows its field says which it is."""

    def __init__(self, schedule: Any, text: str):
        super().__init__(text)
        self.schedule = schedule


def value_at(x: Any, count: Array) -> Array:
    """Return a number, or a schedule's value at `count`, as a float32 (or wider) scalar.

    Raises:
      ScheduleError: if the schedule cannot be called with the count, or returns anything but a real
        number.
    """
    found = x
    if callable(x):
        rule = "one real number; for leaves with values of their own use partition(...)"
        try:
            found = x(count)
        except TypeError as error:
            begun = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            if begun and _has_signature(x):  # the error is of its own
                raise
            said = f"{name_of(x)}: a schedule is called with one argument, the count: {error}"
            raise ScheduleError(x, said) from None
        try:
            found = _scalar(x, "a schedule's value", found, (jnp.integer, jnp.floating), rule)
        except TypeError as error:
            raise ScheduleError(x, str(error)) from None
    found = jnp.asarray(found)
    return cast(found, at_least_float32(found.dtype))


def _has_signature(function: Any) -> bool:
    """Whether Python knows what a function is called with; of those of C it may not."""
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        return False
    return True


def abs_sq(x: Array) -> Array:
    """Return |x|^2 per entry; real also for complex `x`."""
    if jnp.iscomplexobj(x):
        return jnp.square(x.real) + jnp.square(x.imag)
    return x * x


@functools.cache
def promote(*dtypes: Any) -> Any:
    """Return the dtype that holds all of `dtypes`; also where JAX is told to be strict."""
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, dtypes)


def at_least_float32(dtype: Any) -> Any:
    """Return the dtype in which a rule computes on an array of `dtype`: 32 bits or wider."""
    return promote(jnp.dtype(dtype), jnp.dtype(jnp.float32))


def real_dtype(dtype: Any) -> Any:
    """Return the dtype of the real part of `dtype`."""
    return jnp.finfo(dtype).dtype


def cast(x: Any, dtype: Any) -> Any:
    """Return `x` in `dtype` and not weakly typed; the same object if it is so already."""
    if x.dtype == dtype and not getattr(x, "weak_type", False):
        return x
    return lax.convert_element_type(x, dtype)


def times(scalar: Scalar, x: Array) -> Array:
    """Return `scalar * x`, in the dtype of `x`.

    For rules of hardly anything else: an operator of `jnp` takes several times as long to trace.
    """
    if isinstance(scalar, jax.Array):
        return lax.mul(cast(scalar, x.dtype), x)
    return lax.mul(np.asarray(scalar, x.dtype), x)


@jax.jit
def looked_up(rows: Array) -> Array:
    """Return `rows`, just gathered from a table, in a form of which XLA:CPU makes a fast program.

    LLVM unrolls a bare copy of a short row into moves of single numbers before it gets to vectors,
    and then waits for memory row by row: 4096 rows of 64 float32 that are in no cache take three
    times as long. A division keeps it from doing so, as one more operation in the same loop, which
    XLA will neither move nor repeat. By one, it changes nothing but subnormal numbers, which become
    zeros as in all arithmetic of XLA:CPU; NaN stays NaN.
    """
    if not jnp.issubdtype(rows.dtype, jnp.floating) or rows.dtype.itemsize < 2:
        return rows
    return lax.platform_dependent(rows, cpu=_divided_by_one, default=lambda x: x)


def _divided_by_one(x: Array) -> Array:
    one = lax.select(lax.eq(x, x), lax.full_like(x, 1), lax.full_like(x, 2))  # not known to XLA
    return lax.div(x, one)


# ------------------------------------------------------------------- scalars that a caller hands in


def as_flag(part: Any, name: str, x: Any) -> Array:
    """Return an extra argument of `update` as a boolean scalar, or say that it is none."""
    return _scalar(part, name, x, (jnp.bool_,), "True or False")


def as_step(part: Any, name: str, x: Any) -> Array:
    """Return an extra argument of `update`, a number of steps, as an int32 scalar."""
    return cast(_scalar(part, name, x, (jnp.integer,), "an integer"), jnp.int32)


def _scalar(part: Any, name: str, x: Any, kinds: tuple[Any, ...], rule: str) -> Array:
    number = (isinstance(x, bool | int | float) or hasattr(x, "dtype")) and np.shape(x) == ()
    if not number or not any(jnp.issubdtype(jnp.result_type(x), kind) for kind in kinds):
        raise TypeError(f"{name_of(part)}: {name} must be {rule}, got {shown(x)}.")
    return jnp.asarray(x)

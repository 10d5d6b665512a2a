"""Scalar and elementwise arithmetic that rules share, and the dtype of a step's scalars."""

import contextlib
import contextvars
import functools
import math
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._jax.versions import Tracer
from gradxform._names.deferred import signature_of
from gradxform.errors import TracedCallError, name_of, remedy_for_pair, require_int32, shown
from gradxform.types import Array, Scalar

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

# The dtype of the scalars of the current step; None outside of steps.
_SCALARS: contextvars.ContextVar[Any] = contextvars.ContextVar("scalars", default=None)


def has_64_bits() -> bool:
    """Whether JAX is configured to allow arrays of 64 bits."""
    return jax.dtypes.canonicalize_dtype(_FLOAT64) == _FLOAT64


def scalar_dtype() -> Any:
    """Return the dtype of a step's scalars: float64 if any leaf has 64 bits, else float32.

    Outside of the `init` and `update` of a transform it is JAX's default, float64 where arrays may
    have 64 bits. For `init`, `prepare` and schedules. A function that the lift compiles, such as a
    `rule`, must not call it: the key of its compiled form has the dtypes of its arguments, but not
    this dtype.
    """
    return jax.dtypes.canonicalize_dtype(_SCALARS.get() or _FLOAT64)


@contextlib.contextmanager
def scalars_as(dtype: Any) -> Iterator[None]:
    """Set `scalar_dtype` to `dtype` in this context."""
    token = _SCALARS.set(dtype)
    try:
        yield
    finally:
        _SCALARS.reset(token)


def scalar(x: Any) -> Array:
    """Return a number, or an array of them, in `scalar_dtype`; never weakly typed."""
    dtype = scalar_dtype()
    return jnp.asarray(within(x, dtype), dtype)


def safe_increment(count: Any) -> Array:
    """Return `count + 1`, or `count` where that would overflow its dtype.

    Args:
      count: an integer or floating scalar, or array.

    Raises:
      ValueError: if `count` is neither integer nor floating.
    """
    if not isinstance(count, jax.Array):
        require_int32("safe_increment", "count", count)
        count = jnp.asarray(count)
    if not (jnp.issubdtype(count.dtype, jnp.integer) or jnp.issubdtype(count.dtype, jnp.floating)):
        raise ValueError(f"safe_increment: a count must be a number, got dtype {count.dtype}.")
    return _safely_incremented_number(count) if isinstance(count, Tracer) else _INCREMENTED(count)


def _safely_incremented_number(count: Array) -> Array:
    # This runs in every step of every chain, so it uses few operations, and those of `lax`, which
    # trace several times faster than those of `jnp`. An integer wraps around to its least value,
    # and the maximum undoes that. (For min(count, last - 1) + 1, XLA copies the count.)
    one = np.asarray(1, count.dtype)
    return lax.max(lax.add(count, lax.full_like(count, one) if count.ndim else one), count)


safe_int32_increment = safe_increment  # its old name in Optax


def bias_correction(decay: Scalar, count: Array) -> Array:
    """Return 1 / (1 - decay**count), as a scalar of the step: it debiases an average from 0.

    Computed as `-1 / expm1(count * log(decay))`: at the first step with a decay of 0.999,
    `1 - decay` in float32 has a relative error of 1e-5, and this does not.

    Args:
      decay: the decay of the average, in [0, 1).
      count: the number of gradients in the average, at least 1.
    """
    dtype = scalar_dtype()
    if isinstance(decay, jax.Array):
        log = lax.log(cast(decay, dtype))
    else:
        log = dtype.type(math.log(decay) if decay > 0 else -math.inf)
    if isinstance(count, Tracer) or isinstance(log, Tracer):
        return _bias_correction_number(log, count)
    return _CORRECTION(log, count)


def _bias_correction_number(log: Any, count: Array) -> Array:
    return lax.div(log.dtype.type(-1), lax.expm1(lax.mul(cast(count, log.dtype), log)))


# Outside of a trace, one call in place of several operations, each of which takes as long to begin.
_INCREMENTED = jax.jit(_safely_incremented_number)
_CORRECTION = jax.jit(_bias_correction_number)


def count_and_debias(state: Any, *decays: Scalar) -> tuple[Any, ...]:
    """Return a state with its count advanced, and for each decay the factor that debiases.

    The whole `prepare` of a rule with averages that begin at 0; see `bias_correction`.
    """
    count = safe_increment(state.count)
    return state._replace(count=count), *[bias_correction(decay, count) for decay in decays]


class ScheduleError(TypeError):
    """An error of a schedule; a caller that knows the schedule's field adds its name."""

    def __init__(self, schedule: Any, text: str):
        super().__init__(text)
        self.schedule = schedule


def value_at(x: Any, count: Array) -> Array:
    """Return a number, or a schedule's value at `count`, as a scalar of the step.

    Raises:
      ScheduleError: if the schedule cannot be called with the count, or does not return a real
        number.
    """
    if not callable(x):
        return scalar(x)
    rule = "one real number; for leaves with values of their own use partition(...)"
    try:
        value = x(count)
    except TracedCallError as error:
        raise ScheduleError(x, str(error)) from None
    except TypeError as error:
        inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        if inside and _has_signature(x):  # raised by the schedule itself, not by the call
            raise
        message = f"{name_of(x)}: a schedule is called with one argument, the count: {error}"
        raise ScheduleError(x, message) from None
    try:
        value = _checked(x, "a schedule's value", value, (jnp.integer, jnp.floating), rule)
    except TypeError as error:
        raise ScheduleError(x, str(error)) from None
    return scalar(value)


def _has_signature(function: Any) -> bool:
    """Whether Python knows the signature of a function; for one written in C it may not."""
    try:
        signature_of(function)
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
    """Return the dtype that holds all of `dtypes`, also under strict dtype promotion.

    Floats of 8 bits and fewer, which JAX does not promote, count as float32 beside other dtypes.
    """
    distinct = {jnp.dtype(d) for d in dtypes}
    if len(distinct) == 1:
        return distinct.pop()
    wide = [_FLOAT32 if _is_tiny_dtype(d) else d for d in distinct]
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, wide)


def _is_tiny_dtype(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 2


@functools.cache
def at_least_float32(dtype: Any) -> Any:
    """Return the dtype in which a rule computes on an array of `dtype`: 32 bits or wider."""
    return promote(jnp.dtype(dtype), jnp.dtype(jnp.float32))


def real_dtype(dtype: Any) -> Any:
    """Return the dtype of the real part of `dtype`."""
    return jnp.finfo(dtype).dtype


def cast(x: Any, dtype: Any) -> Any:
    """Return `x` in `dtype` and not weakly typed; the same object if it already is."""
    if x.dtype == dtype and not getattr(x, "weak_type", False):
        return x
    return lax.convert_element_type(x, dtype)


def same_bits(a: Array, b: Array) -> Array:
    """Return where two arrays of one dtype have the same bits.

    A compiler may compare numbers before they are rounded to their dtype; it does not round bits.
    """
    bits = jnp.dtype(f"uint{8 * a.dtype.itemsize}")
    return lax.bitcast_convert_type(a, bits) == lax.bitcast_convert_type(b, bits)


def as_rounded(x: Array, dtype: Any) -> Array:
    """Return a narrow array in a wider dtype.

    A compiler may leave out a rounding where a cast back follows. So this rounds once more, in a
    way that it must keep; where the first rounding took place, nothing changes.
    """
    kinds, wide = jnp.finfo(x.dtype), cast(x, dtype)
    return lax.reduce_precision(wide, jnp.finfo(dtype).nexp, kinds.nmant)


def add(a: Array, b: Array) -> Array:
    """Return `a + b` in the dtype that holds both."""
    if a.dtype != b.dtype:
        dtype = promote(a.dtype, b.dtype)
        a, b = cast(a, dtype), cast(b, dtype)
    return lax.add(a, b)


def sum_as_first(a: Any, b: Any) -> Array:
    """Return `a + b`, added in the dtype that holds both, in the dtype of `a`."""
    a, b = jnp.asarray(a), jnp.asarray(b)
    return cast(add(a, b), a.dtype)


def times(factor: Scalar, x: Array) -> Array:
    """Return `factor * x`, in the dtype of `x`.

    For rules of one or two operations: an operator of `jnp` takes several times as long to trace.
    """
    if isinstance(factor, jax.Array):
        return lax.mul(cast(factor, x.dtype), x)
    return lax.mul(np.asarray(factor, x.dtype), x)


# ------------------------------------------------------------------ bounds, and divisors that are 0


def is_zero(x: Any) -> bool:
    """Whether `x` is a Python number 0, so that an operation can be left out."""
    return isinstance(x, int | float) and x == 0


def plus(x: Array, eps: Scalar) -> Array:
    """Return `x + eps`, or `x` itself if eps is known to be 0."""
    return x if is_zero(eps) else x + eps


def shrinking(size: Array, bound: Scalar) -> Array:
    """Return the factor that brings `size` down to `bound`: min(1, bound / size).

    With an infinite bound the factor is 1, also for a size that has overflowed. A NaN stays NaN.

    Args:
      size: norms, at least 0.
      bound: greater than 0; a Python number beyond the dtype of `size` counts as infinite.
    """
    bound = within(bound, size.dtype)
    fits, one = size <= bound, lax.full_like(size, 1)
    return lax.select(fits, one, bound / lax.select(fits, one, size))


def within(x: Scalar, dtype: Any) -> Scalar:
    """Return `x`, but infinity for a Python number beyond the range of `dtype`."""
    if isinstance(x, int | float) and abs(x) > float(jnp.finfo(dtype).max):
        return math.copysign(math.inf, x)
    return x


def over(top: Array, below: Array, *eps: Scalar) -> Array:
    """Return `top / below`; if every `eps` in `below` is known to be 0, then 0 where `below` is 0.

    Only in that case does the check cost anything.

    Args:
      top: the numerator.
      below: the divisor, with the epsilons already added.
      *eps: the epsilons.
    """
    if not all(map(is_zero, eps)):
        return top / below
    undefined = below == 0
    return jnp.where(undefined, 0, top) / jnp.where(undefined, 1, below)


def not_zero(eps: Scalar, dtype: Any, power: float = 1) -> Scalar:
    """Return an epsilon; a live one is raised to at least the smallest normal number.

    Unlike a check for divisors of 0, this does not cost anything per entry.

    Args:
      eps: a Python number, which stays as it is, or a live one.
      dtype: the dtype of the array to which it is added.
      power: the smallest normal number is taken to this power; 0.5 for an epsilon beside a root.
    """
    if not isinstance(eps, jax.Array):
        return eps
    return jnp.maximum(eps, float(jnp.finfo(dtype).tiny) ** power)


def squarable(x: Array, axes: int | tuple[int, ...] | None = None) -> Array:
    """Return `x`, scaled down if it is so large that a sum of its squares would overflow.

    For rules that do not depend on the scale of gradients above 2.6e15 (in float32). With an
    infinity or a NaN in `x` the result is NaN.

    Args:
      x: an array, in float32 or wider.
      axes: the axes that are scaled together. Defaults to all.
    """
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0)
    return x * cast(taming(largest), x.dtype)


def taming(largest: Array) -> Array:
    """Return the factor of `squarable` for arrays with the given largest absolute value."""
    # A square is then at most max^0.8, so that max^0.2 of them can be added: 5e7 in float32.
    return shrinking(largest, float(jnp.finfo(largest.dtype).max) ** 0.4)


# -------------------------------------------------------------------------- rows of a table


@jax.jit
def looked_up(rows: Array) -> Array:
    """Return `rows`, just gathered from a table, in a form that XLA:CPU compiles well.

    LLVM unrolls the plain copy of a short row into moves of single numbers before it vectorizes,
    and then waits for memory row by row: 4096 uncached rows of 64 float32 take three times as long.
    A division in the same loop prevents that, and XLA neither moves nor repeats it. Dividing by one
    changes only subnormal numbers, which become zeros as in all arithmetic of XLA:CPU; NaN stays
    NaN.
    """
    if not jnp.issubdtype(rows.dtype, jnp.floating) or rows.dtype.itemsize < 2:
        return rows
    return lax.platform_dependent(rows, cpu=_divided_by_one, default=lambda x: x)


def _divided_by_one(x: Array) -> Array:
    one = lax.select(lax.eq(x, x), lax.full_like(x, 1), lax.full_like(x, 2))  # not known to XLA
    return lax.div(x, one)


# ------------------------------------------------------------------------ scalars from the caller


def as_flag(part: Any, name: str, x: Any) -> Array:
    """Return an extra argument of `update` as a boolean scalar, or raise if it is not one."""
    return _checked(part, name, x, (jnp.bool_,), "True or False")


def as_step(part: Any, name: str, x: Any) -> Array:
    """Return an extra argument of `update` that counts steps as an int32 scalar."""
    return cast(_checked(part, name, x, (jnp.integer,), "an integer"), jnp.int32)


def as_number(part: Any, name: str, x: Any) -> Array:
    """Return an extra argument of `update` as a real scalar of the step."""
    return scalar(_checked(part, name, x, (jnp.integer, jnp.floating), "one real number"))


def _checked(part: Any, name: str, x: Any, kinds: tuple[Any, ...], rule: str) -> Array:
    if jnp.integer in kinds and jnp.floating not in kinds:
        require_int32(part, name, x)
    if isinstance(x, int | np.integer) and not -(2**31) <= x < 2**31:
        if abs(x) > sys.float_info.max:
            raise ValueError(f"{name_of(part)}: {name} must be {rule} of a float, got {shown(x)}.")
        x = float(x)
    is_scalar = (isinstance(x, bool | int | float) or hasattr(x, "dtype")) and np.shape(x) == ()
    if not is_scalar or not any(jnp.issubdtype(jnp.result_type(x), kind) for kind in kinds):
        hint = remedy_for_pair(x)
        raise TypeError(f"{name_of(part)}: {name} must be {rule}, got {shown(x)}.{hint}")
    return jnp.asarray(x)


def number_rank(dtype: Any) -> int:
    """Return 3 for complex, 2 for floating and 1 for integer dtypes, 0 for all others."""
    kinds = (jnp.complexfloating, jnp.floating, jnp.integer)
    return next((3 - i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 0)

"""`Schedule`, and the arithmetic of step counts that schedules share.

Counts stay integers for as long as possible. A float32 count is wrong from 2**24 on, and a float
quotient such as `45 * (1 / 15)`, to which XLA rewrites a division by a constant, falls on the wrong
side of `floor` and `ceil`. Fractions of a period are formed from both of its ends, `k / T` and
`(T - k) / T`, because a small `1 - k / T` has lost its digits.
"""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import name_of
from gradxform.numerics import scalar, scalar_dtype
from gradxform.types import Array
from gradxform.values import Hole, Value, is_live

__all__ = [
    "Schedule",
]

# Integer counts stop here, as those of the optimizers do.
LARGEST = 2**31 - 1


class Schedule(Value, abc.ABC):
    """A number for every step, such as a learning rate, as an object that prints and compares."""

    never_mask = True

    @abc.abstractmethod
    def __call__(self, count: Any) -> Array:
        """Return the value after `count` steps, in float32.

        With `jax_enable_x64` it is in float64, except in a transform of narrower parameters.

        Args:
          count: the number of earlier steps, 0 at the first; a scalar or an array of counts,
            integer or floating. Counts below 0 are read as 0.
        """


class Composite(Schedule):
    """A schedule that is a composition of others, but prints under its own name."""

    @abc.abstractmethod
    def expand(self) -> Schedule:
        """Return the composition that this schedule stands for."""

    def __call__(self, count: Any) -> Array:
        """Return the composition's value."""
        return self.expand()(count)


# ---------------------------------------------------------------------------------------- fields


def is_known(x: Any) -> bool:
    """Whether a field holds a Python number, not one that is known only at run time."""
    return isinstance(x, int | float) and not isinstance(x, bool)


def is_open(x: Any) -> bool:
    """Whether a field holds a number that is known only at run time."""
    return is_live(x) or isinstance(x, Hole)


def number_of_field(x: Any) -> Any:
    """Return a field for arithmetic: a Python number as it is, or else a floating array."""
    return x if is_known(x) else scalar(x)


def check_steps(part: Schedule, *names: str) -> None:
    """Require every named field to be a finite number of steps; 100.0 is kept as 100."""
    for name in names:
        steps = getattr(part, name)
        if isinstance(steps, float):
            if not math.isfinite(steps):
                raise ValueError(f"{name_of(part)}: {name} must be finite, got {steps!r}.")
            if steps.is_integer():
                object.__setattr__(part, name, int(steps))


# ---------------------------------------------------------------------------------------- counts


def as_count(count: Any) -> Array:
    """Return counts as int32 or floats, at least 0.

    Raises:
      TypeError: if `count` is not a real number or an array of them.
    """
    if not isinstance(count, jax.Array):
        count = np.asarray(count)
        if count.dtype.kind in "iub":
            # In 64 bits, because a Python int may exceed JAX's default integers.
            clipped = np.minimum(np.maximum(count, 0).astype(np.uint64), np.uint64(LARGEST))
            return jnp.asarray(clipped.astype(np.int32))
        if count.dtype.kind == "O" and count.ndim == 0 and isinstance(count.item(), int):
            return jnp.asarray(0 if count.item() < 0 else LARGEST, jnp.int32)
    if jnp.issubdtype(count.dtype, jnp.floating):
        return jnp.maximum(scalar(count), 0.0)
    if jnp.issubdtype(count.dtype, jnp.integer):
        if jnp.iinfo(count.dtype).max > LARGEST:
            count = jnp.minimum(count, jnp.asarray(LARGEST, count.dtype))
        return jnp.maximum(count.astype(jnp.int32), 0)
    raise TypeError(f"a schedule must be called with a number of steps, got {count!r}.")


def same_dtype(count: Array, steps: Any) -> tuple[Array, Array]:
    """Return counts and a number of steps as int32 if both are integers, else as floats."""
    if not is_known(steps):
        steps = as_count(steps)
        is_integer = jnp.issubdtype(steps.dtype, jnp.integer)
    else:
        is_integer = isinstance(steps, int) and abs(steps) <= LARGEST
    both = is_integer and jnp.issubdtype(count.dtype, jnp.integer)
    dtype = jnp.int32 if both else scalar_dtype()
    return count.astype(dtype), jnp.asarray(steps, dtype)


def steps_since(count: Any, begin: Any) -> Array:
    """Return the number of steps after the first `begin`, at least 0."""
    count, begin = same_dtype(as_count(count), begin)
    return jnp.maximum(count - begin, 0)


def fractions_of_period(count: Array, steps: Any) -> tuple[Array, Array]:
    """Return the remaining and the elapsed fraction of a period of `steps`; 0 and 1 after it."""
    count, steps = same_dtype(count, steps)
    count = jnp.minimum(count, steps)
    length = scalar(steps)
    # XLA multiplies by the reciprocal of a constant divisor: 41 / 41 is then not 1.
    remaining = jnp.where(count <= 0, 1.0, scalar(steps - count) / length)
    return remaining, jnp.where(count >= steps, 1.0, scalar(count) / length)


def whole_periods(count: Array, steps: Any) -> Array:
    """Return how many whole periods of `steps` have passed, as a float."""
    count, steps = same_dtype(count, steps)
    return scalar(count // steps)


def first_count(steps: float) -> int:
    """Return the first integer count at or after `steps`, up to a rounding error of `steps`."""
    nearest = round(steps)
    return nearest if math.isclose(steps, nearest, rel_tol=1e-12) else math.ceil(steps)


def segment_of_count(count: Array, starts: Any) -> Array:
    """Return how many of the increasing `starts` each count has reached, as int32."""
    is_integer = jnp.issubdtype(count.dtype, jnp.integer)
    if is_integer:  # a start that no integer count reaches would not fit
        starts = [first_count(s) for s in starts if s <= LARGEST]
    table = jnp.asarray(np.asarray(starts, np.int32 if is_integer else scalar_dtype()))
    return jnp.searchsorted(table, count, side="right", method="compare_all").astype(jnp.int32)


def half_cosine(remaining: Array) -> Array:
    """Return (1 + cos(pi (1 - remaining))) / 2 as a squared sine, accurate for small values too."""
    return jnp.square(jnp.sin((0.5 * math.pi) * remaining))


def exact_at_ends(low: Any, high: Any, share: Array, y: Array) -> Array:
    """Return `y`, but exactly `high` where its share is 1 and `low` where it is 0.

    What a formula adds up to there may be off by a rounding.
    """
    return jnp.where(share == 1, scalar(high), jnp.where(share == 0, scalar(low), y))

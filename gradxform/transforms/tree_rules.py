"""Helpers of rules that use the whole tree, the loss, a PRNG key, or the first parameters."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.engine import Columns, tree_sums
from gradxform.errors import name_of, remedy_for_pair, shown
from gradxform.leaves import (
    align_params,
    align_slot,
    is_abstract,
    is_hole,
    masks,
    path_at,
    shape_of,
    with_paths,
)
from gradxform.leaves.states import slot_fields
from gradxform.numerics import (
    scalar,
    shrinking,
    value_at,
)
from gradxform.numerics.overflow import bounded_square
from gradxform.slots import dtype_of_slot, zeros_of_sums
from gradxform.types import Array, Params, PyTree, Scalar, Updates


def copied_params(params: Params, dtype: Any = None) -> PyTree:
    """Return a copy of the parameters as a slot that starts there; dtypes as in `zeros_like`.

    The copy never shares a buffer with the parameter, because both may be donated. A
    `jax.ShapeDtypeStruct` becomes another one.
    """

    def copy(p: Any) -> Any:
        its_dtype = dtype_of_slot(p, dtype)
        if is_abstract(p):
            return jax.ShapeDtypeStruct(p.shape, its_dtype, sharding=p.sharding)
        return jnp.array(p, dtype=its_dtype, copy=True)

    return jax.tree.map(copy, params)


def zero_sums(params: Params, axes_of: Callable[[Any], tuple[int, ...]]) -> PyTree:
    """Return real zeros for sums over some axes of each parameter, of all its pieces.

    Args:
      params: the parameters.
      axes_of: returns the axes of a parameter that are summed over; they stay with length 1.
    """
    whole = engine.whole_shapes(params)
    return jax.tree.map(lambda p, x: zeros_of_sums(p, axes_of(p), x), params, whole)


def key_or_seed(part: Any, key: Any, seed: Any) -> Any:
    """Return the key of a noise, also under its old name `seed`; without either warn, and return 0.

    Call it from the `__init__` of `part`: the warning then points at the caller of `__init__`,
    past the function that wraps it, `with_known_arguments`.
    """
    if seed is not None:
        if key is not None:
            raise ValueError(f"{name_of(part)}: give key or seed, not both; seed is its old name.")
        message = f"{name_of(part)}: seed is deprecated; use key."
        warnings.warn(message, DeprecationWarning, stacklevel=4)
        return seed
    if key is None:
        message = f"{name_of(part)}: without a key, every run draws the noise of key=0."
        warnings.warn(message, stacklevel=4)
        return 0
    return key


def live_key(key: Any) -> Array:
    """Return the PRNG key that a field annotated `Key` stands for."""
    if isinstance(key, int):
        return jax.random.key(key)
    if isinstance(key, tuple) and isinstance(key[0], str):
        return jax.random.wrap_key_data(jnp.asarray(key[1:], jnp.uint32), impl=key[0])
    if isinstance(key, jax.Array) and not key.ndim:  # live: a key or a seed
        is_key = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return key if is_key else jax.random.key(key)
    return jnp.asarray(key, jnp.uint32)


def selected_by_mask(part: Any, mask: Any, updates: Updates) -> list[bool]:
    """Return for every leaf of the updates whether a mask selects it; without a mask, all are."""
    whole = engine.whole_shapes(updates)
    chosen = dict(with_paths(masks.resolve(part, True if mask is None else mask, whole)))
    return [bool(chosen[path]) for path, x in with_paths(whole) if not is_hole(x)]


def decay_at(x: Any, count: Array) -> tuple[Array, Array]:
    """Return a decay, a number or schedule, and 1 minus it, as scalars of the step.

    For a number, the difference is formed in Python: 1 - 0.9999 in float32 has a relative error of
    2e-4.
    """
    if isinstance(x, float):  # subtracted in 64 bits: in float32, 1 - 0.9999 has three digits
        return scalar(x), scalar(1 - x)
    decay = value_at(x, count)
    return decay, 1 - decay


def as_loss(part: Any, value: Any, name: str = "value", remedy: str | None = None) -> Array:
    """Return the extra argument `value` as a scalar of the step, or raise if it is not one.

    Args:
      part: the part, or its name.
      value: the loss.
      name: what it is called in messages.
      remedy: what to do about a pair `(value, aux)`. Defaults to giving the value alone.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    dtype = getattr(value, "dtype", jnp.float32 if is_number else None)
    kinds = (jnp.floating, jnp.integer)
    is_real = dtype is not None and any(jnp.issubdtype(dtype, kind) for kind in kinds)
    if not is_real or jnp.shape(value) != ():
        hint = remedy_for_pair(value, *([] if remedy is None else [remedy]))
        raise TypeError(
            f"{name_of(part)}: {name} must be the loss, a scalar, got {shown(value)}.{hint}"
        )
    return scalar(value)


def columns_of(part: Any, updates: Updates, state: Any, params: Params) -> Columns:
    """Return the leaves that a rule takes: lists for the updates, every slot and the parameters.

    The lists are in the order of the rule's arguments; leaves without an update are left out.

    Raises:
      ValueError: if a gradient or a slot does not have the shape of its parameter.
    """
    gs, treedef = jax.tree.flatten(updates)
    ps = align_params(part, updates, treedef, params).leaves
    slots = []
    for k in slot_fields(part.State or type(state)):
        slot = align_slot(part, updates, treedef, state, k)
        slots.append(slot.leaves)
        for i, (s, p) in enumerate(zip(slots[-1], ps, strict=True)):
            if jnp.shape(s) != jnp.shape(p):
                raise ValueError(
                    f"{name_of(part)}: the state's {k} of {path_at(updates, i)} has shape "
                    f"{jnp.shape(s)}, this parameter needs {jnp.shape(p)}. Was this state made for "
                    "other parameters?"
                )
    return [gs, *slots, ps]


def tree_tamings(updates: Updates, *columns: list[Any]) -> list[Array]:
    """Return for each list of leaves a factor with which the sum of its squares is finite.

    It is 1 where it need not be less, so that gradients of ordinary size are not rounded.

    Args:
      updates: the tree, whose leaves the lists belong to.
      *columns: lists of leaves of equal length.
    """
    sums = tree_sums(_distant_sizes, updates, list(columns))
    return [shrinking(total, LARGEST_TAME * DISTANCE) for total in sums]


# Sums of sizes are formed at a distance from which none is infinite.
DISTANCE, LARGEST_TAME = 2.0**-64, 2.0**50


def _distant_sizes(*row: Array) -> tuple[Array, ...]:
    return tuple(jnp.abs(x) * DISTANCE for x in row)


def mean_moment(updates: Updates, gs: Any, vs: Any, b2: Scalar, of_v: Scalar) -> tuple[Array, int]:
    """Return the mean over the tree of the new v = b2 v + (1 - b2) g^2, and the number of entries.

    Args:
      updates: the tree, whose leaves are `gs`.
      gs: the gradients.
      vs: the second moments before this step.
      b2: their decay.
      of_v: the factor that debiases the new ones.
    """
    whole = with_paths(engine.whole_shapes(updates))
    sizes = [
        math.prod(shape_of(x)) * engine.number_of_layers(path)
        for path, x in whole
        if not is_hole(x)
    ]
    entries = max(sum(sizes), 1)
    share = of_v / entries
    (mean,) = tree_sums(_moment, updates, [gs, vs], b2, share, share * scalar(1 - b2))
    return mean, entries


def _moment(g: Array, v: Array, b2: Scalar, of_old: Scalar, of_new: Scalar) -> tuple[Array]:
    """Return the terms of a mean of second moments; none is beyond the range, nor is their sum."""
    return (of_old * (b2 * v) + of_new * jnp.square(bounded_square(g)),)


def ratio_or_zero(numerator: Array, denominator: Array) -> Array:
    """Return the ratio of two scalars, and 0 where the denominator is at most 0; a NaN stays."""
    undefined = denominator <= 0
    return jnp.where(undefined, 0, numerator / jnp.where(undefined, 1, denominator))

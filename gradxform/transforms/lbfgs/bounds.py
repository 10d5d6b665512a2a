"""Bounds of parameters: numbers, or trees of them, as arrays like the parameters."""

import math
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._jax.versions import is_tracer
from gradxform.errors import name_of, shown
from gradxform.leaves import Path, dtype_of, is_abstract, is_hole, path_str, with_paths
from gradxform.numerics import at_least_float32, cast, number_rank, promote
from gradxform.slots import zeros_like
from gradxform.types import Array, Params, PyTree
from gradxform.values import FrozenTree, is_function, thawed

__all__ = []


def as_numbers(part: Any, name: str, bound: Any) -> Any:
    """Return a bound with lists of Python numbers in the place of arrays, as a field may hold it.

    Raises:
      TypeError: if an array is traced.
    """

    def listed(x: Any) -> Any:
        if is_tracer(x):
            raise TypeError(
                f"{name_of(part)}: {name} must not be traced; give a function of the parameters "
                "that returns it."
            )
        return np.asarray(x).tolist() if isinstance(x, np.ndarray | jax.Array) else x

    if is_function(bound) or isinstance(bound, FrozenTree):
        return bound
    check(part, name, bound)
    return jax.tree.map(listed, bound, is_leaf=lambda x: x is None)


def check(part: Any, name: str, bound: Any) -> None:
    """Require a bound as far as it is known without parameters."""
    bound = FrozenTree(bound) if isinstance(bound, bool) else bound
    if is_function(bound):
        return
    for x in jax.tree.leaves(thawed(bound)):
        is_array = isinstance(x, np.ndarray | np.generic | jax.Array)
        if not is_array and (isinstance(x, bool) or not isinstance(x, int | float)):
            raise TypeError(
                f"{name_of(part)}: {name} must be a number, a tree of numbers and None, or a "
                f"function of the parameters, got {shown(x)}."
            )
        if isinstance(x, float) and math.isnan(x):
            raise ValueError(f"{name_of(part)}: {name} must not be NaN, got {shown(bound)}.")
        if isinstance(x, int) and abs(x) > sys.float_info.max:
            raise ValueError(
                f"{name_of(part)}: {name} must be in the range of a float, got {shown(x)}."
            )


def resolved(part: Any, params: Params, lower: Any, upper: Any) -> tuple[PyTree, PyTree]:
    """Return both bounds as trees of arrays, in the dtypes of slots.

    They are rounded inward to the dtypes of the parameters, so that these can reach them and no
    number beyond them.

    Raises:
      ValueError: if a bound has other leaves or shapes than the parameters, is NaN, crosses the
        other one, leaves a parameter outside, or no number of its dtype between the two.
    """
    lows = _leaves(part, "lower", lower, params, -np.inf)
    highs = _leaves(part, "upper", upper, params, np.inf)
    for (path, p), low, high in zip(with_paths(params), lows, highs, strict=True):
        if not is_hole(p):
            _check_leaf(part, path, p, low, high)
    lows, highs = ([x for x in xs if x is not None] for xs in (lows, highs))
    zeros, treedef = jax.tree.flatten(zeros_like(params))

    def laid(xs: list[Any]) -> PyTree:
        # A sum with zeros made of the parameter has its sharding.
        filled = [z + x.astype(z.dtype) for z, x in zip(zeros, xs, strict=True)]
        return jax.tree.unflatten(treedef, filled)

    return laid(lows), laid(highs)


def _leaves(part: Any, name: str, bound: Any, params: Params, none: float) -> list[Any]:
    """Return the bound of every leaf as an array, rounded to its dtype; None at a hole."""
    named = with_paths(params)
    tree = bound(params) if is_function(bound) else thawed(bound)
    # Lists of numbers may be branches of the parameters, or the bounds of one array.
    same = _structure(tree) == _structure(params)
    given = dict(with_paths(tree) if same else with_paths(tree, _is_entry))
    used, out = set(), []
    for path, p in named:
        places = [path[:end] for end in range(len(path) + 1) if path[:end] in given]
        used.update(places[:1])
        x = given[places[0]] if places else None
        if is_hole(p):
            out.append(None)
            continue
        if not places and any(other[: len(path)] == path for other in given):
            free = "-inf" if name == "lower" else "inf"
            raise ValueError(
                f"{name_of(part)}: {name} of {path_str(path)} must be a number or the numbers of "
                f"the array, not several bounds with None among them; write {free} for None."
            )
        if not places and bound is not None:
            raise ValueError(
                f"{name_of(part)}: {name} has no entry for {path_str(path)}; give a number, or "
                "None for no bound."
            )
        out.append(_bound_as_array(part, name, path, p, none if x is None else x))
    for path in given:
        if path not in used and bound is not None:
            raise ValueError(
                f"{name_of(part)}: {name} has an entry {path_str(path)}, the parameters have none."
            )
    return out


def _bound_as_array(part: Any, name: str, path: Path, p: Any, x: Any) -> Any:
    """Return the bound of one leaf, rounded inward to its dtype, in float32 or wider."""
    dtype = dtype_of(p)
    try:
        x = x if isinstance(x, jax.Array) else np.asarray(x)
        is_real = number_rank(dtype_of(x)) in (1, 2)
        x = x if isinstance(x, jax.Array) else x.astype(np.float64)
    except (TypeError, ValueError):
        is_real = False
    if not is_real:
        raise TypeError(
            f"{name_of(part)}: {name} of {path_str(path)} must be a number or an array of numbers, "
            f"got {shown(x)}."
        )
    if x.shape not in ((), jnp.shape(p)):
        raise ValueError(
            f"{name_of(part)}: {name} of {path_str(path)} has shape {x.shape}, the parameter has "
            f"{jnp.shape(p)}."
        )
    return _rounded_inward(x, dtype, 1 if name == "lower" else -1)


def _rounded_inward(x: Any, dtype: Any, sign: int) -> Any:
    """Return a bound as the next number of `dtype` that it allows; `sign` points to the inside."""
    xp = jnp if isinstance(x, jax.Array) else np
    # A number beyond the dtype becomes infinite, which bounds nothing.
    with np.errstate(over="ignore", invalid="ignore"):
        wide = x.astype(at_least_float32(dtype))
        near = wide.astype(dtype)
        next_in = xp.nextafter(near, xp.full_like(near, sign * float(jnp.finfo(dtype).max)))
    rounded = near.astype(wide.dtype) if xp is np else _rounded(wide, dtype)
    is_outside = (sign * rounded < sign * wide) & xp.isfinite(rounded)
    rounded = xp.where(is_outside, next_in.astype(wide.dtype), rounded)
    # Some dtypes of 8 bits have NaN in the place of an infinity.
    return xp.where(xp.isnan(rounded), wide, rounded)


def _check_leaf(part: Any, path: Path, p: Any, low: Any, high: Any) -> None:
    """Require bounds that do not cross, with the parameter between them, as far as is known."""
    low, high = (None if is_tracer(x) else np.asarray(x, np.float64) for x in (low, high))
    for name, x in (("lower", low), ("upper", high)):
        if x is not None and np.any(np.isnan(x)):
            raise ValueError(f"{name_of(part)}: {name} of {path_str(path)} is NaN.")
    if low is not None and high is not None and np.any(low > high):
        a, b = _first_outside_bounds(low > high, low, high)
        raise ValueError(
            f"{name_of(part)}: lower must be at most upper, and a number of {dtype_of(p)} between "
            f"them; rounded to such numbers they are {a} and {b} for {path_str(path)}."
        )
    if is_tracer(p) or is_abstract(p):
        return
    value = np.asarray(p, np.float64)
    for name, x, word in (("lower", low, "below"), ("upper", high, "above")):
        if x is None:
            continue
        outside = value < x if name == "lower" else value > x
        if np.any(outside):
            a, b = _first_outside_bounds(outside, value, x)
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} starts at {a}, {word} its bound "
                f"{b}. Start from projections.projection_box(params, lower, upper)."
            )


def _first_outside_bounds(where: Any, *xs: Any) -> list[float]:
    """Return the first entries of some arrays where a mask holds."""
    mask, *arrays = np.broadcast_arrays(where, *xs)
    return [float(x[mask].flat[0]) for x in arrays]


def _structure(tree: PyTree) -> Any:
    return jax.tree.structure(tree, is_leaf=_is_none_bound)


def _is_none_bound(x: Any) -> bool:
    return x is None


def _is_entry(x: Any) -> bool:
    """Whether `x` is the bound of one leaf or branch: None, a number, or lists of numbers."""
    if isinstance(x, list | tuple):
        return bool(x) and all(map(_is_entry, x)) and None not in x
    return x is None or (not isinstance(x, dict) and jax.tree.structure(x).num_nodes == 1)


def bounds_as_steps(x: Array, low: Array, high: Array, per_unit: Array) -> tuple[Array, Array]:
    """Return the bounds as steps from x, times `per_unit`."""
    per_unit = cast(per_unit, x.dtype)
    return _way(x, low, per_unit), _way(x, high, per_unit)


def _way(x: Array, bound: Array, per_unit: Array) -> Array:
    """Return (bound - x) per_unit; at an infinite bound it has a derivative, of 0."""
    is_bound = jnp.abs(bound) != jnp.inf
    return jnp.where(is_bound, (jnp.where(is_bound, bound, 0) - x) * per_unit, bound)


def reach_along(low: Array, high: Array, x: Array, step: Array) -> Array:
    """Return which part of its step from x each entry can go; infinite without a bound or step."""
    bound = jnp.where(step > 0, high, low)
    ends = (step != 0) & (jnp.abs(bound) != jnp.inf)
    bound = jnp.where(ends, bound, 0)
    room = jnp.where(step > 0, bound - x, x - bound)
    return jnp.where(ends, room / jnp.abs(jnp.where(ends, step, 1)), jnp.inf)


def update_along(
    g: Any, p: Any, x: Array, d: Array, low: Array, high: Array, t: Array, unit: Array
) -> Array:
    """Return the update that leads to x + t unit d, in the dtype of the gradient.

    A step as long as the one to a bound leads to the bound itself, without a rounding.
    """
    g, p = jnp.asarray(g), jnp.asarray(p)
    t, unit = cast(t, x.dtype), cast(unit, x.dtype)
    step = jnp.where(t != 0, t * d, 0)
    below, above = bounds_as_steps(x, low, high, 1 / unit)
    place = jnp.clip(x + step * unit, low, high)
    place = jnp.where((step != 0) & (step <= below), low, place)
    place = jnp.where((step != 0) & (step >= above), high, place)
    wide = promote(x.dtype, at_least_float32(g.dtype))
    start, low, high = (cast(v, wide) for v in (p, low, high))

    u = _rounded(cast(place, wide) - start, g.dtype)
    # p + u is rounded, and could be outside. The next smaller u then leads to the inside.
    for _ in range(2):
        end = _rounded(start + u, p.dtype)
        step = lax.stop_gradient(cast(u, g.dtype))  # `nextafter` does not have a derivative
        step = lax.nextafter(step, jnp.zeros_like(step))
        u = jnp.where((end < low) | (end > high), cast(step, wide), u)
    end = _rounded(start + u, p.dtype)
    is_out = ((end < low) | (end > high)) & (start >= low) & (start <= high)
    return cast(jnp.where(is_out, 0, u), g.dtype)


def _rounded(x: Array, dtype: Any) -> Array:
    """Return `x` as a number of `dtype`, in its own dtype; infinite beyond the largest."""
    if dtype == x.dtype:
        return x
    info = jnp.finfo(dtype)
    if info.bits > 8:
        # Not by a cast there and back, which XLA may leave out.
        return lax.reduce_precision(x, info.nexp, info.nmant)
    # Formats of 8 bits differ in their largest exponent, so only the mantissa is rounded like that.
    normal = lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, info.nmant)
    quantum = float(info.smallest_subnormal)
    subnormal = jnp.round(x / quantum) * quantum
    y = jnp.where(jnp.abs(x) < float(info.smallest_normal), subnormal, normal)
    return jnp.where(jnp.abs(y) > float(info.max), jnp.sign(x) * jnp.inf, y)

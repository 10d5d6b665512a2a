"""The minimum of the quadratic model of L-BFGS-B in a box, over the entries that are free.

Reference: Byrd, Lu, Nocedal and Zhu, A limited memory algorithm for bound constrained optimization,
1995, section 5.1, the direct primal method; Morales and Nocedal, Remark on "Algorithm 778:
L-BFGS-B", 2011, for the projection of its step.
"""

import functools

import jax.numpy as jnp

from gradxform import engine
from gradxform.linalg import inner_products, weighted_sum
from gradxform.numerics import cast
from gradxform.numerics.roots import root
from gradxform.transforms.lbfgs import bounds, more_thuente
from gradxform.transforms.lbfgs.cauchy import Box, cauchy_point
from gradxform.transforms.lbfgs.compact import (
    Memory,
    Products,
    products,
    sums_over_leaves,
)
from gradxform.types import Array

__all__ = []


def subspace_target(box: Box, memory: Memory) -> tuple[list[Array], Array]:
    """Return where the model says to go, and the slope of the loss along the way there."""
    cauchy = cauchy_point(box, memory)
    of_y, of_s = memory.weights(cauchy.k)
    left = engine.map_rows(
        _gradient,
        [box.x, box.g, *cauchy[:2], memory.s, memory.y],
        of_y,
        of_s,
        memory.theta,
    )
    *grams, of_y, of_s = sums_over_leaves([leaf[1:] for leaf in left])
    x = memory.reduced(Products(*grams[:3]), Products(*grams[3:]), memory.both(of_y, of_s))
    of_y, of_s = memory.weights(x / memory.theta)
    r = [leaf[0] for leaf in left]
    columns = [r, *cauchy[:2], memory.s, memory.y]
    steps = engine.map_rows(_step, columns, of_y, of_s, memory.theta)

    ends = engine.map_rows(_project_step, [*box, *cauchy[:1], steps])
    slope, is_cut, reach = (
        f([cast(leaf[i], memory.theta.dtype) for leaf in ends])
        for i, f in ((1, _sum), (2, _sum), (3, _least))
    )
    # The projected step may lead uphill. Then the step ends at the first bound in its way.
    goes_back = (is_cut > 0) & (slope > 0)
    ends = [leaf[0] for leaf in ends]
    columns = [*box, *cauchy[:1], steps, ends]
    ends = engine.map_rows(_go_back, columns, goes_back, jnp.minimum(reach, 1))
    slope = _sum([cast(leaf[1], memory.theta.dtype) for leaf in ends])
    return [leaf[0] for leaf in ends], slope


def _sum(xs: list[Array]) -> Array:
    return functools.reduce(jnp.add, xs)


def _least(xs: list[Array]) -> Array:
    return functools.reduce(jnp.minimum, xs)


def _gradient(
    x: Array,
    g: Array,
    z: Array,
    free: Array,
    s: Array,
    y: Array,
    of_y: Array,
    of_s: Array,
    theta: Array,
) -> tuple[Array, ...]:
    """Return the gradient r of the model at z on the free entries, and products of the memory."""
    r = g + cast(theta, x.dtype) * (z - x) - weighted_sum(of_y, y) - weighted_sum(of_s, s)
    r = jnp.where(free, r, 0)
    of_r = (inner_products(y, r[None])[:, 0], inner_products(s, r[None])[:, 0])
    return r, *products(s, y, free), *products(s, y, ~free), *of_r


def _step(
    r: Array, z: Array, free: Array, s: Array, y: Array, of_y: Array, of_s: Array, theta: Array
) -> Array:
    """Return the step from z to the minimum over the free entries, bounds apart."""
    return jnp.where(
        free, -(r + weighted_sum(of_y, y) + weighted_sum(of_s, s)) / cast(theta, r.dtype), 0
    )


def _project_step(
    x: Array, g: Array, low: Array, high: Array, z: Array, step: Array
) -> tuple[Array, ...]:
    """Return z + step in the box; <end - x, g>; how many entries are cut; how far all fit."""
    end = z + step
    is_cut = jnp.sum((end < low) | (end > high), dtype=x.dtype)
    end = jnp.clip(end, low, high)
    return (
        end,
        jnp.sum((end - x) * g),
        is_cut,
        jnp.min(bounds.reach_along(low, high, z, step), initial=jnp.inf),
    )


def _go_back(
    x: Array,
    g: Array,
    low: Array,
    high: Array,
    z: Array,
    step: Array,
    end: Array,
    goes_back: Array,
    share: Array,
) -> tuple[Array, Array]:
    """Return the end of the step, or of that share of it; and <end - x, g>."""
    short = jnp.clip(z + cast(share, z.dtype) * step, low, high)
    is_there = bounds.reach_along(low, high, z, step) <= share
    short = jnp.where(is_there, jnp.where(step > 0, high, low), short)
    end = jnp.where(goes_back, short, end)
    return end, jnp.sum((end - x) * g)


def step_lengths(
    box: Box, aim: list[Array], within: Array, is_known: Array, is_begin: Array
) -> tuple[Array, Array]:
    """Return the first step length of a search, and the largest one, as SciPy's L-BFGS-B has them.

    Args:
      box: the box.
      aim: the target.
      within: how long the first step may be while the curvature is not known.
      is_known: whether it is.
      is_begin: whether the search must not go beyond the target.
    """
    leaves = engine.map_rows(_limits, [box.x, box.low, box.high, aim])
    squared, bounded, boxed = sums_over_leaves([leaf[:3] for leaf in leaves])
    size = sum(x.size for x in box.x)
    room = functools.reduce(jnp.minimum, (cast(leaf[3], squared.dtype) for leaf in leaves))
    length = root(squared)
    first = jnp.minimum(1, within / jnp.where(length > 0, length, 1))
    first = jnp.where(is_known | (boxed == size), 1, first)
    largest = jnp.where(is_begin, 1, jnp.clip(room, 1, more_thuente.LARGEST))
    return first, jnp.where(bounded > 0, largest, more_thuente.LARGEST)


def _limits(x: Array, low: Array, high: Array, aim: Array) -> tuple[Array, ...]:
    """Return |aim - x|^2; how many entries have a bound, and both; how far all can go."""
    has = [jnp.isfinite(bound) for bound in (low, high)]
    bounded, boxed = (jnp.sum(f(*has), dtype=x.dtype) for f in (jnp.logical_or, jnp.logical_and))
    room = jnp.min(bounds.reach_along(low, high, x, aim - x), initial=jnp.inf)
    return jnp.sum((aim - x) ** 2), bounded, boxed, room

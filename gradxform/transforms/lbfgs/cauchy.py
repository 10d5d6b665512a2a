"""The generalized Cauchy point: where a quadratic model stops falling on the projected gradient.

The path starts at x and follows -g. An entry that reaches its bound stays there, so that the path
is broken at that time. On each of its segments the model is a parabola.

Reference: Byrd, Lu, Nocedal and Zhu, A limited memory algorithm for bound constrained optimization,
1995, section 4 and Algorithm CP.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.linalg import inner_products, matmul
from gradxform.numerics import cast, scalar_dtype
from gradxform.numerics.loops import loop_at_most
from gradxform.transforms.lbfgs import bounds
from gradxform.transforms.lbfgs.compact import Memory, products, sums_over_leaves
from gradxform.types import Array

__all__ = []

# How many segments are looked at together: a step of the loop costs much the same for 1 and for 32.
CHUNK = 32


class Box(NamedTuple):
    """A point of a box with its gradient, leaf by leaf."""

    x: list[Array]
    g: list[Array]
    low: list[Array]
    high: list[Array]


class CauchyPoint(NamedTuple):
    """The first minimum of the model along the path."""

    z: list[Array]
    free: list[Array]  # booleans; whether an entry may still move
    k: Array  # (2m,); M W^T (z - x)


def cauchy_point(box: Box, memory: Memory) -> CauchyPoint:
    """Return the generalized Cauchy point of the model g^T (z - x) + (z - x)^T B (z - x) / 2."""
    seen = engine.map_rows(_breaks_of_leaf, [*box, memory.s, memory.y])
    times, directions = ([leaf[i] for leaf in seen] for i in (0, 1))
    s_s, s_y, of_y, of_s = sums_over_leaves([leaf[2:] for leaf in seen])
    middle = memory.middle(s_s, s_y)

    # The order of the breaks is that of all leaves together, which takes one array.
    dtype = scalar_dtype()
    time, direction = (
        jnp.concatenate([cast(x, dtype).reshape(-1) for x in xs]) for xs in (times, directions)
    )
    # Squares of the gradient may overflow or vanish. The path is the same with -g / size for -g. A
    # power of 2 rounds no time: where the path ends at a break, that entry is at its bound.
    size = lax.stop_gradient(jnp.max(jnp.abs(direction), initial=0))
    size = lax.reduce_precision(size, jnp.finfo(dtype).nexp, 0)
    size = jnp.where(size > 0, size, 1)
    path = _Path(time * size, direction / size, size, middle, memory)
    end, c = _first_minimum(path, memory.both(of_y, of_s) / size)
    k = matmul(middle, c)
    # Where nothing is bounded the step of the whole model is found from x itself.
    is_open = jnp.all(time == jnp.inf) & jnp.any(memory.scales > 0)
    end, k = jnp.where(is_open, 0, end / size), jnp.where(is_open, 0, k)
    moved = engine.map_rows(_move_to_point, [*box[:1], *box[2:], times, directions], end)
    return CauchyPoint([leaf[0] for leaf in moved], [leaf[1] for leaf in moved], k)


class _Path(NamedTuple):
    """The path x + t d, with d scaled so that its largest entry is in [1, 2)."""

    time: Array  # (n,); when each entry reaches its bound
    d: Array  # (n,)
    size: Array  # scalar; g = -size d where entries move
    middle: Array  # (2m, 2m); M
    memory: Memory


class _Place(NamedTuple):
    """How far along the path the search is, at a break."""

    chunk: Array  # int32
    time: Array
    p: Array  # (2m,); W^T d for the direction d from here
    c: Array  # (2m,); W^T (z - x) for the point z here
    found: Array


def _first_minimum(path: _Path, p: Array) -> tuple[Array, Array]:
    """Return the time of the first minimum of the model, and W^T (z - x) there.

    Args:
      path: the path.
      p: (2m,); W^T d at its start.
    """
    n = path.time.size
    # One break more than there are, at which nothing moves: a search always ends.
    chunk = min(CHUNK, n + 1)
    padding = (0, -n % chunk or chunk)
    order = jnp.argsort(path.time)
    time = jnp.pad(path.time[order], padding, constant_values=jnp.inf)
    d = jnp.pad(path.d[order], padding)
    order = jnp.pad(order, padding)
    # |d|^2 of all that still moves, summed from the end: a difference would cancel.
    square = jnp.cumsum((d * d)[::-1])[::-1]
    theta = path.memory.theta
    least = theta * square[0] - jnp.sum(p * matmul(path.middle, p))
    least = jnp.finfo(d.dtype).eps * least

    def look(place: _Place) -> _Place:
        start = place.chunk * chunk
        time_of, d_of, square_of, index = (
            lax.dynamic_slice_in_dim(x, start, chunk) for x in (time, d, square, order)
        )
        # p and c at the start of each segment, from sums over the breaks before.
        removed = d_of[:, None] * _rows_of_memory(path.memory, index)
        ps = place.p[None] - _sums_before_breaks(removed)
        begins = jnp.concatenate([place.time[None], time_of[:-1]])
        lengths = jnp.where(jnp.isfinite(time_of), time_of - begins, 0)
        passed = lengths[:, None] * ps
        cs = place.c[None] + _sums_before_breaks(passed)
        # The slope of the model where a segment begins, and its curvature.
        # No segment that begins at infinity is taken, but it would make NaN of derivatives.
        known = jnp.where(begins < jnp.inf, begins, 0)
        slope = (theta * known - path.size) * square_of
        slope = slope - jnp.sum(cs * matmul(ps, path.middle), axis=1)
        curvature = theta * square_of - jnp.sum(ps * matmul(ps, path.middle), axis=1)
        curvature = jnp.where(square_of == 0, 1, jnp.maximum(curvature, least))
        further = jnp.where(square_of == 0, 0, jnp.maximum(-slope / curvature, 0))
        ends = (square_of == 0) | (begins + further < time_of)
        i = jnp.argmax(ends)
        found = ends[i]
        return _Place(
            chunk=place.chunk + 1,
            time=jnp.where(found, begins[i] + further[i], time_of[-1]),
            p=jnp.where(found, ps[i], ps[-1] - removed[-1]),
            c=jnp.where(found, cs[i] + further[i] * ps[i], cs[-1] + passed[-1]),
            found=found,
        )

    chunks = len(time) // chunk
    zero = jnp.zeros((), d.dtype)
    begun = _Place(jnp.zeros((), jnp.int32), zero, p, jnp.zeros_like(p), jnp.zeros((), jnp.bool_))
    end = loop_at_most(chunks, lambda at: ~at.found & (at.chunk < chunks), look, begun)
    return end.time, end.c


def _sums_before_breaks(x: Array) -> Array:
    """Return for every row the sum of those before it."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), jnp.cumsum(x[:-1], axis=0)])


def _rows_of_memory(memory: Memory, index: Array) -> Array:
    """Return rows of W, (k, 2m), by their places among the entries of all leaves."""
    m, start = len(memory.scales), 0
    of_y = of_s = jnp.zeros((m, len(index)), memory.scales.dtype)
    for s, y in zip(memory.s, memory.y, strict=True):
        size = s[0].size
        if size:
            own = index - start
            is_here = (own >= 0) & (own < size)
            own = jnp.clip(own, 0, size - 1)
            of_y, of_s = (
                total + jnp.where(is_here, cast(x.reshape(m, size)[:, own], total.dtype), 0)
                for total, x in ((of_y, y), (of_s, s))
            )
        start += size
    scales = memory.scales[:, None]
    return jnp.concatenate([scales * of_y, memory.theta * (scales * of_s)]).T


def _breaks_of_leaf(
    x: Array, g: Array, low: Array, high: Array, s: Array, y: Array
) -> tuple[Array, ...]:
    """Return when each entry reaches its bound, its direction, and products of the memory."""
    is_held = ((g < 0) & (x >= high)) | ((g > 0) & (x <= low))
    d = jnp.where(is_held, 0, -g)
    # An entry that does not move, or does not have a bound there, is not a break of the path.
    time = bounds.reach_along(low, high, x, d)
    own = products(s, y, jnp.ones_like(x, jnp.bool_))
    return (
        time,
        d,
        own.s_s,
        own.s_y,
        inner_products(y, d[None])[:, 0],
        inner_products(s, d[None])[:, 0],
    )


def _move_to_point(
    x: Array, low: Array, high: Array, time: Array, d: Array, end: Array
) -> tuple[Array, Array]:
    """Return where the entries are at the end of the path, and which of them may still move."""
    is_there = (d != 0) & (time <= end)
    z = jnp.clip(x + cast(end, x.dtype) * d, low, high)
    z = jnp.where(is_there, jnp.where(d > 0, high, low), z)
    z = jnp.where(d == 0, x, z)
    return z, ~is_there & (low < z) & (z < high)

"""Conjugate gradients on trees, for symmetric matrices that may have negative curvature."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._jax.versions import settled_carry
from gradxform.numerics import cast, over
from gradxform.numerics.loops import loop_at_most
from gradxform.types import Array, PyTree, Scalar

__all__ = []


class Solution(NamedTuple):
    """What conjugate gradients find for A x = b."""

    x: Any
    residual: Any  # b - A x
    steps: Array  # int32 scalar; how many were taken, as many products
    is_convex: Array  # whether no direction with x^T A x <= 0 was met


class _Search(NamedTuple):
    x: Any
    r: Any
    d: Any  # the direction
    r_squared: Array
    steps: Array
    is_convex: Array


def conjugate_gradients(
    product: Callable[[PyTree], PyTree],
    b: PyTree,
    start: tuple[PyTree, PyTree],
    steps: Scalar,
    inner: Callable[[PyTree, PyTree], Array],
    tol: Scalar = 0.0,
) -> Solution:
    """Return an approximate solution of A x = b after at most `steps` products with A.

    From x and r = b - A x, with d = r:

        a = |r|^2 / <d, A d>
        x <- x + a d;    r <- r - a A d;    d <- r + (|r|^2 now / before) d

    Where <d, A d> <= 0, the matrix is not positive definite and x ends where it is. At the first
    step it goes along d = r, the direction of steepest descent, with |<d, A d>| in place of
    <d, A d>. No step makes x^T A x / 2 - b^T x larger.

    Args:
      product: the product with A.
      b: a tree of arrays.
      start: the first x, and b - A x.
      steps: the most products, at least 0.
      inner: the inner product of two trees.
      tol: it ends where |r| <= tol |b|, at least 0; a rounding at least.

    Reference: Hestenes and Stiefel, Methods of Conjugate Gradients for Solving Linear Systems,
    1952, equations (3:1); Nocedal and Wright, Numerical Optimization, 2006, Algorithm 7.1, for
    negative curvature.
    """
    b_squared = inner(b, b)
    # Beyond, r is one of roundings only.
    least = jnp.maximum(jnp.asarray(tol, b_squared.dtype), float(jnp.finfo(b_squared.dtype).eps))
    small = jnp.square(least) * b_squared

    def goes_on(search: _Search) -> Array:  # False for a NaN
        return (search.r_squared > small) & search.is_convex & (search.steps < steps)

    def turn(search: _Search) -> _Search:
        x, r, d, r_squared, count, _ = search
        ad = product(d)
        curvature = inner(d, ad)
        is_convex = curvature > 0
        size = jnp.where(is_convex | (count == 0), jnp.abs(curvature), 0)
        a = over(r_squared, size)
        x, r = _add_direction(x, a, d), _add_direction(r, -a, ad)
        new = inner(r, r)
        d = _add_direction(r, over(new, r_squared), d)
        return _Search(x, r, d, new, count + 1, is_convex)

    x, r = start
    zero = jnp.zeros((), jnp.int32)
    begun = _Search(x, r, r, inner(r, r), zero, jnp.ones((), jnp.bool_))
    begun = settled_carry(turn, begun, None)
    ended = loop_at_most(steps, goes_on, turn, begun)
    return Solution(ended.x, ended.r, ended.steps, ended.is_convex)


def _add_direction(xs: PyTree, a: Array, ys: PyTree) -> PyTree:
    """Return xs + a ys, in the dtypes of xs."""
    return jax.tree.map(lambda x, y: x + cast(a, x.dtype) * y, xs, ys)

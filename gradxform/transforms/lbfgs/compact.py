"""The matrix of L-BFGS in its compact form: B = theta I - W M W^T, from the pairs of a memory.

With the pairs (s, y) as rows of S and Y, scaled so that <s, y> = 1, and L the part of S Y^T in
which s is the later one: W^T is Y above theta S, and the inverse of M is
((-I, L^T), (L, theta S S^T)).
Products of W with vectors are sums over the leaves of a tree, which is never flattened.

Reference: Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in
limited memory methods, 1994, Theorem 2.3.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from gradxform import linalg
from gradxform.linalg import inner_products
from gradxform.numerics import add, cast, promote, scalar_dtype
from gradxform.types import Array

__all__ = []


class Memory(NamedTuple):
    """The last pairs (s, y), leaf by leaf, and what makes a matrix of them."""

    s: list[Array]  # (m, *shape) per leaf; the steps
    y: list[Array]  # (m, *shape) per leaf; the changes of the gradient
    scales: Array  # (m,); 1 / sqrt(<s, y>), and 0 for a place without a pair
    later: Array  # (m, m) booleans; whether the pair of the row is later than that of the column
    theta: Array  # scalar; B before the first pair is theta I

    def forgotten(self) -> "Memory":
        """Return the memory without any pair."""
        return self._replace(scales=jnp.zeros_like(self.scales))

    def both(self, of_y: Array, of_s: Array) -> Array:
        """Return W^T v from the products of v with every y and every s, as they are stored."""
        return jnp.concatenate([self.scales * of_y, self.theta * self.scales * of_s])

    def weights(self, k: Array) -> tuple[Array, Array]:
        """Return the weights of every stored y and s in W k."""
        m = len(self.scales)
        return self.scales * k[:m], self.theta * self.scales * k[m:]

    def scaled(self, products: Array) -> Array:
        """Return products of all pairs with all pairs, of the scaled ones."""
        return self.scales[:, None] * products * self.scales[None]

    def middle(self, s_s: Array, s_y: Array) -> Array:
        """Return M from the products of the stored pairs."""
        m = len(self.scales)
        identity = jnp.eye(m, dtype=s_s.dtype)
        l = jnp.where(self.later, self.scaled(s_y), 0)
        g = self.theta * self.scaled(s_s) + self._vacant(identity)
        return solve_quasidefinite(identity, l, g, jnp.eye(2 * m, dtype=s_s.dtype))

    def reduced(self, free: "Products", fixed: "Products", right: Array) -> Array:
        """Solve (M^{-1} - W_F^T W_F / theta) x = right, with W_F the rows of W that are free.

        Reference: Byrd et al., A limited memory algorithm for bound constrained optimization, 1995,
        section 5.1; the matrix is K of its equation (5.11), signs apart.
        """
        identity = jnp.eye(len(self.scales), dtype=right.dtype)
        e = identity + self.scaled(free.y_y) / self.theta
        c = jnp.where(self.later, self.scaled(fixed.s_y), -self.scaled(free.s_y))
        g = self.theta * self.scaled(fixed.s_s) + self._vacant(identity)
        return solve_quasidefinite(e, c, g, right[:, None])[:, 0]

    def _vacant(self, identity: Array) -> Array:
        """Return 1 on the diagonal for every place without a pair, so that it can be solved."""
        return jnp.where((self.scales > 0)[None], 0, identity)


class Products(NamedTuple):
    """Inner products of the memory with itself; (m, m) each."""

    s_s: Array
    s_y: Array
    y_y: Array


def products(s: Array, y: Array, mask: Array) -> Products:
    """Return the products of a leaf's memory, summed where `mask` holds."""
    masked_s, masked_y = (jnp.where(mask, x, 0) for x in (s, y))
    return Products(
        inner_products(masked_s, s), inner_products(masked_s, y), inner_products(masked_y, y)
    )


def sums_over_leaves(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return the sums over the leaves, as wide as the scalars of the step."""
    wide = promote(scalar_dtype(), *(x.dtype for part in parts for x in part))
    return tuple(
        functools.reduce(add, (cast(x, wide) for x in xs)) for xs in zip(*parts, strict=True)
    )


def solve_quasidefinite(e: Array, c: Array, g: Array, right: Array) -> Array:
    """Solve ((-e, c^T), (c, g)) x = right; NaN if a matrix that must be positive is not.

    Args:
      e: (m, m), positive definite.
      c: (m, m).
      g: (m, m), symmetric, such that g + c e^{-1} c^T is positive definite.
      right: (2m, k).
    """
    return linalg.one_by_one(_solve_by_blocks, e, c, g, right)


def _solve_by_blocks(e: Array, c: Array, g: Array, right: Array) -> Array:
    m = len(e)
    top, bottom = right[:m], right[m:]
    root = jnp.linalg.cholesky(e)
    half = functools.partial(solve_triangular, root, lower=True)
    x, top = half(c.T), half(top)
    of_sum = jnp.linalg.cholesky(g + linalg.matmul(x.T, x))
    right = bottom + linalg.matmul(x.T, top)
    b = solve_triangular(of_sum, solve_triangular(of_sum, right, lower=True), trans="T", lower=True)
    a = solve_triangular(root, linalg.matmul(x, b) - top, trans="T", lower=True)
    return jnp.concatenate([a, b])


def order_of(pairs: Array, m: int) -> tuple[Array, Array]:
    """Return which places of a memory hold a pair, and whether a place's is later than another's.

    Args:
      pairs: how many pairs have been stored, in a ring of `m` places.
      m: the number of places.
    """
    places = jnp.arange(m, dtype=jnp.int32)
    ages = jnp.mod(pairs - 1 - places, m)
    return places < pairs, ages[:, None] < ages[None, :]

"""Shampoo's step for one array, or for the touched rows of one."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform import linalg
from gradxform.leaves.row_sparse import RowSparse
from gradxform.numerics import cast, squarable
from gradxform.types import Array

Matrices = tuple[Array, ...]  # for each axis a matrix, or its diagonal


class Scalars(NamedTuple):
    """The scalars of one step."""

    learning_rate: Array
    gbar_decay: Array
    gbar_weight: Array
    decay: Array
    weight: Array
    interval: Array
    epsilon: Array
    alpha: Array
    grow: Array  # whether the matrices are updated
    renew: Array  # whether the roots are

    def as_wide(self, x: Array) -> "Scalars":
        """Return them in the dtype of an array."""
        return Scalars(*(n if n.dtype == bool else cast(n, x.dtype) for n in self))


@dataclass(frozen=True)
class Axes:
    """One step for one array; the key of its compiled call."""

    rank: int
    averages: bool  # whether the gradient is averaged
    grow: str | None  # the flag in `Scalars` to update the matrices; None: always update
    renew: str | None  # the flag in `Scalars` to compute their roots; None: always compute
    p: int | None  # which iterative root; None: by eigendecomposition

    def __call__(self, g: Any, gbar: Array, *rest: Any) -> tuple[Any, Array, Matrices, Matrices]:
        """Return the step, the average, the statistics and the roots.

        Args:
          g: the gradient, an array or a RowSparse.
          gbar: the average of the gradient.
          *rest: the statistics of each axis, the roots of each axis, and the `Scalars`.
        """
        statistics, roots = rest[: self.rank], rest[self.rank : 2 * self.rank]
        n = rest[2 * self.rank].as_wide(gbar)
        if isinstance(g, RowSparse):
            return self._step_of_rows(g, gbar, statistics, roots, n)
        return self._step_of_array(g, gbar, statistics, roots, n)

    def _step_of_array(
        self, g: Any, gbar: Array, statistics: Matrices, roots: Matrices, n: Scalars
    ) -> tuple[Array, Array, Matrices, Matrices]:
        x = squarable(jnp.reshape(cast(jnp.asarray(g), gbar.dtype), at_least_vector(g.shape)))
        mean = self.mean(x, jnp.reshape(gbar, x.shape), n)
        u, statistics, roots = self.step(mean, x, statistics, roots, n)
        if self.averages:
            gbar = jnp.reshape(mean, g.shape)
        return cast(jnp.reshape(u, g.shape), g.dtype), gbar, statistics, roots

    def mean(self, x: Array, gbar: Array, n: Scalars) -> Array:
        """Return the weighted gradient, or the average of those so far."""
        mean = n.gbar_weight * x
        return n.gbar_decay * gbar + mean if self.averages else mean

    def step(
        self, mean: Array, x: Array, statistics: Matrices, roots: Matrices, n: Scalars
    ) -> tuple[Array, Matrices, Matrices]:
        """Return the step along `mean`, and the statistics with the gradient `x`, of an array."""
        return self._along(mean, x, x.shape, statistics, roots, n, self._diagonal)

    def _step_of_rows(
        self, g: RowSparse, gbar: Array, statistics: Matrices, roots: Matrices, n: Scalars
    ) -> tuple[RowSparse, Array, Matrices, Matrices]:
        """Return the step for distinct rows; the gradient is neither averaged nor weighted."""
        x = squarable(cast(g.values, gbar.dtype))
        diagonal = functools.partial(self._diagonal_of_rows, g)
        u, statistics, roots = self._along(x, x, g.shape, statistics, roots, n, diagonal)
        return g.with_values(cast(u, g.dtype)), gbar, statistics, roots

    def _along(
        self,
        u: Array,
        x: Array,
        shape: tuple[int, ...],
        old_statistics: Matrices,
        old_roots: Matrices,
        n: Scalars,
        diagonal: Callable[..., tuple[Array, Array, Array]],
    ) -> tuple[Array, Matrices, Matrices]:
        """Return the step from `u`, and new statistics from `x`, all or some rows of an array."""
        statistics, roots = [], []
        for i, (statistic, root) in enumerate(zip(old_statistics, old_roots, strict=True)):
            if 0 in shape:
                pass
            elif statistic.ndim == 1:
                statistic, root, factor = diagonal(x, i, statistic, root, n)
                u = jnp.moveaxis(u, 0, -1) * jnp.expand_dims(factor, tuple(range(x.ndim - 1)))
            else:
                statistic, root = self._matrix(x, i, statistic, root, n)
                # Each turn moves the first axis to the end: after all, the order is as before.
                u = jnp.tensordot(u, root, axes=(0, 0), precision=linalg.HIGHEST)
            statistics.append(statistic)
            roots.append(root)
        return -n.learning_rate * u, tuple(statistics), tuple(roots)

    def _diagonal(
        self, x: Array, i: int, diagonal: Array, root: Array, n: Scalars
    ) -> tuple[Array, Array, Array]:
        """Return the new diagonal of axis i, its power, and the factor of the axis."""
        others = _all_but(x, i)
        sums = jnp.sum(x * x, axis=others) / (x.shape[i] if others else 1)
        diagonal = n.decay * diagonal + n.weight * sums
        root = self._power(diagonal, n)
        return diagonal, root, root

    def _diagonal_of_rows(
        self, g: RowSparse, x: Array, i: int, diagonal: Array, root: Array, n: Scalars
    ) -> tuple[Array, Array, Array]:
        """Like `_diagonal`, but axis 0 holds only the rows of `g`, and nothing decays."""
        sums = n.weight * jnp.sum(x * x, axis=_all_but(x, i))
        if i:
            diagonal = diagonal + sums
            root = self._power(diagonal, n)
            return diagonal, root, root
        diagonal = g.with_values(sums).add_to(diagonal)
        factor = self._power(g.take(diagonal), n)
        return diagonal, g.put(root, factor), factor

    def _power(self, diagonal: Array, n: Scalars) -> Array:
        zero = diagonal == 0
        return jnp.where(zero, 0, jnp.where(zero, 1, diagonal) ** (-n.alpha / self.rank))

    def _matrix(
        self, x: Array, i: int, matrix: Array, root: Array, n: Scalars
    ) -> tuple[Array, Array]:
        """Return the new statistics of axis i, and their root."""
        others = _all_but(x, i)

        def updated() -> Array:
            product = jnp.tensordot(x, x, axes=(others, others), precision=linalg.HIGHEST)
            return n.decay * matrix + n.weight * n.interval * product

        matrix = _computed_when(self.grow, n, updated, matrix)
        return matrix, _computed_when(
            self.renew, n, lambda: self._root(matrix / len(matrix), n), root
        )

    def _root(self, matrix: Array, n: Scalars) -> Array:
        # With a smaller ridge, the root of an eigenvalue of 0 would be that of a rounding error.
        ridge = jnp.maximum(n.epsilon, linalg.rounding(matrix))
        if self.p is None or len(matrix) == 1:
            return linalg.symmetric_power(matrix, -n.alpha / self.rank, ridge)
        ridge = ridge * jnp.eye(len(matrix), dtype=matrix.dtype)
        return linalg.inverse_root(linalg.square_root(matrix + ridge), self.p)


def _computed_when(flag: str | None, n: Scalars, compute: Callable[[], Array], old: Array) -> Array:
    """Return `compute()` if the flag is None or set, else `old`."""
    if flag is None:
        return compute()
    return lax.cond(getattr(n, flag), compute, lambda: old)


def _all_but(x: Array, i: int) -> tuple[int, ...]:
    return tuple(k for k in range(x.ndim) if k != i)


def at_least_vector(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape; for a scalar, that of a vector of one entry."""
    return shape or (1,)

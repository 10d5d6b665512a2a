"""Compressing what replicas send to factors of low rank, which follow the largest directions."""

import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform.distributed.wire.axis import Axes, as_varying, size_of, widen
from gradxform.distributed.wire.compression import Compression
from gradxform.distributed.wire.wire import Sent, still_to_send, sums
from gradxform.errors import name_of
from gradxform.leaves import Path, path_str
from gradxform.linalg import orthonormal
from gradxform.types import Array, PositiveInt
from gradxform.values.fields import value


class LowRank(NamedTuple):
    """The memory of `powersgd` for one array of matrices."""

    own: Array  # (..., m, n) float32; what this replica's factors leave out and is still to be sent
    right: Array  # (..., n, rank) float32; the right factor, the same on all replicas


@value
class powersgd(Compression):
    """Send two factors of low rank of each matrix, from one step of a power iteration.

    For a matrix M_i on replica i of N, with the right factor Q of the last exchange:

        P = orthonormal((1/N) sum_i M_i Q);  Q <- (1/N) sum_i M_i^T P
        the mean is taken to be P Q^T, and M_i - P Q^T is added to replica i's next matrix

    The matrices of an array are its last two dimensions. An array with fewer dimensions, or whose
    factors would not be smaller, travels whole. In two exchanges (m + n) rank numbers travel for a
    matrix of m n.

    Args:
      rank: the number of columns of the factors, at least 1 and at most the lesser side.

    Raises:
      ValueError: at init, if the rank is above the lesser side of a matrix.

    Reference: Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization, 2019, Algorithms 1 and 2.
    """

    rank: PositiveInt

    def first(self, path: Path, shape: tuple[int, ...]) -> LowRank | None:
        """Return the state of an array before anything is sent; None if it travels whole."""
        if len(shape) < 2 or 0 in shape:
            return None
        m, n = shape[-2:]
        if self.rank > min(m, n) > 1:
            raise ValueError(
                f"{name_of(self)}: rank must be at most {min(m, n)} for {path_str(path)} of shape "
                f"{shape}, got {self.rank}."
            )
        if self.rank * (m + n) >= m * n:
            return None
        # Random, so that no direction is left out; the same on all replicas, and in every run.
        key = jax.random.key(zlib.crc32("/".join(path).encode()))
        right = jax.random.normal(key, (*shape[:-2], n, self.rank), jnp.float32)
        return LowRank(jnp.zeros(shape, jnp.float32), right)

    def sum(
        self,
        x: Array,
        state: LowRank,
        axis: Axes,
        inner_axes: tuple[str, ...],
        ok: Array | bool,
        divisor: Array | int,
    ) -> tuple[Array, LowRank]:
        """Return the sum of matrices over the replicas as a product of factors, and the state.

        Args:
          x: this replica's matrices.
          state: the state.
          axis: the axis of replicas.
          inner_axes: axes along which all devices have the same matrices.
          ok: whether this replica's matrices count.
          divisor: the sum is divided by it: a number, or a count of the replicas that are ok.
        """

        def total(factor: Array) -> Array:
            ((whole,), _) = sums([Sent(factor, None, inner=inner_axes)], axis, ok, divisor)
            return whole

        full = as_varying(widen(x) + state.own, axis)
        left = orthonormal(total(full @ state.right))
        right = total(jnp.swapaxes(full, -1, -2) @ left)
        product = left @ jnp.swapaxes(right, -1, -2)
        # A divisor that is traced counts the contributors; a fixed one is for all replicas.
        share = divisor / size_of(axis) if isinstance(divisor, int) else 1.0
        residual = still_to_send(full - product * share, state.own, ok)
        # From zeros, or numbers that are not finite, the iteration would forget all directions.
        sides = {"axis": (-2, -1), "keepdims": True}
        usable = jnp.any(right != 0, **sides) & jnp.all(jnp.isfinite(right), **sides)
        return product, LowRank(residual, jnp.where(usable, right, state.right))

"""Dion: orthogonalization of the part of low rank of a momentum."""

import functools
import math
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import linalg
from gradxform.base import transform
from gradxform.errors import name_of, shown
from gradxform.numerics import cast, over
from gradxform.numerics.roots import norm
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.transforms.matrices.rule import MatrixRule, check_compute_dtype
from gradxform.transforms.tree_rules import live_key
from gradxform.types import Array, Decay, DType, Key, MatrixSlot, PositiveShare, StaticTree
from gradxform.values import Value


def check_share(part: Value, name: str) -> None:
    """Require a share that decides shapes to be known before any run."""
    x = getattr(part, name)
    if not isinstance(x, float):
        raise TypeError(
            f"{name_of(part)}: {name} decides shapes, so it must be a Python number, got "
            f"{shown(x)}. With inject_hyperparams, name it in static_args."
        )


def share_of(n: int, share: float) -> int:
    """Return how many of n are a share of them: rounded up, but not for a rounding of the share."""
    return math.ceil(share * n * (1 - 1e-9))


class DionState(NamedTuple):
    """State of `scale_by_dion`."""

    # For each parameter's B matrices, turned so that m <= n; at least float32.
    mu: MatrixSlot  # (B, m, n); the momentum, from which what was applied is taken
    q: MatrixSlot  # (B, n, r); the right factor of the last update


@transform
class scale_by_dion(MatrixRule):
    """Orthogonalize the part of low rank of a momentum, and keep the error for later steps.

    Update rule for a matrix, turned so that it has m <= n rows, from m = 0 and Q of Gaussian
    entries, (n, r), where r is `rank_fraction` of m:

        b = m + (1 - decay) g
        P = orthonormal columns that span b Q;    R = b^T P
        m <- b - (1 - decay) P R^T
        Q <- R with columns of norm 1
        u = P Q^T

    One step of a power iteration finds P and R, so that P R^T is near the best approximation of b
    of rank r. What it misses stays in m whole, and comes with later steps. A column of R that is 0
    adds nothing to u, and Q keeps its column.

    The QR decomposition is of an (m, r) matrix. With a `rank_fraction` of 1 the singular values of
    u are near 1, as with `scale_by_muon`.

    Differs from the paper in that m is (1 - decay) times the paper's, which overflows later; u is
    the same.

    Args:
      rank_fraction: the rank r as a share of the shorter side, in (0, 1], rounded up.
      decay: of the part of m that is applied, in [0, 1).
      key: the seed of the first Q: an integer or a PRNG key. All matrices with the same sides begin
        with the same Q.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: "bfloat16" for products of 16-bit factors, and exchanges of 16-bit gradients
        and updates on a mesh; the QR decomposition stays. None: the dtype of the gradient, at least
        float32. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, Algorithm 1.
    """

    rank_fraction: PositiveShare = 0.25
    decay: Decay = 0.95
    key: Key = 0
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)

    State = DionState
    locality = "array"

    def __post_init__(self):
        check_share(self, "rank_fraction")
        check_compute_dtype(self)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return a momentum of zeros, and Gaussian factors."""
        return DionState(
            mu=self.matrix_slots(params, lambda b, m, n, dtype: jnp.zeros((b, m, n), dtype)),
            q=self.matrix_slots(params, self._factor),
        )

    def _factor(self, count: int, m: int, n: int, dtype: Any) -> Array:
        """Return the first Q of a batch."""
        q = jax.random.normal(live_key(self.key), (n, share_of(m, self.rank_fraction)), "float32")
        return jnp.broadcast_to(cast(q, dtype), (count, *q.shape))

    def rule(self, g, m, q):
        """Return the update of a batch of matrices, the momentum and the factor."""
        m = m + (1 - self.decay) * g
        size = jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True, initial=0)
        if not q.size:
            return m, m, q
        b = over(m, size, 0)  # neither products nor squares overflow
        product = functools.partial(linalg.matmul_in, dtype=self.compute_dtype)
        p = linalg.orthonormal(product(b, q))
        r = product(jnp.swapaxes(b, -1, -2), p)
        pt = jnp.swapaxes(p, -1, -2)
        m = m - (1 - self.decay) * size * jnp.swapaxes(product(r, pt), -1, -2)
        lengths = norm(r, (-2,))
        new = over(r, lengths, 0)
        u = product(p, jnp.swapaxes(new, -1, -2))
        return u, m, jnp.where(lengths == 0, q, new)

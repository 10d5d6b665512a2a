"""Orthogonalization of a part of a momentum only: of low rank, or of some rows."""

import math
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import EmptyState, transform
from gradxform.errors import name_of, shown
from gradxform.leaves import align_params, align_slot, check_params, check_shapes
from gradxform.numerics import at_least_float32, cast, norm, over, promote
from gradxform.slots import zeros_like
from gradxform.states import check_state
from gradxform.transforms.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.transforms.matrix_rule import MatrixRule, axes_of_all
from gradxform.transforms.orthogonal import Orthogonalizing, orthogonalize_updates
from gradxform.transforms.tree_rules import live_key
from gradxform.types import (
    Array,
    Decay,
    DType,
    Key,
    MatrixSlot,
    OptState,
    Params,
    PositiveShare,
    Scalar,
    Slot,
    StaticTree,
    Updates,
)
from gradxform.values import Value

__all__ = [
    "scale_by_dion",
    "scale_by_dion2",
    "Dion2State",
    "DionState",
]


def _check_share(part: Value, name: str) -> None:
    """Require a share that decides shapes to be known before any run."""
    x = getattr(part, name)
    if not isinstance(x, float):
        raise TypeError(
            f"{name_of(part)}: {name} decides shapes, so it must be a Python number, got "
            f"{shown(x)}. With inject_hyperparams, name it in static_args."
        )


def _share_of(n: int, share: float) -> int:
    """Return how many of n are a share of them: rounded up, but not for a rounding of the share."""
    return math.ceil(share * n * (1 - 1e-9))


class DionState(NamedTuple):
    """State of `scale_by_dion`."""

    # Of each parameter's B matrices, turned so that m <= n; at least float32.
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

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, Algorithm 1.
    """

    rank_fraction: PositiveShare = 0.25
    decay: Decay = 0.95
    key: Key = 0
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)

    State = DionState
    locality = "array"

    def __post_init__(self):
        _check_share(self, "rank_fraction")
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params: Params) -> DionState:
        """Return a momentum of zeros, and Gaussian factors."""
        check_params(self, params)
        return DionState(
            mu=self.matrix_slots(params, lambda b, m, n, dtype: jnp.zeros((b, m, n), dtype)),
            q=self.matrix_slots(params, self._factor),
        )

    def _factor(self, count: int, m: int, n: int, dtype: Any) -> Array:
        """Return the first Q of a batch."""
        q = jax.random.normal(live_key(self.key), (n, _share_of(m, self.rank_fraction)), "float32")
        return jnp.broadcast_to(cast(q, dtype), (count, *q.shape))

    def rule(self, g: Array, m: Array, q: Array) -> tuple[Array, Array, Array]:
        """Return the update of a batch of matrices, the momentum and the factor."""
        m = m + (1 - self.decay) * g
        size = jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True, initial=0)
        if not q.size:
            return m, m, q
        b = over(m, size, 0)  # neither products nor squares overflow
        p, _ = jnp.linalg.qr(jnp.matmul(b, q))
        r = jnp.matmul(jnp.swapaxes(b, -1, -2), p)
        pt = jnp.swapaxes(p, -1, -2)
        m = m - (1 - self.decay) * size * jnp.swapaxes(jnp.matmul(r, pt), -1, -2)
        lengths = norm(r, (-2,))
        new = over(r, lengths, 0)
        u = jnp.matmul(p, jnp.swapaxes(new, -1, -2))
        return u, m, jnp.where(lengths == 0, q, new)


class Dion2State(NamedTuple):
    """State of `scale_by_dion2`."""

    mu: Slot  # like params, at least float32; the momentum


@transform
class scale_by_dion2(Orthogonalizing):
    """Orthogonalize the largest rows of a momentum, and let only these decay.

    Update rule for a matrix, turned so that it has m <= n rows, from m = 0:

        m <- m + (1 - decay) g
        K = the rows of m of largest sum |m_ij|, `fraction` of them
        u_K = NewtonSchulz(m_K),    0 in the other rows
        m_K <- decay m_K

    A row that is left out stays in m whole, and so comes in a later step. Only the rows in K are
    handed to the orthogonalization: its products fall with the fraction. The rows are picked from
    whole matrices, so that it cannot run on pieces of them.

    Differs from its source in that m is (1 - decay) times the sum there; u is the same.

    Args:
      fraction: the share of the rows in K, in (0, 1], rounded up.
      decay: of the rows in K, in [0, 1).
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: as in `orthogonalize_updates`, at least 0. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Ahn et al., Dion2: A Simple Method to Shrink Matrix in Muon, 2025; `Dion2` of
    https://github.com/microsoft/dion.
    """

    fraction: PositiveShare = 0.25
    decay: Decay = 0.95
    mu_dtype: DType = None

    State = Dion2State
    sees_pieces = False  # rows are picked from whole matrices

    def __post_init__(self):
        super().__post_init__()
        _check_share(self, "fraction")

    def init(self, params: Params) -> Dion2State:
        """Return a momentum of zeros."""
        check_params(self, params)
        axes_of_all(self, self.weight_dimension_numbers, params, uneven=False)
        return Dion2State(mu=zeros_like(params, self.mu_dtype))

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the update of every matrix, in the rows that are largest."""
        state = check_state(self, state, Dion2State)
        gs, treedef = jax.tree.flatten(updates)
        for i, g in enumerate(gs):
            engine.check_gradient([self], updates, i, g)
        mu = align_slot(self, updates, treedef, state, "mu")
        if params is not None:
            align_params(self, updates, treedef, params)
        check_shapes(self, updates, mu.leaves, "the state's mu has")
        axes = axes_of_all(self, self.weight_dimension_numbers, updates, uneven=False)
        views = [engine.view_of(a, jnp.shape(g), False) for a, g in zip(axes, gs, strict=True)]
        counts = [_share_of(view.sides()[1], self.fraction) for view in views]
        picked = engine.map_rows(
            _picked, [gs, mu.leaves], self.decay, statics=list(zip(views, counts, strict=True))
        )
        rows = jax.tree.unflatten(treedef, [x for x, _, _ in picked])
        done, _ = self._inner().update(rows, EmptyState())
        columns = [jax.tree.leaves(done), [index for _, index, _ in picked], gs]
        us = engine.map_rows(_put_back, columns, statics=views)
        new = mu.rebuilt([m for _, _, m in picked])
        return jax.tree.unflatten(treedef, us), state._replace(mu=new)

    def _inner(self) -> orthogonalize_updates:
        """Return the orthogonalization of batches of rows."""
        return orthogonalize_updates(
            ns_coeffs=self.ns_coeffs,
            ns_steps=self.ns_steps,
            eps=self.eps,
            preconditioning=self.preconditioning,
            compute_dtype=self.compute_dtype,
            weight_dimension_numbers=MuonDimensionNumbers(1, 2),
        )


def _picked(g: Array, m: Array, decay: Scalar, how: tuple[Any, int]) -> tuple[Array, Array, Array]:
    """Return the largest rows of each matrix of a momentum, their indices, and the momentum."""
    view, count = how
    dtype = at_least_float32(promote(g.dtype, m.dtype))
    decay = engine.widened(decay, dtype)
    batch = view.batch(cast(m, dtype) + (1 - decay) * cast(g, dtype))
    _, index = lax.top_k(jnp.sum(jnp.abs(batch), axis=-1), count)
    rows = jnp.take_along_axis(batch, index[..., None], axis=1)
    new = batch.at[_rows(index)].set(decay * rows)
    return rows, index, cast(view.leaf(new), m.dtype)


def _put_back(rows: Array, index: Array, g: Array, view: Any) -> Array:
    """Return an update with these rows, and zeros in the others, in the shape of the gradient."""
    count, m, n = view.sides()
    batch = jnp.zeros((count, m, n), rows.dtype).at[_rows(index)].set(rows)
    return cast(view.leaf(batch), g.dtype)


def _rows(index: Array) -> tuple[Array, Array]:
    """Return the places of rows in a batch of matrices, of which `index` has those in each."""
    return lax.broadcasted_iota(index.dtype, index.shape, 0), index

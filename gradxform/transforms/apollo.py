"""APOLLO: gradients scaled by how Adam scales random projections of them."""

import zlib
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.errors import require_at_least, require_one_of
from gradxform.leaves import dtype_of, is_hole, shape_of, with_paths
from gradxform.linalg.products import matmul
from gradxform.numerics import (
    at_least_float32,
    bias_correction,
    not_zero,
    over,
    plus,
    safe_increment,
)
from gradxform.numerics.roots import norm, over_root
from gradxform.slots import real_zeros_like, zero_count, zeros_like
from gradxform.transforms.matrices.dimensions import (
    GaLoreDimensionNumbers,
    MatrixAxes,
    check_numbers,
    low_rank_axes,
)
from gradxform.transforms.norm_growth import growth_limit
from gradxform.transforms.tree_rules import live_key
from gradxform.types import (
    Array,
    AtLeastOne,
    Choice,
    Decay,
    Finite,
    Key,
    NonNegative,
    NonNegativeSlot,
    Params,
    PositiveInt,
    Scalar,
    Size,
    Slot,
    StaticTree,
    Updates,
)

__all__ = [
    "scale_by_apollo",
    "ScaleByApolloState",
]


class ScaleByApolloState(NamedTuple):
    """State of `scale_by_apollo`.

    The projections of a matrix are (*batch, n, rank) or (*batch, rank, k), along its longer side.
    """

    count: Array  # int32 scalar; the number of updates so far
    rng_key: Array  # the PRNG key of all draws
    mu: Slot  # at least float32; the first moment m, of the projections of matrices
    nu: NonNegativeSlot  # like mu; the second moment v
    # (*batch,), at least float32; the norm of a matrix's last S that was not zero; 0 before it
    last_norm: NonNegativeSlot


class _ApolloProjection(NamedTuple):
    """A matrix that is projected."""

    axes: MatrixAxes
    number: int  # of its path, for draws of its own


@transform
class scale_by_apollo(ArrayRule):
    """Scale each channel of a matrix as Adam scales a random projection of it.

    Update rule for a matrix G of n rows and k columns, from m = v = 0 and t = 1, 2, ...; every
    `update_proj_gap` steps, from the first, P is drawn anew, normal with a variance of 1 / rank:

        R = P G                                      (k >= n; else R = G P)
        m <- b1 m + (1 - b1) R
        v <- b2 v + (1 - b2) R^2
        N = m / (sqrt(v) + eps)
        s_j = |N_j| / (|R_j| + eps_norm)             (column by column; else row by row)
        S_ij = s_j G_ij
        S <- S min(1, growth (|S_last| + eps_norm) / |S|)
        u = scale (sqrt(1 - b2^t) / (1 - b1^t)) S

    Each array of another kind has the rule of `scale_by_tf_adam`, with the same decays and eps.

    P follows from the key, the step and the parameter's path, and is not stored: a matrix needs
    2 rank max(n, k) numbers. The eps is added before the correction, as in PyTorch's forms of it.
    S_last is the last S that was not 0; the first one may have any norm. (In pytorch_optimizer one
    gradient of zeros stops a matrix for good.)

    Args:
      rank: the number of rows of P, at least 1, or the shorter side of a matrix where that is less;
        a quarter of a side in the paper.
      update_proj_gap: the number of steps for which P is kept, at least 1.
      scale: multiplies the updates of matrices, finite.
      b1: the decay of m, in [0, 1).
      b2: the decay of v, in [0, 1).
      eps: added to the root, at least 0.
      weight_dimension_numbers: as in `scale_by_galore`.
      granularity: "channel", or "tensor" for one s = |N| / |R| of the whole matrix. Keyword-only.
      growth: the largest growth of |S| from one step to the next, at least 1; infinite for any.
        Keyword-only.
      eps_norm: added to norms in divisors, at least 0. Keyword-only.
      low_rank: whether S is s_j R, which is projected back by P^T at last. Keyword-only.
      key: the seed of the projections: an integer or a PRNG key. Keyword-only.

    Raises:
      ValueError: at init and update, if dimension numbers do not fit a parameter.

    Reference: Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024, Algorithm 1.
    """

    rank: Size = 256
    update_proj_gap: PositiveInt = 200
    scale: Finite = 1.0
    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-6
    weight_dimension_numbers: StaticTree = None
    granularity: Choice = field(default="channel", kw_only=True)
    growth: AtLeastOne = field(default=1.01, kw_only=True)
    eps_norm: NonNegative = field(default=1e-8, kw_only=True)
    low_rank: bool = field(default=False, kw_only=True)
    key: Key = field(default=0, kw_only=True)

    State = ScaleByApolloState
    locality = "array"
    set_by = (("rng_key", "key"),)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "rank")
        require_one_of(self, "granularity", ("channel", "tensor"))
        check_numbers(self, "weight_dimension_numbers", GaLoreDimensionNumbers)

    def statics(self, updates: Updates) -> list[_ApolloProjection | None]:
        """Return for every leaf how it is projected."""
        paths = [path for path, x in with_paths(updates) if not is_hole(x)]
        every = low_rank_axes(self, self.weight_dimension_numbers, updates)
        return [
            None if axes is None else _ApolloProjection(axes, zlib.crc32("/".join(path).encode()))
            for path, axes in zip(paths, every, strict=True)
        ]

    def init(self, params: Params) -> ScaleByApolloState:
        """Return moments of zeros, and the key."""
        ps, treedef = jax.tree.flatten(params)
        projected, norms = [], []
        for p, how in zip(ps, self.statics(params), strict=True):
            dtype, batch = at_least_float32(dtype_of(p)), ()
            if how is not None:
                *batch, n, k = _apollo_stack_shape(how.axes, shape_of(p))
                short = min(self.rank, n, k)
                p = jnp.zeros((*batch, *((n, short) if n > k else (short, k))), dtype)
            projected.append(p)
            norms.append(jnp.zeros(tuple(batch), dtype))
        tree = jax.tree.unflatten(treedef, projected)
        return ScaleByApolloState(
            count=zero_count(),
            rng_key=live_key(self.key),
            mu=zeros_like(tree),
            nu=real_zeros_like(tree),
            last_norm=jax.tree.unflatten(treedef, norms),
        )

    def prepare(
        self, updates: None, state: ScaleByApolloState, params: Params | None
    ) -> tuple[Any, ...]:
        """Return the advanced count, the key of this period, and the correction of both moments."""
        key = jax.random.fold_in(state.rng_key, state.count // self.update_proj_gap)
        count = safe_increment(state.count)
        root = jnp.sqrt(1 / bias_correction(self.b2, count))
        return state._replace(count=count), key, root * bias_correction(self.b1, count)

    def rule(
        self,
        g: Array,
        m: Array,
        v: Array,
        last_norm: Array,
        p: Array | None,
        key: Array,
        factor: Scalar,
        how: _ApolloProjection | None,
    ) -> tuple[Array, Array, Array, Array]:
        """Return the update, the moments and the norm."""
        if how is None:
            u, m, v = self._moments(g, m, v)
            return factor * u, m, v, last_norm
        stack = how.axes.to_stacks(g)
        n, k = stack.shape[-2:]
        rank, axis = min(self.rank, n, k), -1 if n > k else -2
        shape = (*stack.shape[:-2], rank, min(n, k))
        P = _apollo_normal(jax.random.fold_in(key, how.number), shape, g.dtype) / rank**0.5
        R = matmul(stack, jnp.swapaxes(P, -1, -2)) if n > k else matmul(P, stack)
        N, m, v = self._moments(R, m, v)
        axes = axis if self.granularity == "channel" else (-2, -1)
        eps = not_zero(self.eps_norm, g.dtype)
        s = over(norm(N, axes), plus(norm(R, axes), eps), eps)
        S = s * (R if self.low_rank else stack)
        size = norm(S, (-2, -1))[..., 0, 0]
        shrunk, last_norm = growth_limit(size, last_norm, self.growth, eps)
        S = shrunk[..., None, None] * S
        if self.low_rank:
            S = matmul(S, P) if n > k else matmul(jnp.swapaxes(P, -1, -2), S)
        return (self.scale * factor) * how.axes.from_matrices(S, g.shape), m, v, last_norm

    def _moments(self, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
        """Return Adam's direction before its correction, and its moments."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * g * g
        return over_root(m, v, self.eps), m, v


def _apollo_stack_shape(axes: MatrixAxes, shape: tuple[int, ...]) -> tuple[int, ...]:
    _, n, k = axes.sizes(shape)
    return (*(shape[i] for i in axes.batch), n, k)


def _apollo_normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return standard normal numbers; where recordings of PyTorch are replayed, its own."""
    return jax.random.normal(key, shape, dtype)

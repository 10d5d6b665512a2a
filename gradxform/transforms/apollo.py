"""APOLLO: gradients scaled by how Adam scales random projections of them."""

import math
import zlib
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.errors import require_at_least, require_one_of
from gradxform.leaves import Path, dtype_of, is_hole, shape_of, with_paths
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
from gradxform.transforms.matrices.array_norms import whole_norm, whole_norms
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
    PositiveInt,
    Size,
    Slot,
    StaticTree,
    Updates,
)


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


class _Projection(NamedTuple):
    """A stack of matrices that is projected, of which a device may have a piece.

    Mesh axes that cut the batch cut the projections, too. The others divide them along the side
    that they keep, so that devices share the moments whichever side of the matrices is cut.
    """

    axes: MatrixAxes
    number: int  # of its path, for draws of its own
    shape: tuple[int, ...]  # of the whole array
    cut: engine.Cut
    dividing: tuple[str, ...]  # the mesh axes that divide projections along the kept side

    @classmethod
    def of(
        cls, path: Path, axes: MatrixAxes, shape: tuple[int, ...], cut: engine.Cut
    ) -> "_Projection":
        """Return how an array is projected and divided."""
        new = cls(axes, zlib.crc32("/".join(path).encode()), shape, cut, ())
        if engine.cuts_rows_only() and new._kept_axis:
            return new
        side, dividing = math.prod(shape[d] for d in new.kept), ()
        for name, size in cut.sizes:
            if size > 1 and name not in new.cutting(axes.batch) and side % size == 0:
                side, dividing = side // size, (*dividing, name)
        return new._replace(dividing=dividing)

    @property
    def turned(self) -> bool:
        """Whether the columns are the shorter side, which is projected."""
        _, n, k = self.axes.sizes(self.shape)
        return n > k

    @property
    def projected(self) -> tuple[int, ...]:
        """The dimensions of the side that is projected."""
        return self.axes.columns if self.turned else self.axes.rows

    @property
    def kept(self) -> tuple[int, ...]:
        """The dimensions of the side that a projection shares with the array."""
        return self.axes.rows if self.turned else self.axes.columns

    @property
    def _kept_axis(self) -> int:
        return len(self.axes.batch) + (not self.turned)

    def cutting(self, dims: tuple[int, ...]) -> tuple[str, ...]:
        """Return the mesh axes that cut some dimensions."""
        return tuple(name for name, dim in self.cut.cuts if dim in dims)

    def moments_shape(self, piece: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Return the shape of the moments on a device with a piece of that shape."""
        batch, sizes = tuple(piece[d] for d in self.axes.batch), dict(self.cut.sizes)
        side = math.prod(self.shape[d] for d in self.kept)
        side //= math.prod(sizes[name] for name in self.dividing)
        return (*batch, side, rank) if self.turned else (*batch, rank, side)

    def projector(self, key: Array, rank: int, dtype: Any) -> Array:
        """Return the columns of P that belong to the piece, (*batch, rank, ...)."""
        batch = tuple(self.shape[d] for d in self.axes.batch)
        side = math.prod(self.shape[d] for d in self.projected)
        key = jax.random.fold_in(key, self.number)
        P = _normal(key, (*batch, rank, side), dtype) / rank**0.5
        P = engine.own_piece(P, self._cut_along(self.axes.batch, 0))
        return self._own_side(P, self.projected, P.ndim - 1)

    def projection(self, product: Array, piece: tuple[int, ...]) -> Array:
        """Return this device's part of the projection, from the products of all pieces."""
        R, axis = product, self._kept_axis
        if self.cutting(self.kept) and not self._shares_kept_side():
            sides = [piece[d] for d in self.kept]
            R = jnp.reshape(R, (*R.shape[:axis], *sides, *R.shape[axis + 1 :]))
            R = engine.exchange_now().gather(R, self._cut_along(self.kept, axis).cuts)
            R = jnp.reshape(R, (*product.shape[:axis], -1, *product.shape[axis + 1 :]))
        (R,) = engine.over_pieces((R, self.cutting(self.projected)))
        return R if self._shares_kept_side() else engine.own_piece(R, self._division())

    def of_piece(self, x: Array) -> Array:
        """Return what belongs to the piece of the array, of what is divided as projections are."""
        axis = self._kept_axis
        if x.shape[axis] == 1 or self._shares_kept_side():
            return x
        (x,) = engine.over_pieces((engine.among_zeros(x, self._division()), self.dividing))
        return self._own_side(x, self.kept, axis)

    def _shares_kept_side(self) -> bool:
        """Whether what the piece has of the kept side is the device's part of projections."""
        return self.dividing == self.cutting(self.kept) == self.cutting(self.kept[:1])

    def _division(self) -> engine.Cut:
        return engine.Cut(tuple((name, self._kept_axis) for name in self.dividing))

    def _cut_along(self, dims: tuple[int, ...], first: int) -> engine.Cut:
        """Return how some dimensions are cut where they are next to each other, from `first`."""
        cuts = ((name, first + dims.index(dim)) for name, dim in self.cut.cuts if dim in dims)
        return engine.Cut(tuple(cuts))

    def _own_side(self, x: Array, dims: tuple[int, ...], axis: int) -> Array:
        """Return what belongs to the piece, of an array with a whole side along an axis."""
        sides = [self.shape[d] for d in dims]
        y = jnp.reshape(x, (*x.shape[:axis], *sides, *x.shape[axis + 1 :]))
        y = engine.own_piece(y, self._cut_along(dims, axis))
        return jnp.reshape(y, (*x.shape[:axis], -1, *x.shape[axis + 1 :]))


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

    Under `zero1` and `shard_matrices` the devices share m and v by the columns of R (k >= n).
    Where they cut the other side, R and s are summed over them; |S| always is.

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
    sees_pieces = True
    set_by = (("rng_key", "key"),)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "rank")
        require_one_of(self, "granularity", ("channel", "tensor"))
        check_numbers(self, "weight_dimension_numbers", GaLoreDimensionNumbers)

    def statics(self, updates: Updates) -> list[_Projection | None]:
        """Return for every leaf how it is projected."""
        whole = engine.whole_shapes(updates)
        leaves = [(path, shape_of(x)) for path, x in with_paths(whole) if not is_hole(x)]
        every = low_rank_axes(self, self.weight_dimension_numbers, whole)
        return [
            None if axes is None else _Projection.of(path, axes, shape, cut)
            for (path, shape), axes, cut in zip(leaves, every, engine.cuts_of(updates), strict=True)
        ]

    def init(self, params):
        """Return moments of zeros, and the key."""
        ps, treedef = jax.tree.flatten(params)
        projected, norms = [], []
        for p, how in zip(ps, self.statics(params), strict=True):
            dtype, batch = at_least_float32(dtype_of(p)), ()
            if how is not None:
                rank = min(self.rank, *how.axes.sizes(how.shape)[1:])
                p = jnp.zeros(how.moments_shape(shape_of(p), rank), dtype)
                batch = p.shape[:-2]
            projected.append(p)
            norms.append(jnp.zeros(batch, dtype))
        tree = jax.tree.unflatten(treedef, projected)
        return ScaleByApolloState(
            count=zero_count(),
            rng_key=live_key(self.key),
            mu=zeros_like(tree),
            nu=real_zeros_like(tree),
            last_norm=jax.tree.unflatten(treedef, norms),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count, the key of this period, and the correction of both moments."""
        key = jax.random.fold_in(state.rng_key, state.count // self.update_proj_gap)
        count = safe_increment(state.count)
        root = jnp.sqrt(1 / bias_correction(self.b2, count))
        return state._replace(count=count), key, root * bias_correction(self.b1, count)

    def rule(self, g, m, v, last_norm, p, key, factor, how):
        """Return the update, the moments and the norm."""
        if how is None:
            u, m, v = self._moments(g, m, v)
            return factor * u, m, v, last_norm
        stack, rank = how.axes.to_stacks(g), m.shape[-1 if how.turned else -2]
        P = how.projector(key, rank, g.dtype)
        R = matmul(stack, jnp.swapaxes(P, -1, -2)) if how.turned else matmul(P, stack)
        R = how.projection(R, g.shape)
        N, m, v = self._moments(R, m, v)
        eps = not_zero(self.eps_norm, g.dtype)
        if self.granularity == "channel":
            of_N, of_R = (norm(x, -1 if how.turned else -2) for x in (N, R))
        else:
            of_N, of_R = whole_norms([N, R], (-2, -1), how.dividing)
        s = over(of_N, plus(of_R, eps), eps)
        S = s * R if self.low_rank else how.of_piece(s) * stack
        names = how.dividing if self.low_rank else how.cutting(how.projected + how.kept)
        size = whole_norm(S, (-2, -1), names)[..., 0, 0]
        shrunk, last_norm = growth_limit(size, last_norm, self.growth, eps)
        S = shrunk[..., None, None] * S
        if self.low_rank:
            S = how.of_piece(S)
            S = matmul(S, P) if how.turned else matmul(jnp.swapaxes(P, -1, -2), S)
        return (self.scale * factor) * how.axes.from_matrices(S, g.shape), m, v, last_norm

    def _moments(self, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
        """Return Adam's direction before its correction, and its moments."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * g * g
        return over_root(m, v, self.eps), m, v


def _normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return standard normal numbers; where recordings of PyTorch are replayed, its own."""
    return jax.random.normal(key, shape, dtype)

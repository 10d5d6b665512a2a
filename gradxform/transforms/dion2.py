"""Dion2: orthogonalization of some rows of a momentum."""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import EmptyState, transform
from gradxform.errors import name_of, require_at_least
from gradxform.leaves import align_params, align_slot, check_shapes, is_hole, path_at, with_paths
from gradxform.leaves.states import check_state
from gradxform.leaves.storage import as_kept, as_seen
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.slots import zeros_like
from gradxform.transforms.dion import check_share, share_of
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, axes_of_all
from gradxform.transforms.orthogonal import Orthogonalizing, orthogonalize_updates
from gradxform.types import (
    Array,
    Decay,
    DType,
    PositiveShare,
    Scalar,
    Size,
    Slot,
)


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
    handed to the orthogonalization: its products fall with the fraction, and on a mesh
    (`distributed.shard_matrices`, `distributed.zero1`) so do the bytes that devices exchange.

    On a mesh that cuts the rows, every device picks from its own, the same number as the others.
    Say so with `groups`: K then has the largest rows of each group of neighbours, on a mesh or not.
    Where the columns are cut, the sums are added over the devices first.

    Differs from its source in that m is (1 - decay) times the sum there; u is the same.

    Args:
      fraction: the share of the rows in K, in (0, 1], rounded up in each group.
      decay: of the rows in K, in [0, 1).
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: as in `orthogonalize_updates`, at least 0. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.
      groups: into how many groups of neighbours the rows are divided, at least 1; for m rows, the
        greatest common divisor of `groups` and m. A multiple of the number of devices that cut the
        rows. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; if
        devices cut rows within a group.

    Reference: Ahn et al., Dion2: A Simple Method to Shrink Matrix in Muon, 2025; `Dion2` of
    https://github.com/microsoft/dion.
    """

    fraction: PositiveShare = 0.25
    decay: Decay = 0.95
    mu_dtype: DType = None
    groups: Size = field(default=1, kw_only=True)

    State = Dion2State

    def __post_init__(self):
        super().__post_init__()
        check_share(self, "fraction")
        require_at_least(self, 1, "groups")

    def init(self, params):
        """Return a momentum of zeros."""
        self._pickings(params)
        return Dion2State(mu=zeros_like(params, self.mu_dtype))

    def update(self, updates, state, params=None, **extra):
        """Return the update of every matrix, in the rows that are largest."""
        state = check_state(self, state, Dion2State)
        gs, treedef = jax.tree.flatten(updates)
        for i, g in enumerate(gs):
            engine.check_gradient([self], updates, i, g)
        mu = align_slot(self, updates, treedef, state, "mu")
        if params is not None:
            align_params(self, updates, treedef, params)
        check_shapes(self, updates, mu.leaves, "the state's mu has")
        hows = self._pickings(updates)
        ms = [*map(as_seen, mu.leaves)]
        arrays = [[how.array(x) for how, x in zip(hows, xs, strict=True)] for xs in (gs, ms)]
        scores = engine.map_rows(_row_scores, arrays, self.decay, statics=hows)
        scores = _scores_over_devices(scores, hows)
        picked = engine.map_rows(_picked_rows, [*arrays, scores], self.decay, statics=hows)
        rows = jax.tree.unflatten(treedef, [x for x, _, _ in picked])
        paths = [path for path, x in with_paths(updates) if not is_hole(x)]
        cuts = {path: how.cuts_of_rows() for path, how in zip(paths, hows, strict=True)}
        # The rows are new arrays, which devices may divide in another way than the leaves.
        with engine.cut_anew(cuts):
            orthogonal, _ = self._inner().update(rows, EmptyState())
        columns = [jax.tree.leaves(orthogonal), [index for _, index, _ in picked], arrays[0]]
        us = engine.map_rows(_put_back_rows, columns, statics=hows)
        us = [how.piece(u) for how, u in zip(hows, us, strict=True)]
        new = [how.piece(m) for how, (_, _, m) in zip(hows, picked, strict=True)]
        new = [*map(as_kept, new, mu.leaves)]
        return jax.tree.unflatten(treedef, us), state._replace(mu=mu.rebuilt(new))

    def _pickings(self, tree: Any) -> list["_Picking"]:
        """Return how the rows of each leaf, or of this device's piece of it, are picked."""
        whole = engine.whole_shapes(tree)
        axes = axes_of_all(self, self.weight_dimension_numbers, whole, uneven=False)
        shapes = [jnp.shape(x) for x in jax.tree.leaves(tree)]
        pickings = []
        layers = engine.layer_axes(tree)
        for i, (a, shape, cut) in enumerate(zip(axes, shapes, engine.cuts_of(tree), strict=True)):
            view = engine.view_of(a, shape, False, cut)._replace(layers=layers[i] if layers else ())
            m = view.sides()[1]  # the shorter side: a tall matrix is turned
            groups = math.gcd(self.groups, m)
            how = _Picking(view, groups, share_of(m // groups, self.fraction), cut)
            # Pieces of rows that are not neighbours would make other groups than the whole does.
            if view.place == "scattered" or (how.cut_side() == 0 and not how.in_order()):
                whole_view = engine.view_of(a, cut.whole(shape), False, cut._replace(cuts=()))
                how = how._replace(view=whole_view)
            if how.cut_side() == 0 and groups % how.pieces():
                raise ValueError(
                    f"{name_of(self)}: the {m} rows of {path_at(tree, i)} are cut into "
                    f"{how.pieces()} pieces, and the largest are picked from {groups} group(s). "
                    f"Give groups={how.pieces()}, or cut the other side."
                )
            pickings.append(how)
        return pickings

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


class _Picking(NamedTuple):
    """How rows are picked from the matrices of one leaf."""

    view: Any  # of this device's piece, or of the whole array where the pieces must be gathered
    groups: int  # of the rows of a whole matrix
    count: int  # of rows from each group
    cut: Any  # of the leaf

    @property
    def gathered(self) -> bool:
        """Whether matrices are picked from in the array of all devices."""
        return bool(self.cut.cuts) and not self.view.cut.cuts

    def array(self, x: Array) -> Array:
        """Return the array in which rows are picked."""
        return engine.exchange_now().gather(x, self.cut.cuts) if self.gathered else x

    def piece(self, x: Array) -> Array:
        """Undo `array`."""
        return engine.own_piece(x, self.cut) if self.gathered else x

    def cut_side(self) -> int | None:
        """Return 0 if each device has a piece of the rows, 1 if of the columns; otherwise None."""
        if self.view.place != "cut":
            return None
        return 0 if self._moved() in self._axes_of_rows() else 1

    def in_order(self) -> bool:
        """Whether pieces of the rows are neighbours in the whole."""
        return self._axes_of_rows()[0] == self._moved()

    def _moved(self) -> int:
        return self.view.axes.moved(self.cut.cuts[0][1])

    def _axes_of_rows(self) -> tuple[int, ...]:
        axes, _ = self.view.axes.expanded(self.view.shape)
        return axes.columns if self.view.turned else axes.rows

    def pieces(self) -> int:
        """Return how many devices have a piece of each matrix."""
        sizes = dict(self.view.cut.sizes)
        return math.prod(sizes[axis] for axis in self.view.cut.axes)

    def summed_over(self) -> tuple[str, ...]:
        """Return the mesh axes over which the sums of the rows are added."""
        return self.view.cut.axes if self.cut_side() == 1 else ()

    def batch(self, x: Array) -> Array:
        """Return the rows here in their groups, (matrices, groups, rows, columns)."""
        groups = self.groups // self.pieces() if self.cut_side() == 0 else self.groups
        x = self.view.batch(x)
        return jnp.reshape(x, (x.shape[0], groups, x.shape[1] // groups, x.shape[2]))

    def leaf(self, x: Array) -> Array:
        """Undo `batch`."""
        return self.view.leaf(_ungrouped_rows(x))

    def cuts_of_rows(self) -> tuple[tuple[str, int], ...]:
        """Return the mesh axes that cut the picked rows (matrices, rows, columns)."""
        side = self.cut_side()
        return tuple((axis, 0 if side is None else 1 + side) for axis in self.view.cut.axes)


def _ungrouped_rows(x: Array) -> Array:
    """Return rows in groups (matrices, groups, rows, columns) without the axis of the groups."""
    matrices, groups, rows, columns = x.shape
    return jnp.reshape(x, (matrices, groups * rows, columns))


def _scores_over_devices(scores: list[Array], hows: Sequence[_Picking]) -> list[Array]:
    """Return the sums of whole rows: one exchange for all leaves that are cut alike."""
    out = list(scores)
    for axes in dict.fromkeys(how.summed_over() for how in hows):
        if axes:
            indices = [i for i, how in enumerate(hows) if how.summed_over() == axes]
            dtype = promote(*(out[i].dtype for i in indices))
            flat = engine.joined([cast(jnp.ravel(out[i]), dtype) for i in indices])
            total = engine.exchange_now().psum(flat, axes)
            parts = engine.parted(total, [out[i].size for i in indices])
            for i, part in zip(indices, parts, strict=True):
                out[i] = jnp.reshape(part, out[i].shape)
    return out


def _momentum(g: Array, m: Array, decay: Scalar, how: _Picking) -> Array:
    dtype = at_least_float32(promote(g.dtype, m.dtype))
    decay = engine.widened(decay, dtype)
    return how.batch(cast(m, dtype) + (1 - decay) * cast(g, dtype))


def _row_scores(g: Array, m: Array, decay: Scalar, how: _Picking) -> Array:
    """Return the sum of absolute values in each row of the next momentum."""
    return jnp.sum(jnp.abs(_momentum(g, m, decay, how)), axis=-1)


def _picked_rows(
    g: Array, m: Array, scores: Array, decay: Scalar, how: _Picking
) -> tuple[Array, Array, Array]:
    """Return the largest rows of each matrix, their places in their groups, and the momentum."""
    batch = _momentum(g, m, decay, how)
    _, index = lax.top_k(scores, how.count)
    rows = jnp.take_along_axis(batch, index[..., None], axis=2)
    new = batch.at[_row_indices(index)].set(engine.widened(decay, batch.dtype) * rows)
    return _ungrouped_rows(rows), index, cast(how.leaf(new), m.dtype)


def _put_back_rows(rows: Array, index: Array, g: Array, how: _Picking) -> Array:
    """Return an update with these rows, and zeros in the others, in the shape of the gradient."""
    batch = jnp.zeros_like(how.batch(g), rows.dtype)
    batch = batch.at[_row_indices(index)].set(jnp.reshape(rows, (*index.shape, rows.shape[-1])))
    return cast(how.leaf(batch), g.dtype)


def _row_indices(index: Array) -> tuple[Array, ...]:
    """Return the places of rows in groups of matrices; `index` has those in each group."""
    matrices, groups = (lax.broadcasted_iota(index.dtype, index.shape, k) for k in (0, 1))
    return matrices, groups, index

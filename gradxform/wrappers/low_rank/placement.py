"""GaLore on pieces of arrays: where projectors and projections lie, and how they come together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform._jax.versions import varying_like
from gradxform.linalg.products import adjoint
from gradxform.numerics import cast
from gradxform.slots import zeros_along
from gradxform.transforms.matrices.dimensions import MatrixAxes
from gradxform.transforms.matrices.leaf import leaf_of
from gradxform.types import Array

__all__ = []

# Mesh axes, in order, each with the dimension that it cuts.
Cuts = tuple[tuple[str, int], ...]


def projects_rows(n: int, k: int, shorter: bool) -> bool:
    """Whether the rows of a matrix of n rows and k columns are projected, and not its columns."""
    return (n >= k) != shorter


class Placement(NamedTuple):
    """How one array, of which a device may have a piece, is projected.

    Projector and projection have the batch of the array, if it has one, as their first axes. What
    is cut along the batch stays so: a device has the projectors of its own matrices. Other mesh
    axes divide the projector along its side, and the projection along the side that it
    shares with the array, or else along the rank. A product needs the rows of the projector that
    belong to the device's piece, and gives the columns of the projection that belong to it. Where
    the array is cut along the same side, the device has them; else they are gathered first.
    """

    axes: MatrixAxes | None  # None if it is not projected
    shape: tuple[int, ...]  # of this device's piece
    cut: engine.Cut
    max_rank: int  # the rank, unless a side is shorter
    shorter: bool = False  # whether the shorter side is projected

    @property
    def batch(self) -> tuple[int, ...]:
        """The lengths of the axes that are a batch of matrices, of the whole array."""
        assert self.axes is not None
        shape = self.cut.whole(self.shape)
        return tuple(shape[d] for d in self.axes.batch)

    @property
    def sides(self) -> tuple[int, int]:
        """The rows and columns of a whole matrix."""
        assert self.axes is not None
        return self.axes.sizes(self.cut.whole(self.shape))[1:]

    @property
    def by_rows(self) -> bool:
        """Whether the projector multiplies the rows, from the left."""
        return projects_rows(*self.sides, self.shorter)

    @property
    def rank(self) -> int:
        """The number of singular vectors."""
        return min(self.max_rank, *self.sides)

    @property
    def projector_shape(self) -> tuple[int, ...]:
        """The shape of the whole projector."""
        return () if self.axes is None else (*self.batch, self.sides[not self.by_rows], self.rank)

    @property
    def projected_shape(self) -> tuple[int, ...]:
        """The shape of the whole projection."""
        if self.axes is None:
            return self.cut.whole(self.shape)
        sides = (self.rank, self.sides[1]) if self.by_rows else (self.sides[0], self.rank)
        return (*self.batch, *sides)

    @property
    def projector_cuts(self) -> Cuts:
        """How the projector is divided."""
        if self.axes is None:
            return ()
        n = len(self.batch)
        return self._divided_cuts(self.projector_shape, (n, n + 1))

    @property
    def projected_cuts(self) -> Cuts:
        """How the projection is divided."""
        if self.axes is None:
            return self.cut.cuts
        n = len(self.batch)
        by_side = (n + 1, n) if self.by_rows else (n, n + 1)
        return self._divided_cuts(
            self.projected_shape, (0,) if engine.cuts_rows_only() else by_side
        )

    def _divided_cuts(self, shape: tuple[int, ...], dims: Sequence[int]) -> Cuts:
        """Let mesh axes cut the batch as in the array, or each the first of `dims` it divides."""
        piece, cuts, batch_cuts = list(shape), [], dict(self._along((), 0))
        for axis, size in self.cut.sizes:
            can = (d for d in dims if size > 1 and piece[d] and piece[d] % size == 0)
            dim = batch_cuts[axis] if axis in batch_cuts else next(can, None)
            if dim is not None:
                piece[dim] //= size
                cuts.append((axis, dim))
        return tuple(cuts)

    def _side_dims(self, projected: bool) -> tuple[int, ...]:
        """Return the dimensions of the array that make its projected or its other side."""
        assert self.axes is not None
        return self.axes.rows if self.by_rows == projected else self.axes.columns

    def _along(self, dims: tuple[int, ...], first: int) -> Cuts:
        """Return the cuts along the batch, and along dimensions that begin at `first` elsewhere."""
        assert self.axes is not None
        places = {d: i for i, d in enumerate(self.axes.batch)}
        places |= {d: first + i for i, d in enumerate(dims)}
        return tuple((a, places[d]) for a, d in self.cut.cuts if d in places)

    def _differing(self, old: Cuts, new: Cuts) -> tuple[Cuts, Cuts]:
        """Return the cuts to undo and those to make; what cuts the batch in both alike stays."""
        n = len(self.batch)
        if [c for c in old if c[1] < n] != [c for c in new if c[1] < n]:
            return old, new
        return _cuts_after_batch(old, n), _cuts_after_batch(new, n)

    # What is cut along the first dimension of a side is cut in the same way along the side. Cuts of
    # a later dimension never equal those of a projector or a projection, which are along the side.

    def _has_own_rows(self) -> bool:
        """Whether a piece of the projector is the rows that belong to the piece of the array."""
        return self._along(self._side_dims(True), len(self.batch)) == self.projector_cuts

    def projector_rows(self, projector: Array) -> Array:
        """Return the rows of the projector that belong to the piece of the array."""
        dims, n = self._side_dims(True), len(self.batch)
        cuts = self._along(dims, n)
        if self._has_own_rows():
            return projector
        full_shape = self.cut.whole(self.shape)
        old_cuts, new_cuts = self._differing(self.projector_cuts, cuts)
        x = _gathered(projector, old_cuts)
        x = jnp.reshape(x, (*x.shape[:n], *(full_shape[d] for d in dims), self.rank))
        x = _own_piece(x, new_cuts)
        return jnp.reshape(x, (*x.shape[:n], -1, self.rank))

    def _product_layout(self) -> tuple[Cuts, tuple[int, ...], bool]:
        """Return the cuts and the whole shape of a product, before its sides are flattened.

        The last result says whether the projection is divided in the same way.
        """
        dims, first = self._side_dims(False), len(self.batch) + self.by_rows
        cuts, full_shape = self._along(dims, first), self.cut.whole(self.shape)
        side = tuple(full_shape[d] for d in dims)
        sides = (self.rank, *side) if self.by_rows else (*side, self.rank)
        return cuts, (*self.batch, *sides), cuts == self.projected_cuts

    @property
    def summed(self) -> tuple[str, ...]:
        """The mesh axes that cut the projected side: products are summed over their devices."""
        dims = self._side_dims(True)
        return tuple(axis for axis, dim in self.cut.cuts if dim in dims)

    @property
    def scatter(self) -> tuple[str, int] | None:
        """The axis whose devices each need a piece of the sum of their products, if it is one.

        Beside it stands the dimension of the projection that it cuts.
        """
        n, (cuts, *_) = len(self.batch), self._product_layout()
        old_cuts, new_cuts = (
            _cuts_after_batch(cuts, n),
            _cuts_after_batch(self.projected_cuts, n),
        )
        alone = not old_cuts and len(new_cuts) == 1 and cuts == _cuts_before(self.projected_cuts, n)
        return new_cuts[0] if alone and self.summed == (new_cuts[0][0],) else None

    def flat(self, x: Array) -> Array:
        """Return a product, whole but for its batch, in the shape of the projection."""
        n = len(self.batch)
        return jnp.reshape(x, (*x.shape[:n], *self.projected_shape[n:]))

    def projection_piece(self, x: Array) -> Array:
        """Return this device's piece of the projection, from its piece of the product."""
        cuts, shape, is_piece = self._product_layout()
        if is_piece:
            return x
        old_cuts, new_cuts = self._differing(cuts, self.projected_cuts)
        x = _gathered(jnp.reshape(x, _piece_shape(shape, cuts, self.cut)), old_cuts)
        n = len(self.batch)
        return _own_piece(jnp.reshape(x, (*x.shape[:n], *self.projected_shape[n:])), new_cuts)

    def as_product(self, x: Array) -> Array:
        """Return a piece of a projection as a piece of the product: undo `projection_piece`."""
        cuts, shape, is_piece = self._product_layout()
        if is_piece:
            return x
        old_cuts, new_cuts = self._differing(self.projected_cuts, cuts)
        x, n = _gathered(x, old_cuts), len(self.batch)
        x = _own_piece(jnp.reshape(x, (*x.shape[:n], *shape[n:])), new_cuts)
        sides = (self.rank, -1) if self.by_rows else (-1, self.rank)
        return jnp.reshape(x, (*x.shape[:n], *sides))

    def vectors_of(self, x: Array) -> Array:
        """Return this device's piece of the projector from `_PlacedLeadingVectors` of its piece."""
        assert self.axes is not None
        batch = self.axes.batch
        cuts = tuple(c for c in self.cut.cuts if c[1] not in batch)
        of_projector = _cuts_after_batch(self.projector_cuts, len(batch))
        # A piece of the projected side has the rows of the projector that belong here.
        is_piece = len(cuts) == len(of_projector) and self._has_own_rows()
        x = self.axes.to_stacks(x if is_piece else _gathered(x, cuts))
        x = x[..., : self.rank] if self.by_rows else jnp.swapaxes(x[..., : self.rank, :], -1, -2)
        return x if is_piece else _own_piece(x, of_projector)


def projections(placements: Sequence[Placement], products: Sequence[Array]) -> list[Array]:
    """Return this device's pieces of projections, from products of pieces.

    Products with a `scatter` are not summed yet, and share a reduce-scatter. It sends half the
    bytes of a sum that every device gets.
    """
    at_once, cuts = _scattered(placements)
    flat = [placements[i].flat(products[i]) for i in at_once]
    pieces = dict(zip(at_once, _exchange_projections("scattered", flat, cuts), strict=True))
    return [
        x if where.axes is None else pieces[i] if i in pieces else where.projection_piece(x)
        for i, (where, x) in enumerate(zip(placements, products, strict=True))
    ]


def as_products(placements: Sequence[Placement], steps: Sequence[Array]) -> list[Array]:
    """Return pieces of products, from steps that lie as projections do: undo `projections`."""
    at_once, cuts = _scattered(placements)
    whole = dict(
        zip(
            at_once,
            _exchange_projections("gathered", [steps[i] for i in at_once], cuts),
            strict=True,
        )
    )
    return [
        x if where.axes is None else whole[i] if i in whole else where.as_product(x)
        for i, (where, x) in enumerate(zip(placements, steps, strict=True))
    ]


def _scattered(
    placements: Sequence[Placement],
) -> tuple[list[int], list[tuple[str, int]]]:
    """Return the numbers of the placements with a `scatter`, and these."""
    found = {i: where.scatter for i, where in enumerate(placements) if where.axes is not None}
    found = {i: cut for i, cut in found.items() if cut is not None}
    return [*found], [*found.values()]


def _exchange_projections(
    name: str, xs: Sequence[Array], cuts: Sequence[tuple[str, int]]
) -> list[Array]:
    return getattr(engine.exchange_now(), name)(xs, cuts) if xs else []


def _cuts_after_batch(cuts: Cuts, n: int) -> Cuts:
    return tuple(c for c in cuts if c[1] >= n)


def _cuts_before(cuts: Cuts, n: int) -> Cuts:
    return tuple(c for c in cuts if c[1] < n)


def _piece_shape(shape: tuple[int, ...], cuts: Cuts, cut: engine.Cut) -> tuple[int, ...]:
    sizes, out = dict(cut.sizes), list(shape)
    for axis, dim in cuts:
        out[dim] //= sizes[axis]
    return tuple(out)


def _own_piece(x: Array, cuts: Cuts) -> Array:
    return engine.own_piece(x, engine.Cut(cuts))


def _gathered(x: Array, cuts: Cuts) -> Array:
    return engine.exchange_now().gather(x, cuts) if cuts else x


def zeros_of(placement: Placement, projector: bool, dtype: Any) -> Array:
    """Return this device's piece of a projector, or of a projection, of zeros."""
    if projector:
        return _own_piece(jnp.zeros(placement.projector_shape, dtype), placement.projector_cuts)
    return _own_piece(jnp.zeros(placement.projected_shape, dtype), placement.projected_cuts)


def zeros_like_parameter(p: Any, placement: Placement, projector: bool, dtype: Any) -> Array:
    """Return `zeros_of` for a parameter; for a whole stack they lie where its matrices lie."""
    zeros, axes = zeros_of(placement, projector, dtype), placement.axes
    if axes is None or not axes.batch or engine.exchange_now() is not None:
        return zeros
    return zeros + zeros_along(p, axes.batch, dtype)[..., None, None]


def renewed(
    placements: Sequence[Placement], gs: Sequence[Array], projectors: Sequence[Array], due: Array
) -> list[Array]:
    """Return the projectors, those of matrices anew where it is due.

    Each device computes the singular vectors of its share of the matrices.

    Args:
      placements: how each array is projected.
      gs: the gradients, as wide as the projectors.
      projectors: this device's pieces of the old ones.
      due: whether to compute them, the same on all devices.
    """
    indices = [i for i, where in enumerate(placements) if where.axes is not None]
    out = list(projectors)
    if not indices:
        return out
    # Both branches of the condition must vary over the same devices.
    like = [zeros_of(placements[i], True, projectors[i].dtype) for i in indices]
    old = varying_like([projectors[i] for i in indices], like)

    def renew() -> list[Array]:
        places = [placements[i] for i in indices]
        leaves = [leaf_of(where.shape, where.axes, where.cut, True) for where in places]
        members = []
        for i, leaf in zip(indices, leaves, strict=True):
            ((arrays, view),) = leaf.given((gs[i],))
            members.append(engine.Member(arrays, (), view))
        rule = _PlacedLeadingVectors(places[0].max_rank, places[0].shorter)
        vectors = engine.map_matrices(rule, members, ())
        new = []
        for where, leaf, (u, _), x in zip(places, leaves, vectors, old, strict=True):
            new.append(cast(where.vectors_of(leaf.update([u])), x.dtype))
        return varying_like(new, old)

    for i, x in zip(indices, lax.cond(due, renew, lambda: old), strict=True):
        out[i] = x
    return out


@dataclass(frozen=True)
class _PlacedLeadingVectors:
    """The leading singular vectors of the projected sides of matrices, among zeros."""

    rank: int
    shorter: bool

    is_static = True

    def rule(self, g: Array) -> Array:
        """Return them in the first columns where rows are projected, else in the first rows."""
        *_, n, k = g.shape
        rank = min(self.rank, n, k)
        u, vh = linalg.one_by_one(_singular_vectors_of_sides, g)
        if projects_rows(n, k, self.shorter):
            return jnp.pad(u[..., :rank], [(0, 0)] * (g.ndim - 1) + [(0, k - rank)])
        return jnp.pad(
            jnp.conj(vh)[..., :rank, :], [(0, 0)] * (g.ndim - 2) + [(0, n - rank), (0, 0)]
        )


def _singular_vectors_of_sides(g: Array) -> tuple[Array, Array]:
    u, _, vh = jnp.linalg.svd(g, full_matrices=False)
    return u, vh


def leading_vectors(x: Array, rank: int, shorter: bool) -> Array:
    """Return the leading singular vectors of a side of matrices (*batch, n, k)."""
    *batch, n, k = x.shape
    u, vh = linalg.one_by_one(
        _singular_vectors_of_sides, jnp.reshape(x, (-1, n, k)) if batch else x
    )
    vectors = (u if projects_rows(n, k, shorter) else adjoint(vh))[..., :rank]
    return jnp.reshape(vectors, (*batch, *vectors.shape[-2:]))

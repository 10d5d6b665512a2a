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


class Placed(NamedTuple):
    """How one array, of which a device may have a piece, is projected.

    Projector and projection have the batch of the array, if it has one, as their first axes. What
    is cut along the batch stays so: a device has the projectors of its own matrices. Other mesh
    axes divide the projector along its longer side, and the projection along the side that it
    shares with the array, or else along the rank. A product needs the rows of the projector, and
    gives the columns of the projection, that belong to the device's piece: its own ones, where the
    array is cut along the same side, or else all come together first.
    """

    axes: MatrixAxes | None  # None if it is not projected
    shape: tuple[int, ...]  # of this device's piece
    cut: engine.Cut
    most: int  # the rank, unless a side is shorter

    @property
    def batch(self) -> tuple[int, ...]:
        """The lengths of the axes that are a batch of matrices, of the whole array."""
        assert self.axes is not None
        whole = self.cut.whole(self.shape)
        return tuple(whole[d] for d in self.axes.batch)

    @property
    def sides(self) -> tuple[int, int]:
        """The rows and columns of a whole matrix."""
        assert self.axes is not None
        return self.axes.sizes(self.cut.whole(self.shape))[1:]

    @property
    def tall(self) -> bool:
        """Whether it has at least as many rows as columns."""
        return self.sides[0] >= self.sides[1]

    @property
    def rank(self) -> int:
        """The number of singular vectors."""
        return min(self.most, *self.sides)

    @property
    def projector_shape(self) -> tuple[int, ...]:
        """The shape of the whole projector."""
        return () if self.axes is None else (*self.batch, max(self.sides), self.rank)

    @property
    def projected_shape(self) -> tuple[int, ...]:
        """The shape of the whole projection."""
        if self.axes is None:
            return self.cut.whole(self.shape)
        sides = (self.rank, self.sides[1]) if self.tall else (self.sides[0], self.rank)
        return (*self.batch, *sides)

    @property
    def projector_cuts(self) -> Cuts:
        """How the projector is divided."""
        if self.axes is None:
            return ()
        n = len(self.batch)
        return self._divided(self.projector_shape, (n, n + 1))

    @property
    def projected_cuts(self) -> Cuts:
        """How the projection is divided."""
        if self.axes is None:
            return self.cut.cuts
        n = len(self.batch)
        by_side = (n + 1, n) if self.tall else (n, n + 1)
        return self._divided(self.projected_shape, (0,) if engine.cuts_rows_only() else by_side)

    def _divided(self, shape: tuple[int, ...], dims: Sequence[int]) -> Cuts:
        """Let each mesh axis cut the batch as in the array, or the first of `dims` it divides."""
        piece, cuts, of_batch = list(shape), [], dict(self._along((), 0))
        for axis, size in self.cut.sizes:
            can = (d for d in dims if size > 1 and piece[d] and piece[d] % size == 0)
            dim = of_batch[axis] if axis in of_batch else next(can, None)
            if dim is not None:
                piece[dim] //= size
                cuts.append((axis, dim))
        return tuple(cuts)

    def _of_side(self, is_long: bool) -> tuple[int, ...]:
        """Return the dimensions of the array that make its longer or its shorter side."""
        assert self.axes is not None
        return self.axes.rows if self.tall == is_long else self.axes.columns

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
        return _after_batch(old, n), _after_batch(new, n)

    # What is cut along the first dimension of a side is cut in the same way along the side. Cuts of
    # a later dimension never equal those of a projector or a projection, which are along the side.

    def used(self, projector: Array) -> Array:
        """Return the rows of the projector that belong to the piece of the array."""
        dims, n = self._of_side(True), len(self.batch)
        cuts = self._along(dims, n)
        if cuts == self.projector_cuts:
            return projector
        whole = self.cut.whole(self.shape)
        undone, made = self._differing(self.projector_cuts, cuts)
        x = _gathered(projector, undone)
        x = jnp.reshape(x, (*x.shape[:n], *(whole[d] for d in dims), self.rank))
        x = _own(x, made)
        return jnp.reshape(x, (*x.shape[:n], -1, self.rank))

    def _natural(self) -> tuple[Cuts, tuple[int, ...], bool]:
        """Return how what a product gives is divided, as an array of what shape.

        The last result says whether that is how the projection lies.
        """
        dims, first = self._of_side(False), len(self.batch) + self.tall
        cuts, whole = self._along(dims, first), self.cut.whole(self.shape)
        side = tuple(whole[d] for d in dims)
        sides = (self.rank, *side) if self.tall else (*side, self.rank)
        return cuts, (*self.batch, *sides), cuts == self.projected_cuts

    def laid(self, x: Array) -> Array:
        """Return this device's piece of the projection from what the product gives."""
        cuts, shape, is_piece = self._natural()
        if is_piece:
            return x
        undone, made = self._differing(cuts, self.projected_cuts)
        x = _gathered(jnp.reshape(x, _piece(shape, cuts, self.cut)), undone)
        n = len(self.batch)
        return _own(jnp.reshape(x, (*x.shape[:n], *self.projected_shape[n:])), made)

    def spread(self, x: Array) -> Array:
        """Undo `laid`."""
        cuts, shape, is_piece = self._natural()
        if is_piece:
            return x
        undone, made = self._differing(self.projected_cuts, cuts)
        x, n = _gathered(x, undone), len(self.batch)
        x = _own(jnp.reshape(x, (*x.shape[:n], *shape[n:])), made)
        sides = (self.rank, -1) if self.tall else (-1, self.rank)
        return jnp.reshape(x, (*x.shape[:n], *sides))

    def vectors_of(self, x: Array) -> Array:
        """Return this device's piece of the projector from its piece of what `_Vectors` returns."""
        assert self.axes is not None
        batch = self.axes.batch
        whole = _gathered(x, tuple(c for c in self.cut.cuts if c[1] not in batch))
        x = self.axes.to_stacks(whole)
        x = x[..., : self.rank] if self.tall else jnp.swapaxes(x[..., : self.rank, :], -1, -2)
        return _own(x, _after_batch(self.projector_cuts, len(batch)))


def _after_batch(cuts: Cuts, n: int) -> Cuts:
    return tuple(c for c in cuts if c[1] >= n)


def _piece(shape: tuple[int, ...], cuts: Cuts, cut: engine.Cut) -> tuple[int, ...]:
    sizes, out = dict(cut.sizes), list(shape)
    for axis, dim in cuts:
        out[dim] //= sizes[axis]
    return tuple(out)


def _own(x: Array, cuts: Cuts) -> Array:
    return engine.own_piece(x, engine.Cut(cuts))


def _gathered(x: Array, cuts: Cuts) -> Array:
    return engine.exchange_now().gather(x, cuts) if cuts else x


def zeros_of(placed: Placed, projector: bool, dtype: Any) -> Array:
    """Return this device's piece of a projector, or of a projection, of zeros."""
    if projector:
        return _own(jnp.zeros(placed.projector_shape, dtype), placed.projector_cuts)
    return _own(jnp.zeros(placed.projected_shape, dtype), placed.projected_cuts)


def zeros_for(p: Any, placed: Placed, projector: bool, dtype: Any) -> Array:
    """Return `zeros_of` for a parameter; those of a whole stack lie as its matrices do."""
    zeros, axes = zeros_of(placed, projector, dtype), placed.axes
    if axes is None or not axes.batch or engine.exchange_now() is not None:
        return zeros
    return zeros + zeros_along(p, axes.batch, dtype)[..., None, None]


def renewed(
    placed: Sequence[Placed], gs: Sequence[Array], projectors: Sequence[Array], due: Array
) -> list[Array]:
    """Return the projectors, those of matrices anew where it is due.

    Each device computes the singular vectors of its share of the matrices.

    Args:
      placed: how each array is projected.
      gs: the gradients, as wide as the projectors.
      projectors: this device's pieces of the old ones.
      due: whether to compute them, the same on all devices.
    """
    mine = [i for i, one in enumerate(placed) if one.axes is not None]
    out = list(projectors)
    if not mine:
        return out
    like = [zeros_of(placed[i], True, projectors[i].dtype) for i in mine]
    old = varying_like([projectors[i] for i in mine], like)

    def renew() -> list[Array]:
        leaves = [leaf_of(placed[i].shape, placed[i].axes, placed[i].cut, True) for i in mine]
        members = []
        for i, leaf in zip(mine, leaves, strict=True):
            ((given, view),) = leaf.given((gs[i],))
            members.append(engine.Member(given, (), view))
        done = engine.map_matrices(_Vectors(placed[mine[0]].most), members, ())
        new = []
        for i, leaf, (u, _), x in zip(mine, leaves, done, old, strict=True):
            new.append(cast(placed[i].vectors_of(leaf.update([u])), x.dtype))
        return varying_like(new, old)

    for i, x in zip(mine, lax.cond(due, renew, lambda: old), strict=True):
        out[i] = x
    return out


@dataclass(frozen=True)
class _Vectors:
    """The leading singular vectors of the longer sides of matrices, among zeros."""

    rank: int

    is_static = True

    def rule(self, g: Array) -> Array:
        """Return them in the first columns of arrays like tall matrices, or in the first rows."""
        *_, n, k = g.shape
        rank = min(self.rank, n, k)
        u, vh = linalg.one_by_one(_singular_vectors, g)
        if n >= k:
            return jnp.pad(u[..., :rank], [(0, 0)] * (g.ndim - 1) + [(0, k - rank)])
        return jnp.pad(
            jnp.conj(vh)[..., :rank, :], [(0, 0)] * (g.ndim - 2) + [(0, n - rank), (0, 0)]
        )


def _singular_vectors(g: Array) -> tuple[Array, Array]:
    u, _, vh = jnp.linalg.svd(g, full_matrices=False)
    return u, vh


def leading_vectors(x: Array, rank: int) -> Array:
    """Return the leading singular vectors of the longer sides of matrices (*batch, n, k)."""
    *batch, n, k = x.shape
    u, vh = linalg.one_by_one(_singular_vectors, jnp.reshape(x, (-1, n, k)) if batch else x)
    vectors = (u if n >= k else adjoint(vh))[..., :rank]
    return jnp.reshape(vectors, (*batch, *vectors.shape[-2:]))

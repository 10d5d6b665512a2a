"""GaLore on pieces of arrays: where projectors and projections lie, and how they come together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform._compat import varying_like
from gradxform.numerics import cast
from gradxform.transforms.dimensions import MatrixAxes
from gradxform.transforms.matrix_leaf import leaf_of
from gradxform.types import Array

__all__ = []

# Mesh axes, in order, each with the dimension that it cuts.
Cuts = tuple[tuple[str, int], ...]


class Placed(NamedTuple):
    """How one array, of which a device may have a piece, is projected.

    The projector is divided along its longer side, and the projection along the side that it shares
    with the array, if the devices divide them, or else along the rank. A product needs the rows of
    the projector, and gives the columns of the projection, that belong to the device's piece: its
    own ones, where the array is cut along the same side, or else all come together first.
    """

    axes: MatrixAxes | None  # None if it is not projected
    shape: tuple[int, ...]  # of this device's piece
    cut: engine.Cut
    most: int  # the rank, unless a side is shorter

    @property
    def sides(self) -> tuple[int, int]:
        """The rows and columns of the whole matrix."""
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
    def projector_shape(self) -> tuple[int, int]:
        """The shape of the whole projector."""
        return (0, 0) if self.axes is None else (max(self.sides), self.rank)

    @property
    def projected_shape(self) -> tuple[int, ...]:
        """The shape of the whole projection."""
        if self.axes is None:
            return self.cut.whole(self.shape)
        return (self.rank, self.sides[1]) if self.tall else (self.sides[0], self.rank)

    @property
    def projector_cuts(self) -> Cuts:
        """How the projector is divided."""
        return self._divided(self.projector_shape, (0, 1))

    @property
    def projected_cuts(self) -> Cuts:
        """How the projection is divided."""
        if self.axes is None:
            return self.cut.cuts
        by_side = (1, 0) if self.tall else (0, 1)
        return self._divided(self.projected_shape, (0,) if engine.cuts_rows_only() else by_side)

    def _divided(self, shape: tuple[int, ...], dims: Sequence[int]) -> Cuts:
        """Let each mesh axis cut the first of some dimensions that it divides."""
        piece, cuts = list(shape), []
        for axis, size in self.cut.sizes:
            dim = next((d for d in dims if size > 1 and piece[d] and piece[d] % size == 0), None)
            if dim is not None:
                piece[dim] //= size
                cuts.append((axis, dim))
        return tuple(cuts)

    def _of_side(self, is_long: bool) -> tuple[int, ...]:
        """Return the dimensions of the array that make its longer or its shorter side."""
        assert self.axes is not None
        return self.axes.rows if self.tall == is_long else self.axes.columns

    def _along(self, dims: tuple[int, ...], first: int) -> Cuts:
        """Return the cuts along some dimensions, which begin at `first` in another array."""
        return tuple((a, first + dims.index(d)) for a, d in self.cut.cuts if d in dims)

    # What is cut along the first dimension of a side is cut in the same way along the side. Cuts of
    # a later dimension never equal those of a projector or a projection, which are along the side.

    def used(self, projector: Array) -> Array:
        """Return the rows of the projector that belong to the piece of the array."""
        dims = self._of_side(True)
        cuts = self._along(dims, 0)
        if cuts == self.projector_cuts:
            return projector
        whole = self.cut.whole(self.shape)
        x = _gathered(projector, self.projector_cuts)
        x = _own(jnp.reshape(x, (*(whole[d] for d in dims), self.rank)), cuts)
        return jnp.reshape(x, (-1, self.rank))

    def _natural(self) -> tuple[Cuts, tuple[int, ...], bool]:
        """Return how what a product gives is divided, as an array of what shape.

        The last result says whether that is how the projection lies.
        """
        dims, first = self._of_side(False), int(self.tall)
        cuts, whole = self._along(dims, first), self.cut.whole(self.shape)
        side = tuple(whole[d] for d in dims)
        shape = (self.rank, *side) if self.tall else (*side, self.rank)
        return cuts, shape, cuts == self.projected_cuts

    def laid(self, x: Array) -> Array:
        """Return this device's piece of the projection from what the product gives."""
        cuts, shape, is_piece = self._natural()
        if is_piece:
            return x
        x = _gathered(jnp.reshape(x, _piece(shape, cuts, self.cut)), cuts)
        return _own(jnp.reshape(x, self.projected_shape), self.projected_cuts)

    def spread(self, x: Array) -> Array:
        """Undo `laid`."""
        cuts, shape, is_piece = self._natural()
        if is_piece:
            return x
        x = _own(jnp.reshape(_gathered(x, self.projected_cuts), shape), cuts)
        return jnp.reshape(x, (self.rank, -1) if self.tall else (-1, self.rank))


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
            one, whole = placed[i], _gathered(leaf.update([u]), leaf.cut.cuts)
            assert one.axes is not None
            matrix = one.axes.to_matrices(whole)[0]
            vectors = matrix[:, : one.rank] if one.tall else matrix[: one.rank].T
            new.append(_own(cast(vectors, x.dtype), one.projector_cuts))
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

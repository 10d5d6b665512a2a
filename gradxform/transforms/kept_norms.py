"""Norms of matrices: kept by every step, or a bound from below on the norm of the step."""

from typing import Any

import jax.numpy as jnp

from gradxform import linalg
from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.errors import name_of, require_one_of
from gradxform.leaves import path_at
from gradxform.linalg.products import largest_entry, with_largest_one
from gradxform.numerics import over
from gradxform.numerics.roots import norm
from gradxform.transforms.matrices.array_norms import Whole, whole_norms, wholes_of
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.types import Array, Choice, NonNegative, StaticTree, Updates

_AXES = {"frobenius": (-2, -1), "rows": (-1,), "columns": (-2,)}
KEPT_NORMS = (*_AXES, "spectral")


@transform
class keep_matrix_norms(ArrayRule):
    """Change every update so that its matrix keeps its norm: the step turns it only.

    Update rule, with |p| the norm of the parameter before the step:

        u = |p| (p + g) / |p + g| - p

    Weight decay then does nothing, and a learning rate is an angle: with `scale_by_trust_ratio()`
    before the learning rate, a step turns each matrix by about that many radians. A matrix of zeros
    stays; one that g would make zero does not move. In 16-bit parameters the norm holds up to the
    rounding of every step.

    For matrices; leave other parameters out with `masked(...)`, or with None among the numbers.
    Must be the last part of a chain that changes updates, because it must see the update that is
    applied; a later one is refused.

    Args:
      norm: which norm stays: "frobenius", "spectral", exact and slow, or those of all "rows" or
        "columns".
      weight_dimension_numbers: as in `muon`: `MuonDimensionNumbers` for all parameters, a tree of
        them, or a function of the parameters that returns one. A parameter with None in it moves
        as it would without this part.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; at
        update, if no parameters are given.

    Reference: Wen et al., Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball
    Optimization, 2026, for "frobenius"; Loshchilov et al., nGPT: Normalized Transformer with
    Representation Learning on the Hypersphere, 2024, for rows and columns.
    """

    norm: Choice = "frobenius"
    weight_dimension_numbers: StaticTree = None

    State = EmptyState
    locality = "array"
    needs_params = True
    sets_params = True
    sees_pieces = True

    def __post_init__(self):
        require_one_of(self, "norm", KEPT_NORMS)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return an empty state."""
        self.statics(params)
        return EmptyState()

    def statics(self, updates: Updates) -> list[Any]:
        """Return for every leaf which of its axes make a matrix, and how it is divided."""
        leaves = wholes_of(self, self.weight_dimension_numbers, updates, leaves_out=True)
        if self.norm == "spectral":
            for i, whole in enumerate(leaves):
                if whole is not None and (whole.rows or whole.columns):
                    raise ValueError(
                        f"{name_of(self)}: parameter {path_at(updates, i)} is divided over "
                        "devices, and the spectral norm needs whole matrices. Keep another norm."
                    )
        return leaves

    def rule(self, g, p, whole):
        """Return the update that leads to a matrix of the same norm."""
        if whole is None or not p.size:
            return g
        axes = whole.axes
        before, after = axes.to_matrices(p), axes.to_matrices(p + g)
        if whole.rows or whole.columns:
            return axes.from_matrices(self._on_devices(before, after, whole), p.shape)
        old, new = with_largest_one(before), with_largest_one(after)
        size, length = self._norm(old) * largest_entry(before), self._norm(new)
        target = jnp.where(length == 0, before, over(size * new, length, 0))
        return axes.from_matrices(target - before, p.shape)

    def _on_devices(self, before: Array, after: Array, whole: Whole) -> Array:
        """Return the update of pieces of matrices."""
        dims = _AXES[self.norm]
        names = (whole.rows if -2 in dims else ()) + (whole.columns if -1 in dims else ())
        size, length = whole_norms([before, after], dims, names)
        target = jnp.where(length == 0, before, size * over(after, length, 0))
        return target - before

    def _norm(self, x: Array) -> Array:
        if self.norm == "spectral":
            return linalg.spectral_norm(x)
        return norm(x, _AXES[self.norm])


@transform
class floor_update_norm(ArrayRule):
    """Lengthen the updates of matrices that are short for the size of the matrix.

    Update rule, with |x| the Frobenius norm of a matrix:

        u = g max(1, ratio |p| / |g|)

    As a matrix grows, its steps stay at least so long, relative to it, times the learning rate that
    comes after. That is what weight decay is for, and it replaces it. A matrix without a gradient
    does not move.

    Args:
      ratio: the least |u| / |p|, at least 0.
      weight_dimension_numbers: as in `keep_matrix_norms`.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; at
        update, if no parameters are given.

    Reference: modded-nanogpt, optimization track, pull request 274, 2026, the u/w floor.
    """

    ratio: NonNegative = 0.35
    weight_dimension_numbers: StaticTree = None

    State = EmptyState
    locality = "array"
    needs_params = True
    sees_pieces = True

    def __post_init__(self):
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return an empty state."""
        self.statics(params)
        return EmptyState()

    def statics(self, updates: Updates) -> list[Any]:
        """Return for every leaf which of its axes make a matrix, and how it is divided."""
        return wholes_of(self, self.weight_dimension_numbers, updates, leaves_out=True)

    def rule(self, g, p, whole):
        """Return the update, lengthened where it is short."""
        if whole is None or not p.size:
            return g
        matrices = whole.axes.to_matrices(p), whole.axes.to_matrices(g)
        size, length = whole_norms(matrices, (-2, -1), whole.rows + whole.columns)
        least = self.ratio * size
        longer = over(matrices[1], length, 0) * least
        return whole.axes.from_matrices(jnp.where(length < least, longer, matrices[1]), p.shape)

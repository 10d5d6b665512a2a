"""Orthogonal matrices that stay orthogonal: steps on the Stiefel manifold."""

from dataclasses import field
from typing import Any

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import EmptyState, transform
from gradxform.linalg.products import matmul
from gradxform.transforms.matrices.dimensions import (
    MuonDimensionNumbers,
    axes_of_all,
    check_numbers,
)
from gradxform.transforms.matrices.rule import MatrixRule
from gradxform.transforms.muon import polar_express
from gradxform.transforms.orthogonal import Orthogonalizing
from gradxform.types import Size, StaticTree


@transform
class project_to_tangent(MatrixRule):
    """Project the update of every orthogonal matrix on the tangent space of orthogonal matrices.

    Update rule for a matrix P of sides m <= n with P P^T = I (a tall one is turned):

        u = g - (g P^T + P g^T) P / 2

    Of a gradient, that is the Riemannian gradient: without its part that would stretch P, which
    `keep_orthogonal` at the end of the chain undoes.

    Args:
      weight_dimension_numbers: as in `scale_by_muon`.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; at
        update, if no parameters are given.

    Reference: Edelman, Arias and Smith, The Geometry of Algorithms with Orthogonality Constraints,
    1998, section 2.2.1; Yang and Lai, Manifold Constrained Steepest Descent, 2026, for its use.
    """

    weight_dimension_numbers: StaticTree = None

    State = EmptyState
    needs_params = True

    def __post_init__(self):
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return an empty state."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return EmptyState()

    def entries(self, g, p):
        """Return the update and the parameter."""
        return g, p

    def rule(self, g, p):
        """Return the part along the tangent space."""
        x = 0.5 * matmul(g, jnp.swapaxes(p, -1, -2))
        return g - matmul(x + jnp.swapaxes(x, -1, -2), p)


@transform
class keep_orthogonal(Orthogonalizing):
    """Change every update so that it leads to an orthogonal matrix, the one nearest to its end.

    Update rule:

        u = polar(p + g) - p,    with polar(U S V^T) = U V^T

    by `ns_steps` turns of an iteration that ends at singular values of 1, for values from 0.001 of
    the Frobenius norm on. A matrix that is not orthogonal becomes so in the first step: begin with
    an orthogonal one. In 16-bit parameters it holds up to the rounding of every step.

    For matrices; leave other parameters out with `masked(...)`. Must be the last part of a chain
    that changes updates, because it must see the update that is applied; a later one is refused.

    Args:
      ns_coeffs: as in `orthogonalize_updates`; by default those of "polar_express". Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the norm of a matrix, at least 0; with 0 a matrix of zeros stays. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; at
        update, if no parameters are given.

    Reference: Yang and Lai, Manifold Constrained Steepest Descent, 2026, for the projection; Amsel
    et al., The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon
    Algorithm, 2025, for the iteration.
    """

    ns_coeffs: tuple[Any, ...] = field(default=polar_express(10), kw_only=True)
    ns_steps: Size = field(default=10, kw_only=True)

    State = EmptyState
    needs_params = True
    sets_params = True

    def init(self, params):
        """Return an empty state."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return EmptyState()

    def entries(self, g, p):
        """Return where the update leads, and the parameter."""
        return p + g, p

    def rule(self, x, p):
        """Return the update that leads to an orthogonal matrix."""
        return self.orthogonal(x) - p

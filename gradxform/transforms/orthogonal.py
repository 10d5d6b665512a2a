"""Matrices replaced by the nearest orthogonal ones: the part that Muon's kin share."""

import dataclasses
from dataclasses import field
from typing import Any

import jax.numpy as jnp

from gradxform import engine, linalg
from gradxform.base import EmptyState, transform
from gradxform.errors import require_at_least, require_one_of
from gradxform.numerics import over
from gradxform.numerics.roots import norm
from gradxform.transforms.matrices.dimensions import (
    MuonDimensionNumbers,
    axes_of_all,
    check_numbers,
)
from gradxform.transforms.matrices.rule import MatrixRule, check_compute_dtype
from gradxform.transforms.matrices.shape_factor import ShapeFactor
from gradxform.transforms.muon import NS_COEFFS, check_turns, checked_coefficients
from gradxform.types import Array, DType, NonNegative, Scalar, Size, StaticTree


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Orthogonalizing(MatrixRule):
    """Base of rules with an orthogonalization in them: its arguments, and the function."""

    ns_coeffs: tuple[Any, ...] = field(default=NS_COEFFS["standard"], kw_only=True)
    ns_steps: Size = field(default=5, kw_only=True)
    eps: NonNegative = field(default=1e-8, kw_only=True)
    preconditioning: str = field(default="frobenius", kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)

    locality = "array"

    def __post_init__(self):
        require_at_least(self, 1, "ns_steps")
        require_one_of(self, "preconditioning", linalg.PRECONDITIONINGS)
        check_compute_dtype(self)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)
        object.__setattr__(self, "ns_coeffs", checked_coefficients(self, "ns_coeffs"))
        check_turns(self)

    def orthogonal(self, a: Array) -> Array:
        """Return matrices with the same singular vectors, and singular values near 1."""
        coefficients = jnp.asarray(self.ns_coeffs, a.dtype)
        if coefficients.ndim == 1:
            coefficients = jnp.broadcast_to(coefficients[None], (self.ns_steps, 3))
        return linalg.orthogonalize(
            a,
            coefficients,
            self.preconditioning,
            self.eps,
            dtype=self.compute_dtype,
            columns=engine.columns_now(),
        )


def with_norm(x: Array, size: Scalar, axes: tuple[int, ...] = (-2, -1)) -> Array:
    """Return arrays of the given norm over some axes, without overflow; zeros stay zeros."""
    x = over(x, jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0), 0)
    return over(size * x, norm(x, axes), 0)


@transform
class orthogonalize_updates(Orthogonalizing):
    """Replace every matrix by one with the same singular vectors and singular values near 1.

    Update rule:

        u = NewtonSchulz(g)

    `scale_by_muon` without its average. For the hidden matrices of a network.

    Args:
      ns_coeffs: three numbers for all turns, or three for each turn. Keyword-only.
      ns_steps: the number of turns, at least 1; with three numbers for each turn at least as many.
        Keyword-only.
      eps: added to the norm of a matrix, at least 0; with 0 a matrix of zeros stays. Keyword-only.
      preconditioning: the norm that a matrix is divided by first: "frobenius", "spectral", "aol" or
        "schatten"; see `linalg.orthogonalize`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024.
    """

    State = EmptyState

    def init(self, params):
        """Return an empty state."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return EmptyState()

    def rule(self, g):
        """Return matrices with the same singular vectors, and singular values near 1."""
        return self.orthogonal(g)

    def grams_needed(self, m: int, n: int) -> int | None:
        """Return how many products X X^H a step forms; None if whole matrices are needed."""
        if self.preconditioning == "spectral":
            return None
        return len(self.ns_coeffs) if isinstance(self.ns_coeffs[0], tuple) else self.ns_steps


@transform
class scale_by_fans(ShapeFactor):
    """Multiply the update of every matrix by the root of its columns over its rows.

    Update rule, with n the number of rows of a matrix, its inputs, k that of its columns, its
    outputs, and c that of the places in the window of a convolution:

        u = sqrt(k / n) g
        u = sqrt(k / (c n)) g      (of a convolution)

    An orthogonal matrix then keeps the root mean square of what passes through it, so that learning
    rates carry over to networks of another width. In a convolution the inputs of a channel arrive
    once from every place in the window, and n counts all of them.

    Args:
      weight_dimension_numbers: as in `scale_by_muon`. Of a convolution, the last of the reduction
        axes has the inputs and the others the places: `MuonDimensionNumbers((0, 1, 2), 3)` for
        kernels of Flax and Keras, `MuonDimensionNumbers((2, 3, 1), 0)` for those of PyTorch.
      convolution: whether the parameters are kernels of convolutions: with k x k places, the factor
        is sqrt(outputs / inputs) / k^2. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Pethick et al., Training Deep Learning Models with Norm-Constrained LMOs, 2025;
    Bernstein and Newhouse, Old Optimizer, New Norm: An Anthology, 2024.
    """

    weight_dimension_numbers: StaticTree = None
    convolution: bool = field(default=False, kw_only=True)

    def factor(self, n: int, k: int, places: int) -> float:
        """Return the factor of a matrix of n rows and k columns."""
        return (k / max(n * (places if self.convolution else 1), 1)) ** 0.5

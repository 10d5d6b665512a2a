"""SPlus: signs in the eigenbasis of Shampoo's two matrices."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import transform
from gradxform.errors import require_non_negative
from gradxform.numerics import cast, safe_increment, squarable
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.eigenbases import (
    FIRST_TURNS,
    InEigenbases,
    are_renewed_in_turns,
    eigenvectors,
    first_bases,
    followed_by,
    is_basis,
    renewed_in_turns,
    sandwich,
    transposed,
    turns_due,
)
from gradxform.transforms.matrices.shape_factor import ShapeFactor
from gradxform.types import (
    Array,
    Decay,
    DType,
    Finite,
    FixedDecay,
    MatrixSlot,
    Size,
    Slot,
    StaticTree,
)


class SPlusState(NamedTuple):
    """State of `scale_by_splus`; every parameter has B matrices of sides m <= n."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average of the gradient
    # For a side that keeps the identity (B, 1, 1).
    left: MatrixSlot  # (B, m, m), at least float32; the average of G G^T
    right: MatrixSlot  # (B, n, n); the average of G^T G
    left_basis: MatrixSlot  # (B, m, m); its eigenvectors as columns, some steps ago
    right_basis: MatrixSlot  # (B, n, n)


@transform
class scale_by_splus(InEigenbases):
    """Take the signs of an average of the gradient in the eigenbasis of Shampoo's matrices.

    Update rule for a matrix of sides m <= n (a tall one is turned), from zeros and for
    t = 1, 2, ..., with the identity as first Q_L and Q_R:

        M <- b1 M + (1 - b1) G
        U = Q_L sign(Q_L^T M Q_R) Q_R^T
        L <- b2 L + (1 - b2) G G^T
        R <- b2 R + (1 - b2) G^T G

    Q_L and Q_R are the eigenvectors of L and R, renewed after the first step and after every
    `precondition_frequency`-th. Each update is of entries whose mean square is 1, so that bases
    that are many steps old do not make it diverge. Where L or R is singular, some eigenvectors are
    any of many, and so is the update along them.

    Among the matrices of equal sides, those that are i-th modulo `precondition_frequency` are
    renewed at step i, as in `scale_by_soap`. The epsilon that the authors' code adds to the
    diagonals of L and R does not change their eigenvectors, and is left out.

    If an entry of a gradient exceeds 2.6e15 (in float32), its matrix is first scaled down to that
    size, so that no square overflows.

    Args:
      b1: the decay of the average of the gradient, in [0, 1).
      b2: the decay of L and R, in [0, 1).
      precondition_frequency: the number of steps from one decomposition to the next, an integer, at
        least 1.
      max_precond_dim: the longest side that has a basis, an integer, at least 0; a longer one keeps
        the identity.
      mu_dtype: the dtype of M; by default the parameter's, float32 for 16-bit ones.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_soap`. Keyword-only.

    Raises:
      ValueError: if precondition_frequency is below 1; at init and update, if a parameter is not a
        matrix, or its numbers do not fit.
      TypeError: at init and update, for complex and integer leaves.

    Reference: Frans et al., A Stable Whitening Optimizer for Efficient Neural Network Training,
    2025, Algorithm 1; the defaults are those of its code.
    """

    b1: Decay = 0.9
    b2: FixedDecay = 0.999
    precondition_frequency: Size = 100
    max_precond_dim: Size = 10000
    mu_dtype: DType = None
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)

    State = SPlusState
    averages_of = (("mu", "g"),)

    def init(self, params):
        """Return averages and matrices of zeros, and the identity as basis."""
        bases = first_bases(self, params, self.max_precond_dim)
        return SPlusState(zero_count(), zeros_like(params, self.mu_dtype), **bases)

    def prepare(self, state, params):
        """Return the state and the number of this update."""
        count = safe_increment(state.count)
        return state._replace(count=count), count

    def entries(
        self, g: Array, m: Array, p: Array | None, count: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """Return the gradient and its average, and the average for the state."""
        m = self.b1 * m + (1 - self.b1) * g
        return (g, m), m

    def rule(self, g, m, left, right, q_left, q_right, count):
        """Return the signs, turned back, and the new state of every matrix."""
        g, m = squarable(g, (-2, -1)), squarable(m, (-2, -1))
        u = jnp.sign(sandwich(transposed(q_left), m, q_right, self.compute_dtype))
        u = sandwich(q_left, u, transposed(q_right), self.compute_dtype)
        left, right = followed_by(left, right, g, self.b2)
        if not (is_basis(left, g, -2) or is_basis(right, g, -1)):
            return u, left, right, q_left, q_right

        if are_renewed_in_turns(left, right):
            # The count begins at 1. From the last eigenvectors, and so nearer to the next.
            is_due = turns_due(count, len(g), self.precondition_frequency, first=1) > 0
            turns = FIRST_TURNS * cast(is_due, count.dtype)
            bases = renewed_in_turns((left, right), (q_left, q_right), (), turns)
            return u, left, right, *bases

        def all_new() -> tuple[Array, ...]:
            return _renewed_bases(left, right)

        def some_new() -> tuple[Array, ...]:
            args = (left, right), (q_left, q_right), count, self.precondition_frequency
            return engine.renewed(_renewed_bases, *args)

        q_left, q_right = lax.cond(count == 1, all_new, some_new)
        return u, left, right, q_left, q_right


def _renewed_bases(left: Array, right: Array, *old: Array) -> tuple[Array, Array]:
    """Return the eigenvectors in place of the old ones."""
    return eigenvectors(left), eigenvectors(right)


@transform
class scale_by_mean_side(ShapeFactor):
    """Divide the update of every matrix by the mean of its two sides.

    Update rule, with n the number of rows of a matrix and k that of its columns:

        u = 2 / (n + k) g
        u = other_scale g            (if n or k is above max_side)

    Signs of mean square 1 then change what passes through a layer alike in networks of any width.
    A matrix with a side above max_side is a table of embeddings, which 2 / (n + k) all but stops.

    Args:
      weight_dimension_numbers: as in `scale_by_muon`.
      max_side: the longest side that counts, an integer, at least 0; None for any. Keyword-only.
      other_scale: the factor of matrices with a longer side, finite. Keyword-only.

    Raises:
      ValueError: if max_side is below 0; at init and update, if a parameter is not a matrix, or its
        numbers do not fit.

    Reference: Frans et al., A Stable Whitening Optimizer for Efficient Neural Network Training,
    2025, Algorithm 1; the factor of long sides is that of its code.
    """

    weight_dimension_numbers: StaticTree = None
    max_side: Size | None = field(default=None, kw_only=True)
    other_scale: Finite = field(default=1e-3, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if self.max_side is not None:
            require_non_negative(self, "max_side")

    def factor(self, n: int, k: int, places: int) -> Any:
        """Return the factor of a matrix of n rows and k columns."""
        if self.max_side is not None and max(n, k) > self.max_side:
            return self.other_scale
        return 2 / max(n + k, 1)

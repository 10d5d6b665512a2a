"""Steps of a fixed size in a norm: the directions of Scion that are not spectral."""

from typing import Any

import jax.numpy as jnp

from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.errors import require_one_of
from gradxform.numerics import over
from gradxform.transforms.matrices.array_norms import arrays_of, whole_norm, wholes_of
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.transforms.orthogonal import with_norm
from gradxform.types import Array, Choice, StaticTree, Updates

LMO_NORMS = ("sign", "inputs", "outputs", "rms")


@transform
class scale_by_lmo(ArrayRule):
    """Replace every array by the step of norm 1 that goes farthest along it.

    Update rule for a matrix of n rows, its inputs, and k columns, its outputs, with r_i the norm of
    a row, c_j that of a column, and s the root mean square of all entries:

        u_ij = sign(g_ij) / n             (for sign)
        u_ij = sqrt(k) g_ij / r_i         (for inputs)
        u_ij = g_ij / (sqrt(n) c_j)       (for outputs)
        u_ij = g_ij / s                   (for rms)

    "sign" and "outputs" are for the last layer of a network, "inputs" for embeddings, "rms" for
    vectors, of any shape. For hidden matrices, `orthogonalize_updates` and `scale_by_fans` are the
    step in the spectral norm. Zeros stay zeros.

    Args:
      norm: "sign", "inputs", "outputs" or "rms".
      weight_dimension_numbers: as in `scale_by_muon`; not read for "rms".

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit;
        not for "rms".

    Reference: Pethick et al., Training Deep Learning Models with Norm-Constrained LMOs, 2025,
    with transposed matrices: "inputs" is ColNorm there, "outputs" RowNorm.
    """

    norm: Choice = "sign"
    weight_dimension_numbers: StaticTree = None

    State = EmptyState
    locality = "array"
    sees_pieces = True

    def __post_init__(self):
        require_one_of(self, "norm", LMO_NORMS)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return an empty state."""
        self.statics(params)
        return EmptyState()

    def statics(self, updates: Updates) -> list[Any]:
        """Return for every leaf which of its axes make a matrix, and how it is divided."""
        if self.norm == "rms":
            return arrays_of(updates)
        return wholes_of(self, self.weight_dimension_numbers, updates)

    def rule(self, g, p, whole):
        """Return the step of norm 1."""
        n, k = whole.sides
        if whole.axes is None:
            return _scion_with_norm(g, k**0.5, tuple(range(g.ndim)), whole.columns)
        x = whole.axes.to_matrices(g)
        if self.norm == "sign":
            x = jnp.sign(x) / max(n, 1)
        elif self.norm == "inputs":
            x = _scion_with_norm(x, k**0.5, (-1,), whole.columns)
        else:
            x = _scion_with_norm(x, max(n, 1) ** -0.5, (-2,), whole.rows)
        return whole.axes.from_matrices(x, g.shape)


def _scion_with_norm(x: Array, size: float, axes: tuple[int, ...], names: tuple[str, ...]) -> Array:
    """Return arrays of the given norm over some axes and the devices along mesh axes."""
    if not names:
        return with_norm(x, size, axes)
    return size * over(x, whole_norm(x, axes, names), 0)

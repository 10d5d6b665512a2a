"""Adam as TensorFlow computes it, for dense gradients and for slices of them."""

from dataclasses import field

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.leaves.row_sparse import RowSparse
from gradxform.numerics import abs_sq, bias_correction, safe_increment
from gradxform.numerics.roots import over_root
from gradxform.transforms.adam import ScaleByAdamState
from gradxform.types import Array, Decay, DType, NonNegative, Scalar


@transform
class scale_by_tf_adam(ArrayRule):
    """Rescale updates as TensorFlow's Adam does: epsilon is added before the correction.

    Update rule, from m = v = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        u = (sqrt(1 - b2^t) / (1 - b1^t)) m / (sqrt(v) + eps)

    With nesterov, b1 m + (1 - b1) g stands in place of m, as in TensorFlow's contributed NAdam.

    Under `sparse_semantics(..., "raw")`, the last slice of a row stands for all slices of that row:
    it alone updates the moments, and the row moves once per slice, as in RETURNN's CustomAdam.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      nesterov: whether to look one step ahead. Keyword-only.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, the end of section
    2, where eps is called epsilon hat.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    mu_dtype: DType = None
    nesterov: bool = field(default=False, kw_only=True)

    State = ScaleByAdamState
    locality = "entry"
    averages_of = (("mu", "g"), ("nu", "|g|^2"))
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count, and both bias corrections as one factor of m."""
        count = safe_increment(state.count)
        root = jnp.sqrt(1 / bias_correction(self.b2, count))
        return state._replace(count=count), root * bias_correction(self.b1, count)

    def rule(self, g, m, v, p, of_m):
        """Return the update and the moments."""
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        ahead = m
        if self.nesterov:
            ahead = self.b1 * m + (1 - self.b1) * g
        return of_m * over_root(ahead, v, self.eps), m, v

    def slice_rule(
        self, g: RowSparse, m: Array, v: Array, p: Array | None, of_m: Scalar
    ) -> tuple[Array, Array, Array]:
        """Return the update of the slices and the moments."""
        u, m_rows, v_rows = self.rule(_last_slices(g), g.take(m), g.take(v), p, of_m)
        return u, g.put(m, m_rows), g.put(v, v_rows)


def _last_slices(g: RowSparse) -> Array:
    """Return, for each slice, the last slice of the same row."""
    order = jnp.argsort(g.indices, stable=True)
    ends = jnp.searchsorted(g.indices[order], g.indices, side="right") - 1
    return g.values[order[ends]]

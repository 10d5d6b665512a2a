"""GGT: a full-matrix preconditioner from a window of past gradients."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform.base import ArrayRule, transform
from gradxform.errors import require_at_least
from gradxform.leaves import align_params, align_slot, check_shapes
from gradxform.numerics import (
    add,
    at_least_float32,
    cast,
    safe_increment,
    scalar,
    scalar_dtype,
    taming,
)
from gradxform.numerics.roots import root
from gradxform.slots import zero_count, zeros_like
from gradxform.types import Array, Decay, NonNegative, Positive, Scalar, Size, Slot


class ScaleByGgtState(NamedTuple):
    """State of `scale_by_ggt`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the gradient
    buffer: Slot  # (window, *shape) per parameter: the last averages; the oldest is replaced next


@transform
class scale_by_ggt(ArrayRule):
    """Precondition as GGT does: by the full matrix of the last averages, over all parameters.

    Update rule, all parameters in one vector, from m = 0 and t = 1, 2, ...; the columns of M are
    the last `window` averages (zeros before there are as many), over sqrt(min(t, window)):

        m <- b1 m + (1 - b1) g
        U diag(s) U^T = M^T M + svd_eps I
        c = U^T M^T m
        u = M U (c / (sqrt(s) + sigma_eps)^3)
        u <- u + (m - M U (c / s)) / sqrt(min(s))        (only if sqrt(min(s)) > eps)

    The update is a linear combination of the averages in the buffer, and its `window` weights come
    from the matrix M^T M. The large matrix M M^T is never formed, and the cancellation in
    m - M U (c / s) is done on paper. Memory: `window` arrays like the parameters.

    u has a norm of about sqrt(min(t, window)), over all parameters together, so learning rates
    should be larger than Adam's. With an eps below sqrt(svd_eps), as by default, the last line
    always applies; it matters where the averages are below sqrt(svd_eps), and makes
    u = m / sqrt(svd_eps).

    If any entry of the gradients exceeds 2.6e15 (in float32), all gradients are first scaled down
    together to that size, so that no square overflows: u does not depend on the size of such
    averages.

    Where parameters are divided over devices (`zero1`), the averages are divided as they are, and
    devices exchange the `window`^2 entries of M^T M.

    Args:
      b1: the decay of the average, in [0, 1).
      window: how many averages are kept, at least 1.
      eps: a bound on the root of the smallest eigenvalue, at least 0. Above it, the rest of m is
        used too.
      svd_eps: added to the eigenvalues, greater than 0.
      sigma_eps: added to their roots, at least 0.

    Reference: Agarwal et al., Efficient Full-Matrix Adaptive Regularization, 2019, Algorithm 1 and
    section 3. Only the average m decays; past gradients are not weighted, as in TensorFlow's
    contrib optimizer.
    """

    b1: Decay = 0.9
    window: Size = 10
    eps: NonNegative = 1e-4
    svd_eps: Positive = 1e-6
    sigma_eps: NonNegative = 1e-2

    State = ScaleByGgtState
    locality = "tree"
    sees_pieces = True

    def __post_init__(self):
        require_at_least(self, 1, "window")

    def init(self, params):
        """Return an average and a buffer of zeros."""
        mu = zeros_like(params)
        buffer = jax.tree.map(lambda m: jnp.stack([m] * self.window), mu)
        return ScaleByGgtState(count=zero_count(), mu=mu, buffer=buffer)

    def prepare(self, updates, state, params):
        """Return the state with the new average in the buffer, and the weights of the averages."""
        gs, treedef = jax.tree.flatten(updates)
        mu = align_slot(self, updates, treedef, state, "mu")
        buffer = align_slot(self, updates, treedef, state, "buffer")
        if params is not None:
            align_params(self, updates, treedef, params)
        check_shapes(self, updates, mu.leaves, "the state's mu has")

        count = safe_increment(state.count)
        column = jnp.mod(state.count, self.window)
        cuts = engine.cuts_of(updates)
        scalars = (column, self.b1, 1 - self.b1, _taming(gs, cuts))
        leaves = engine.map_rows(
            _remember_in_window, [gs, mu.leaves, buffer.leaves], *scalars, cuts=cuts
        )
        state = state._replace(
            count=count,
            mu=mu.rebuilt([m for m, _, _ in leaves]),
            buffer=buffer.rebuilt([past for _, past, _ in leaves]),
        )
        if not leaves:
            return state, jnp.zeros(self.window, scalar_dtype())
        grams = [gram for _, _, gram in leaves]
        gram = functools.reduce(add, grams, jnp.zeros((), scalar_dtype()))
        columns = cast(jnp.minimum(count, self.window), gram.dtype)
        return state, self._weights(gram / columns, column)

    def _weights(self, a: Array, column: Array) -> Array:
        """Return the weight of every average in u, from A = M^T M.

        With k = min(t, window) and e the unit vector of the newest column, m = sqrt(k) M e. So c =
        sqrt(k) U^T A e = sqrt(k) l q, where l = s - svd_eps are the eigenvalues of A and q = U^T e,
        and m - M U (c / s) = sqrt(k) M U (q svd_eps / s). The factor sqrt(k) is that in M.
        """
        values, u = linalg.eigen(a)
        l = jnp.maximum(values, 0)
        s = l + self.svd_eps
        smallest = root(jnp.min(s))
        is_full = smallest > self.eps
        rest = jnp.where(is_full, self.svd_eps / jnp.where(is_full, s * smallest, 1), 0)
        q = lax.dynamic_index_in_dim(u, column, keepdims=False)
        divisor = root(s) + self.sigma_eps
        # Ratios of at most 1, because the cube of the root may overflow. XLA makes one division of
        # several in a row.
        share = root(s) / divisor
        return linalg.matmul(u, q * ((l / s) * share * share / divisor + rest))

    def rule(self, g, m, past, p, weights):
        """Return the combination of the averages."""
        return jnp.tensordot(weights, past, axes=1, precision=linalg.HIGHEST), m, past


def _taming(gs: list[Any], cuts: list[engine.Cut]) -> Array:
    """Return one factor for all gradients with which no square overflows in any of their dtypes."""
    sizes = engine.map_rows(_largest_of_leaf, [gs], cuts=cuts) or [jnp.zeros((), scalar_dtype())]
    narrow = min((s.dtype for s in sizes), key=lambda dtype: dtype.itemsize)
    return taming(cast(functools.reduce(jnp.maximum, map(scalar, sizes)), narrow))


def _largest_of_leaf(g: Any) -> Array:
    g = jnp.asarray(g)
    return engine.array_max(jnp.abs(cast(g, at_least_float32(g.dtype))))


def _remember_in_window(
    g: Any, m: Array, past: Array, column: Array, b1: Scalar, one_minus_b1: Scalar, factor: Array
) -> tuple[Array, Array, Array]:
    """Return the new average, the buffer with it, and the inner products of the averages."""
    b1, one_minus_b1, factor = (cast(jnp.asarray(x), m.dtype) for x in (b1, one_minus_b1, factor))
    m = b1 * m + one_minus_b1 * (factor * cast(jnp.asarray(g), m.dtype))
    past = lax.dynamic_update_index_in_dim(past, m, column, 0)
    axes = tuple(range(1, past.ndim))
    gram = jnp.tensordot(past, past, axes=(axes, axes), precision=linalg.HIGHEST)
    (gram,) = engine.over_pieces((gram, engine.cut_here().axes))
    return m, past, gram

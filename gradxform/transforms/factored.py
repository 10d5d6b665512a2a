"""Second moments in less memory than the parameters: Adafactor's and SM3's."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform._jax.versions import with_whole_dims
from gradxform._names.deferred import signature_of
from gradxform.base import ArrayRule, transform
from gradxform.errors import name_of, require_non_negative, shown
from gradxform.leaves import dtype_of, like_params, shape_of
from gradxform.leaves.storage import matrix_axes
from gradxform.numerics import (
    abs_sq,
    at_least_float32,
    cast,
    plus,
    real_dtype,
    safe_increment,
    scalar,
)
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import one_over_root, root
from gradxform.slots import zero_count, zeros_along, zeros_like
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeInt,
    NonNegativeSlot,
    Scalar,
    Size,
    Slot,
    UnitInterval,
)
from gradxform.values import is_live
from gradxform.values.registry import register

__all__ = [
    "constant_decay_rate",
    "power_decay_rate",
    "scale_by_factored_rms",
    "scale_by_sm3",
    "FactoredState",
    "ScaleBySM3State",
]


def power_decay_rate(step: Any, exponent: Any) -> Array:
    """Return 1 - (step + 1)^-exponent: a decay that starts at 0 and tends to 1.

    Args:
      step: the number of earlier updates, at least 0.
      exponent: how fast the decay approaches 1, greater than 0.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, section 7.2.
    """
    t = scalar(step) + 1
    return 1 - t**-exponent


register("power_decay_rate", power_decay_rate)


def constant_decay_rate(step: Any, decay: Any) -> Array:
    """Return the decay that it is given: a `decay_rate_fn` for an average of fixed length.

    Args:
      step: the number of earlier updates; not read.
      decay: in [0, 1].
    """
    return scalar(decay)


register("constant_decay_rate", constant_decay_rate)


def _zeros_of_moment(p: Any, axes: tuple[int, ...]) -> Array:
    """Return real zeros, one for each index along `axes` of `p`."""
    return zeros_along(p, axes, real_dtype(at_least_float32(dtype_of(p))))


def _joined_moments(parts: list[Array]) -> Array:
    """Concatenate vectors; under explicit sharding the result is whole on every device.

    Vectors sharded over different axes of a mesh do not have another sharding in common.
    """
    return jnp.concatenate([with_whole_dims(x) for x in parts]) if len(parts) > 1 else parts[0]


def _placeholder_of_moment(p: Any) -> Array:
    return jnp.zeros((1,), real_dtype(at_least_float32(dtype_of(p))))


def _mixed_moments(b: Scalar, old: Array, new: Array) -> Array:
    """Return b old + (1 - b) new; a b of 0 also forgets an infinite `old`."""
    mixed = b * old + (1 - b) * new
    return lax.select(b == 0, cast(new, mixed.dtype), mixed)  # `old` of complex arrays is complex


def over_factored_root(x: Array, r: Array, c: Array, mean: Array) -> Array:
    """Return x / sqrt(r c / mean), for means of rows and columns and the mean of either.

    It is 0 where the moment is 0, and everywhere if the moment has an infinity.
    """
    # Two roots, not the root of r / mean: that quotient underflows in a dead row.
    nothing = lax.full_like(mean, 0)
    factor = lax.select(lax.eq(mean, lax.full_like(mean, jnp.inf)), nothing, root(mean))
    return x * (one_over_root(r) * factor) * one_over_root(c)


class FactoredState(NamedTuple):
    """State of `scale_by_factored_rms`. A slot that an array does not need has the shape (1,)."""

    count: Array  # int32 scalar; the number of updates so far
    v_row: NonNegativeSlot  # at least float32; the second moment's mean over the largest axis
    v_col: NonNegativeSlot  # at least float32; its mean over the second largest axis
    v: NonNegativeSlot  # like params, at least float32; the second moment of unfactored arrays


@transform
class scale_by_factored_rms(ArrayRule):
    """Divide the gradient by the root of a second moment kept only as row and column means.

    Update rule for a matrix, from r = c = 0, with n = 0, 1, ... the number of earlier updates,
    k = max(n - step_offset, 0) and b = decay_rate_fn(k, decay_rate):

        r <- b r + (1 - b) (mean of |g|^2 + epsilon over each row)
        c <- b c + (1 - b) (mean of |g|^2 + epsilon over each column)
        u = g / sqrt(r c / mean(r))

    In an array of more dimensions the two largest axes form the matrix, and the others are batch
    axes. Arrays whose second largest axis is below `min_dim_size_to_factor`, vectors and scalars
    have a full second moment: v <- b v + (1 - b) (|g|^2 + epsilon), u = g / sqrt(v). A matrix of
    m x n entries needs m + n numbers instead of m n.

    Where the moment is 0 (possible with an epsilon of 0), u is 0; in a matrix whose moment has an
    infinity, u is 0 everywhere. A step before `step_offset` counts as the first (in Optax it is
    NaN), and the parameters are not needed.

    Args:
      factored: whether to factor at all.
      decay_rate: the exponent that `decay_rate_fn` gets, at least 0.
      step_offset: the step at which a fine-tuning began that continues the count of pretraining,
        at least 0.
      min_dim_size_to_factor: the least size of the second largest axis that is factored, at
        least 0.
      epsilon: added to every square, at least 0.
      decay_rate_fn: a function of the number of earlier updates and the exponent that returns the
        decay b, in [0, 1].
      last_axes: whether the last two axes form the matrix, not the two largest, as in Keras.
        Keyword-only.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, Algorithms 4 and 5, without their clipping.
    """

    factored: bool = True
    decay_rate: NonNegative = 0.8
    step_offset: NonNegativeInt = 0
    min_dim_size_to_factor: Size = 128
    epsilon: NonNegative = 1e-30
    decay_rate_fn: Callable[..., Any] = power_decay_rate
    last_axes: bool = field(default=False, kw_only=True)

    State = FactoredState
    locality = "array"
    sees_pieces = True
    by_entry_after_sums = True
    handles_complex = True

    def __post_init__(self):
        require_non_negative(self, "min_dim_size_to_factor")
        try:
            signature_of(self.decay_rate_fn).bind(None, None)
        except TypeError as error:
            raise TypeError(
                f"{name_of(self)}: decay_rate_fn is called with (step, decay_rate): {error}."
            ) from None

    def factored_axes(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the shorter and the longer axis of the matrix, or None for an array kept in full.

        The later of two axes of equal size counts as longer.
        """
        first = max(len(shape) - 2, 0) if self.last_axes else 0
        axes = matrix_axes(shape[first:], self.min_dim_size_to_factor) if self.factored else None
        return None if axes is None else (first + axes[0], first + axes[1])

    def init(self, params):
        """Return moments of zeros."""
        # For pieces of parameters the means are pieces too, or whole along an axis that is not cut.
        whole = engine.whole_shapes(params)

        def means(p: Any, of_all: Any, k: int) -> Array:
            axes = self.factored_axes(shape_of(of_all))
            if axes is None:
                return _placeholder_of_moment(p)
            p = p if of_all is p else like_params(p)
            return _zeros_of_moment(p, tuple(i for i in range(jnp.ndim(p)) if i != axes[k]))

        def full(p: Any, of_all: Any) -> Array:
            if self.factored_axes(shape_of(of_all)) is not None:
                return _placeholder_of_moment(p)
            return zeros_like(p, real_dtype(at_least_float32(dtype_of(p))))

        return FactoredState(
            count=zero_count(),
            v_row=jax.tree.map(lambda p, x: means(p, x, 1), params, whole),
            v_col=jax.tree.map(lambda p, x: means(p, x, 0), params, whole),
            v=jax.tree.map(full, params, whole),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count and the decay."""
        step = jnp.maximum(state.count - self.step_offset, 0)
        b = self.decay_rate_fn(step, self.decay_rate)
        if jnp.shape(b) != ():
            raise ValueError(
                f"{name_of(self)}: decay_rate_fn must return a scalar, got {shown(b)}."
            )
        return state._replace(count=safe_increment(state.count)), scalar(b)

    def rule(self, g, r, c, v, p, b):
        """Return the update and the moments."""
        square = abs_sq(g) + self.epsilon
        whole = engine.whole_shape(g)
        axes = self.factored_axes(whole)
        if axes is None:
            v = _mixed_moments(b, v, square)
            return g * one_over_root(v), r, c, v
        second, first = axes
        r, c = jnp.expand_dims(r, first), jnp.expand_dims(c, second)
        row_sums = engine.array_sums((square, first), keepdims=True)
        r = _mixed_moments(b, r, row_sums / whole[first])
        total, column_sums = engine.array_sums((r, second), (square, second), keepdims=True)
        c = _mixed_moments(b, c, column_sums / whole[second])
        mean = total / whole[second]
        u = over_factored_root(g, r, c, mean)
        return u, jnp.squeeze(r, first), jnp.squeeze(c, second), v


class ScaleBySM3State(NamedTuple):
    """State of `scale_by_sm3`."""

    mu: Slot  # at least float32; the maxima c, a vector: one per index of axis 0, of axis 1, ...
    nu: Slot  # like params, at least float32; the moving average m of the scaled gradient


@transform
class scale_by_sm3(ArrayRule):
    """Adagrad with one maximum per row and per column (and so on) instead of a sum per entry.

    Update rule, from c = 0 and m = 0, with c_k(i) the number of index i along axis k:

        s = b2 (the least of the numbers c_k(i) of an entry's indices) + (1 - b2) g^2
        m <- b1 m + (1 - b1) g / sqrt(s + eps)      (g / sqrt(s + eps) is 0 where s = 0)
        c_k(i) <- the largest s of all entries with index i along axis k
        u = m

    With b2 = 1, g^2 is added unweighted. The maxima of a parameter of shape (d0, d1, ...) are one
    vector of d0 + d1 + ... numbers (in Optax, a list of vectors); a scalar has one number.

    Args:
      b1: the decay of the average, in [0, 1).
      b2: the decay of the maxima, in [0, 1]; 1, without decay, in the paper.
      eps: added under the root, at least 0; the paper has none, and 1e-8 is Optax's.

    Reference: Anil et al., Memory-Efficient Adaptive Optimization, 2019, Algorithm SM3-II.
    """

    b1: Decay = 0.9
    b2: UnitInterval = 1.0
    eps: NonNegative = 1e-8

    State = ScaleBySM3State
    locality = "array"
    sees_pieces = True

    def init(self, params):
        """Return maxima and an average of zeros."""

        def maxima(p: Any) -> Array:
            axes = range(jnp.ndim(p))
            parts = [_zeros_of_moment(p, (k,)) for k in axes] or [_zeros_of_moment(p, ())[None]]
            return _joined_moments(parts)

        # The maxima are those of whole parameters, also where a device has pieces.
        whole = engine.whole_shapes(params)
        return ScaleBySM3State(mu=jax.tree.map(maxima, whole), nu=zeros_like(params))

    def rule(self, g, c, m, p):
        """Return the update, which is the average, and the maxima and the average."""
        g = bounded_square(g)
        new = self._weight_of_square() * jnp.square(g)
        s = saturated(self.b2 * _least_maximum(c, g.shape) + new)
        scaled = g * jnp.where(s == 0, 0, one_over_root(plus(s, self.eps)))
        m = self.b1 * m + (1 - self.b1) * scaled
        return m, _maxima_of_indices(s), m

    def _weight_of_square(self) -> Scalar:
        """Return 1 - b2, but 1 for a b2 of 1."""
        if is_live(self.b2):
            return jnp.where(self.b2 == 1, 1, 1 - self.b2)
        if self.b2 == 1:
            return 1
        return 1 - self.b2


def _least_maximum(c: Array, shape: tuple[int, ...]) -> Array:
    """Return for every entry of an array of that shape the least of the maxima of its indices."""
    least, start, cut = jnp.asarray(jnp.inf, c.dtype), 0, engine.cut_here()
    for k, size in enumerate(cut.whole(shape)):
        maxima = engine.own_piece(lax.slice_in_dim(c, start, start + size), cut.along(k))
        broadcastable = [1] * len(shape)
        broadcastable[k] = shape[k]
        least = jnp.minimum(least, jnp.reshape(maxima, broadcastable))
        start += size
    return least if shape else c[0]


def _maxima_of_indices(s: Array) -> Array:
    """Return for every index of every axis the largest of its entries, in one vector."""
    if not s.ndim:
        return s[None]
    axes, cut = range(s.ndim), engine.cut_here()
    local = [jnp.max(s, axis=tuple(i for i in axes if i != k), initial=0) for k in axes]
    if not cut.cuts:
        return _joined_moments(local)
    # The maxima are at least 0: those of other devices' indices are zeros here.
    local = [engine.among_zeros(x, cut.along(k)) for k, x in enumerate(local)]
    (maxima,) = engine.over_pieces((_joined_moments(local), cut.axes), operation="max")
    return maxima

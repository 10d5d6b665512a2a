"""PSGD Kron: a preconditioner that is fitted to the gradient, of two triangular factors."""

import functools
import math
from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform.base import transform
from gradxform.errors import require_non_negative, require_one_of
from gradxform.linalg.products import largest_entry
from gradxform.numerics import (
    bias_correction,
    cast,
    over,
    safe_increment,
    scalar,
    squarable,
    value_at,
)
from gradxform.schedules import exponential_decay
from gradxform.slots import zero_count
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.transforms.matrices.rule import MatrixRule, check_compute_dtype
from gradxform.transforms.tree_rules import live_key
from gradxform.types import (
    Array,
    Decay,
    DType,
    FixedBound,
    Key,
    MatrixSlot,
    NonNegative,
    Positive,
    Size,
    StaticTree,
    UnitIntervalOrSchedule,
)

# The factors learn most at the start, and every update of them costs some products.
UPDATE_PROBABILITY = exponential_decay(1.0, 1000, math.exp(-1), 500, end_value=0.03)
MODES = ("one_diag", "all_diag")
# The root mean square of an update at which it is cut; that of a fitted preconditioner is 1.
TRUST = 1.1


class PsgdKronState(NamedTuple):
    """State of `scale_by_psgd_kron`; of every parameter B matrices of sides m <= n."""

    count: Array  # int32 scalar; the number of updates so far
    accumulated: Array  # scalar; of a deterministic schedule, the part of an update that is due
    mu: MatrixSlot  # (B, m, n), at least float32; the average of the gradient
    left: MatrixSlot  # (B, m, m), upper triangular, or (B, m), the diagonal
    right: MatrixSlot  # (B, n, n) or (B, n)


@transform
class scale_by_psgd_kron(MatrixRule):
    """Multiply a moving average of the gradient by a preconditioner of two factors.

    Update rule for a matrix of sides m <= n (a tall one is turned), from M = 0 and multiples of the
    identity as Q_l and Q_r, with t = 1, 2, ...:

        M <- b1 M + (1 - b1) G;    C = M / (1 - b1^t)
        U = Q_l^T Q_l C Q_r^T Q_r,   times min(1, 1.1 / rms(U))

    With the probability p(t - 1), the factors are fitted first. With V standard normal:

        A = Q_l C Q_r^T;    B = Q_l^-T V Q_r^-1
        Q_l <- Q_l - precond_lr triu(A A^T - B B^T) Q_l / |A A^T + B B^T|
        Q_r <- Q_r - precond_lr triu(A^T A - B^T B) Q_r / |A^T A + B^T B|

    where |.| is a lower bound of the spectral norm, and of a diagonal factor the largest entry.
    The fit makes U as white as V. Then both factors are scaled to the same largest entry, which
    leaves the preconditioner as it is. A gradient of zeros leaves the factors as they are.

    All matrices are fitted at the same steps. V and the decision depend only on the key, the number
    of the step and the index of a matrix among those of equal sides, so that a resumed run goes on
    exactly. Factors are fitted in full float32, the other products are computed in the precision
    that JAX is told to use (`jax.default_matmul_precision`).

    If an entry of a gradient exceeds 2.6e15 (in float32), its matrix is first scaled down to that
    size.

    Args:
      b1: the decay of the average, in [0, 1).
      preconditioner_update_probability: p, in [0, 1], or a schedule. Defaults to 1 for 500 steps,
        which then falls to 0.03 as exp(-n / 1000).
      max_size_triangular: the longest side that has a triangular factor, an integer, at least 0; a
        longer one has a diagonal.
      max_skew_triangular: a side that is more than so many times as long as the other has a
        diagonal; greater than 0. Defaults to infinity.
      memory_save_mode: "one_diag", where the longer side has a diagonal (of equal sides, the
        columns), or "all_diag", where both have one. Defaults to neither.
      momentum_into_precond_update: whether C is M / (1 - b1^t) in the fit, or the gradient.
      precond_lr: the step of the fit, at least 0.
      precond_init_scale: the factor of the identity that the preconditioner's root begins with,
        greater than 0.
      deterministic: whether p is added up, and the factors are fitted when the sum reaches 1. By
        default the decision is drawn. Keyword-only.
      key: the seed of V and of the decisions, an integer or a PRNG key. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: "bfloat16" for products of 16-bit factors, and exchanges of 16-bit gradients
        and updates on a mesh; the fit stays. None: the dtype of the gradient, at least
        float32. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.
      TypeError: at init and update, for complex and integer leaves.

    Reference: Li, Preconditioned Stochastic Gradient Descent, 2018, and Preconditioner on Matrix
    Lie Group for SGD, 2018; the defaults and the bound of the update are those of the public code
    `kron` of evanatyourservice/kron_torch.
    """

    b1: Decay = 0.9
    preconditioner_update_probability: UnitIntervalOrSchedule = UPDATE_PROBABILITY
    max_size_triangular: Size = 8192
    max_skew_triangular: FixedBound = math.inf
    memory_save_mode: str | None = None
    momentum_into_precond_update: bool = True
    precond_lr: NonNegative = 0.1
    precond_init_scale: Positive = 1.0
    deterministic: bool = field(default=False, kw_only=True)
    key: Key = field(default=0, kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)

    State = PsgdKronState
    locality = "array"

    def __post_init__(self):
        require_non_negative(self, "max_size_triangular")
        if self.memory_save_mode is not None:
            require_one_of(self, "memory_save_mode", MODES)
        check_compute_dtype(self)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return averages of zeros, and multiples of the identity as factors."""

        def factor(of_rows: bool) -> Any:
            def make(count: int, m: int, n: int, dtype: Any) -> Array:
                d = m if of_rows else n
                root = jnp.sqrt(jnp.asarray(self.precond_init_scale, dtype))
                if self._is_diagonal(m, n, of_rows):
                    return jnp.broadcast_to(root, (count, d))
                return jnp.tile(root * jnp.eye(d, dtype=dtype)[None], (count, 1, 1))

            return make

        return PsgdKronState(
            count=zero_count(),
            accumulated=scalar(0.0),
            mu=self.matrix_slots(params, lambda b, m, n, dtype: jnp.zeros((b, m, n), dtype)),
            left=self.matrix_slots(params, factor(True)),
            right=self.matrix_slots(params, factor(False)),
        )

    def _is_diagonal(self, m: int, n: int, of_rows: bool) -> bool:
        """Whether a side of a matrix has a diagonal factor."""
        d, other = (m, n) if of_rows else (n, m)
        by_mode = {None: False, "one_diag": not of_rows, "all_diag": True}
        too_long = d > self.max_size_triangular or d > self.max_skew_triangular * other
        return d == 1 or too_long or by_mode[self.memory_save_mode]

    def prepare(self, state, params):
        """Return the state, the bias correction, whether to fit, and the key of the step."""
        count = safe_increment(state.count)
        key = jax.random.fold_in(live_key(self.key), state.count)
        probability = value_at(self.preconditioner_update_probability, state.count)
        accumulated = state.accumulated
        if self.deterministic:
            accumulated = accumulated + cast(probability, accumulated.dtype)
            # A sum of thirds must reach 1.
            fits = accumulated >= 1 - 1e-5
            accumulated = jnp.where(fits, jnp.maximum(accumulated - 1, 0), accumulated)
        else:
            fits = jax.random.uniform(key, dtype=jnp.float32) < cast(probability, jnp.float32)
        state = state._replace(count=count, accumulated=accumulated)
        return state, bias_correction(self.b1, count), fits, jax.random.key_data(key)

    def rule(self, g, m, left, right, debias, fits, key):
        """Return the preconditioned average, and the new state of every matrix."""
        if not g.size:  # the largest of no entries is undefined
            return g, m, left, right
        g = squarable(g, (-2, -1))
        m = self.b1 * m + (1 - self.b1) * g
        c = debias * m
        fit_input = c if self.momentum_into_precond_update else g
        left, right = lax.cond(
            fits, lambda: self._fitted(fit_input, left, right, key), lambda: (left, right)
        )
        # The factors meet numbers near 1, and the size comes last, so that nothing overflows.
        size = jnp.max(jnp.abs(c), axis=(-2, -1), keepdims=True)
        product = functools.partial(linalg.matmul_in, dtype=self.compute_dtype)
        u = _psgd_from_left(
            left, _psgd_from_right(over(c, size), right, product=product), product=product
        )
        u = _psgd_from_right(u, right, True, product)
        u = _psgd_from_left(left, u, True, product)
        entries = (u.shape[-2] * u.shape[-1]) ** 0.5
        bound = over(jnp.asarray(TRUST * entries, u.dtype), linalg.frobenius_norm(u))
        return u * jnp.minimum(size, bound), m, left, right

    def _fitted(self, g: Array, left: Array, right: Array, key: Array) -> tuple[Array, Array]:
        """Return the factors after one step of the fit."""
        count, m, n = g.shape
        keys = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), m), n)

        def draw(i: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(keys, i), (m, n), jnp.float32)

        v = cast(jax.vmap(draw)(engine.matrix_numbers(count)), g.dtype)
        a = _psgd_from_left(left, _psgd_from_right(g, right))
        b = _solved(left, right, v)
        # Only the ratio of the two counts.
        largest = jnp.maximum(largest_entry(a), largest_entry(b))
        is_seen = jnp.all(jnp.isfinite(a) & jnp.isfinite(b), axis=(-2, -1), keepdims=True)
        is_seen = is_seen & (largest_entry(a) > 0)
        a, b = over(a, largest), over(b, largest)
        at, bt = jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2)
        new_left = self._stepped(left, a, at, b, bt, is_seen)
        new_right = self._stepped(right, at, a, bt, b, is_seen)
        return _balanced_factors(new_left, new_right)

    def _stepped(self, q: Array, a: Array, at: Array, b: Array, bt: Array, is_seen: Array) -> Array:
        if q.ndim == 2:
            one, two = jnp.sum(a * a, axis=-1), jnp.sum(b * b, axis=-1)
            norm = jnp.max(jnp.abs(one + two), axis=-1, keepdims=True)
            new = q - self.precond_lr * over(one - two, norm) * q
            return jnp.where(is_seen[..., 0], new, q)
        one, two = linalg.matmul(a, at), linalg.matmul(b, bt)
        step = over(jnp.triu(one - two), _norm_bound(one + two))
        return jnp.where(is_seen, q - self.precond_lr * linalg.matmul(step, q), q)


def _psgd_from_left(
    q: Array, x: Array, turned: bool = False, product: Callable[..., Array] = linalg.matmul
) -> Array:
    """Return Q x, or Q^T x, with a factor that may be a diagonal."""
    if q.ndim == 2:
        return q[..., :, None] * x
    return product(jnp.swapaxes(q, -1, -2) if turned else q, x)


def _psgd_from_right(
    x: Array, q: Array, turned: bool = False, product: Callable[..., Array] = linalg.matmul
) -> Array:
    """Return x Q^T, or x Q where turned."""
    if q.ndim == 2:
        return x * q[..., None, :]
    return product(x, q if turned else jnp.swapaxes(q, -1, -2))


def _solved(left: Array, right: Array, v: Array) -> Array:
    """Return Q_l^-T v Q_r^-1."""
    if left.ndim == 2:
        v = v / left[..., :, None]
    else:
        v = linalg.one_by_one(_left_solved, left, v)
    if right.ndim == 2:
        return v / right[..., None, :]
    return linalg.one_by_one(lax.linalg.triangular_solve, right, v)


def _left_solved(q: Array, v: Array) -> Array:
    return lax.linalg.triangular_solve(q, v, left_side=True, transpose_a=True)


def _balanced_factors(left: Array, right: Array) -> tuple[Array, Array]:
    """Return both factors with the same largest entry; their product stays."""

    def largest(q: Array) -> Array:
        return jnp.max(jnp.abs(q), axis=tuple(range(1, q.ndim)))

    ratio = jnp.sqrt(largest(right)) / jnp.sqrt(largest(left))
    return left * _beside_factor(ratio, left), right / _beside_factor(ratio, right)


def _beside_factor(x: Array, like: Array) -> Array:
    return x.reshape(-1, *(1,) * (like.ndim - 1))


def _norm_bound(a: Array) -> Array:
    """Return a lower bound of the spectral norm of symmetric matrices, (..., 1, 1).

    The length of A x for x = A r, normalized, with r the row of the largest norm: in practice
    between the norm and 1.4 of it.
    """
    size = largest_entry(a)
    a = over(a, size)
    i = jnp.argmax(jnp.sum(a * a, axis=-1), axis=-1)[..., None, None]
    x = linalg.matmul(jnp.take_along_axis(a, i, axis=-2), a)
    return size * linalg.frobenius_norm(linalg.matmul(over(x, linalg.frobenius_norm(x)), a))

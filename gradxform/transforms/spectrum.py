"""Momentum whose singular values are replaced by a function of them."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradxform import engine, linalg
from gradxform.base import transform
from gradxform.errors import must_be, name_of, require_one_of, shown
from gradxform.linalg.products import frobenius_norm, gram_of, largest_entry, with_largest_one
from gradxform.numerics import cast, over, safe_increment, scalar, value_at
from gradxform.numerics.overflow import saturated
from gradxform.numerics.roots import norm, root
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.matrices.dimensions import (
    MuonDimensionNumbers,
    axes_of_all,
    check_numbers,
)
from gradxform.transforms.matrices.rule import MatrixRule, check_compute_dtype
from gradxform.transforms.muon import averaged, weights_of
from gradxform.transforms.spectra import Spectrum, polynomial_spectrum
from gradxform.types import (
    Array,
    Choice,
    Decay,
    DType,
    MatrixSlot,
    NonNegative,
    Scalar,
    Slot,
    StaticTree,
    UnitIntervalOrSchedule,
)
from gradxform.values import is_function

# The axes along which vectors are made equal, by whose they are.
_EQUAL = {"inputs": (-1,), "outputs": (-2,), "both": (-1, -2)}


class ScaleBySpectrumState(NamedTuple):
    """State of `scale_by_spectrum`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the gradient


MATRIX_NORMS = ("frobenius", "schatten")


def with_norm_of(like: Array, x: Array, kind: str) -> Array:
    """Return matrices with the norms of others; zeros stay zeros."""
    size = frobenius_norm if kind == "frobenius" else _schatten_norm
    return over(x * size(like), size(x), 0)


def _schatten_norm(x: Array) -> Array:
    """Return the fourth roots of the sums of fourth powers of singular values, `(..., 1, 1)`."""
    return largest_entry(x) * root(frobenius_norm(gram_of(with_largest_one(x))))


@transform
class scale_by_spectrum(MatrixRule):
    """Replace the singular values of a moving average by a function of them, by matrix products.

    Update rule, with a as in `scale_by_muon`, U S V^T = a / |a| in the norm of `preconditioning`,
    and U f0(S) V^T, singular values near 1, the end of the iteration that f is computed from:

        u = U f(S) V^T
        u <- u |U f0(S) V^T| / |u|                      (with keep_norm)
        u <- <a, U f0(S) V^T> u                         (adaptive)

    With equilibrate, a is first divided by r_i = sqrt(sum of a_ij^2 over j + eps), the norm of an
    input's row, or by that of an output's column, or by both.

    With `to` and a share, which may be a schedule, u is (1 - share) u + share u2, u2 being that of
    the function `to`, and keep_norm holds for the sum too: one function fades into another.

    With `polynomial_spectrum()` it is `scale_by_muon`. Batches, meshes and low precision are
    Muon's; devices exchange whole matrices for all but sums of iterates without keep_norm.

    Args:
      spectrum: f: `polynomial_spectrum`, `power_spectrum`, `clip_spectrum`, `contra_spectrum(...)`
        or `soft_spectrum()`.
      beta: the decay of the average, in [0, 1).
      eps: added to the norm of a matrix, and under the roots of equilibrate, at least 0.
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      to: the other function. Defaults to none. Keyword-only.
      share: its share, in [0, 1], or a schedule. Keyword-only.
      equilibrate: "inputs", "outputs" or "both" for vectors of equal length before the iteration.
        Defaults to none. Keyword-only.
      keep_norm: "frobenius" or "schatten", the fourth root of the sum of fourth powers of singular
        values, for a norm that does not depend on f. Defaults to none. Keyword-only.
      nesterov: whether to look one step ahead. Keyword-only.
      debias: whether to correct the average for its start at 0. Keyword-only.
      adaptive: whether to scale each matrix by the nuclear norm of a, as f0 knows it. Keyword-only.
      preconditioning: as in `scale_by_muon`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.

    Raises:
      ValueError: if there is a share without `to`; at init and update, if a parameter is not a
        matrix, or its numbers do not fit.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Chang
    et al., MuonEq: Balancing Before Orthogonalization with Lightweight Equilibration, 2026, for
    equilibrate; Lau et al., PolarGrad, 2025, for adaptive;
    nilin.github.io/contra-muon-and-soft-muon, 2026, and modded-nanogpt, optimization track, pull
    requests 275 and 291, for keep_norm and `to`.
    """

    spectrum: Any = polynomial_spectrum()
    beta: Decay = 0.95
    eps: NonNegative = 1e-8
    mu_dtype: DType = None
    to: Any = field(default=None, kw_only=True)
    share: UnitIntervalOrSchedule = field(default=0.0, kw_only=True)
    equilibrate: Choice | None = field(default=None, kw_only=True)
    keep_norm: Choice | None = field(default=None, kw_only=True)
    nesterov: bool = field(default=True, kw_only=True)
    debias: bool = field(default=True, kw_only=True)
    adaptive: bool = field(default=False, kw_only=True)
    preconditioning: Choice = field(default="frobenius", kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)

    State = ScaleBySpectrumState
    averages_of = (("mu", "g"),)

    def __post_init__(self):
        for name in ("spectrum", "to"):
            f = getattr(self, name)
            if not (isinstance(f, Spectrum) or (name == "to" and f is None)):
                what = "a spectrum, such as polynomial_spectrum() or contra_spectrum(0.2)"
                raise TypeError(must_be(self, name, what, f))
        is_number = isinstance(self.share, int | float)
        if self.to is None and (self.share if is_number else is_function(self.share)):
            share = shown(self.share)
            raise ValueError(f"{name_of(self)}: share={share} does nothing without to.")
        if self.equilibrate is not None:
            require_one_of(self, "equilibrate", _EQUAL)
        if self.keep_norm is not None:
            require_one_of(self, "keep_norm", MATRIX_NORMS)
        require_one_of(self, "preconditioning", linalg.PRECONDITIONINGS)
        check_compute_dtype(self)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    @property
    def oriented(self) -> bool:
        """Whether it matters which sides of a matrix are rows."""
        return self.equilibrate is not None

    def init(self, params):
        """Return an average of zeros."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return ScaleBySpectrumState(zero_count(), zeros_like(params, self.mu_dtype))

    def prepare(self, state, params):
        """Return the state, the weights of the average, those of both sums, and the share."""
        count = safe_increment(state.count)
        functions = self.spectrum, self.to
        of_iterates = [None if f is None else f.weights(state.count) for f in functions]
        share = value_at(self.share, state.count)
        return state._replace(count=count), *weights_of(self, count), *of_iterates, share

    def entries(
        self, g: Array, m: Array, p: Array | None, of_m: Scalar, of_g: Scalar, *_: Any
    ) -> tuple[Array, Array]:
        """Return what is orthogonalized, and the average."""
        return averaged(self, g, m, of_m, of_g)

    def rule(self, a, _m, _g, weights, weights_to, share):
        """Return matrices with the same singular vectors, and other singular values."""
        x = self._equal(a) if self.equilibrate else a
        tall = x.shape[-2] > x.shape[-1]
        x = jnp.swapaxes(x, -1, -2) if tall else x
        last, u, *others = self._replaced(x, weights, weights_to)
        for other in others:
            u = self._sized(u + cast(share, u.dtype) * (other - u), last)
        if self.adaptive:
            b = jnp.swapaxes(a, -1, -2) if tall else a
            u = jnp.sum(b * last, axis=(-2, -1), keepdims=True) * u
        return jnp.swapaxes(u, -1, -2) if tall else u

    @property
    def _is_one_iteration(self) -> bool:
        """Whether both functions are sums of the same iterates."""
        f, to = self.spectrum, self.to
        sums = isinstance(f, polynomial_spectrum) and isinstance(to, polynomial_spectrum)
        return sums and np.array_equal(f.rows, to.rows)

    def _replaced(self, x: Array, weights: Any, weights_to: Any) -> list[Array]:
        """Return the end of the iteration, and the matrices with the values of each function."""
        options: dict[str, Any] = {
            "preconditioning": self.preconditioning,
            "eps": self.eps,
            "dtype": self.compute_dtype,
            "columns": engine.columns_now(),
        }

        def iterate(x: Array, rows: Array, *weights: Array | None) -> tuple[Array, ...]:
            given = [w for w in weights if w is not None]
            last, sums = linalg.sums_of_iterates(x, rows, given, **options)
            left = iter(sums)
            return last, *[last if w is None else next(left) for w in weights]

        if self._is_one_iteration:
            rows = jnp.asarray(self.spectrum.rows, x.dtype)
            last, *us = iterate(x, rows, weights, weights_to)
            return [last, *[self._sized(u, last) for u in us]]
        functions = [(self.spectrum, weights), (self.to, weights_to)]
        found = [f.of(x, of_f, iterate) for f, of_f in functions if f is not None]
        return [found[0][0], *[self._sized(u, last) for last, u in found]]

    def _sized(self, u: Array, last: Array) -> Array:
        """Return matrices with the norm of the end of the iteration."""
        return u if self.keep_norm is None else with_norm_of(last, u, self.keep_norm)

    def _equal(self, a: Array) -> Array:
        """Return matrices whose rows or columns, or both, are divided by their norms."""
        x, largest = a, largest_entry(a)
        shares = over(a, largest, 0)  # whose squares neither overflow nor vanish
        least = over(cast(jnp.sqrt(scalar(self.eps)), a.dtype), largest, 0)
        for axis in _EQUAL[self.equilibrate or ""]:
            length = saturated(jnp.hypot(norm(shares, axis), least) * largest)
            x = over(x, length, 0)
        return x

    def grams_needed(self, m: int, n: int) -> int | None:
        """Return how many products X X^H a step forms; None if it needs whole matrices."""
        functions = [f for f in (self.spectrum, self.to) if f is not None]
        sums = all(isinstance(f, polynomial_spectrum) for f in functions)
        if not sums or self.keep_norm or self.equilibrate or self.adaptive:
            return None
        if self.preconditioning == "spectral":
            return None
        return sum(f.turns for f in functions[: 1 if self._is_one_iteration else 2])


class NeuronRmsState(NamedTuple):
    """State of `scale_by_neuron_rms`."""

    nu: MatrixSlot  # (B, longer side) of each parameter's B matrices; the average v of squares


@transform
class scale_by_neuron_rms(MatrixRule):
    """Divide the vectors along the longer side of every matrix by their root mean square so far.

    Update rule for a matrix of which j counts the longer side, that of the outputs if it is square,
    from v = 0:

        v_j <- beta2 v_j + (1 - beta2) mean of g_ij^2 over i
        u_ij = g_ij / sqrt(max(v_j, eps))
        u <- u |g| / |u|

    The norm of the update stays. Put it after a rule such as `scale_by_spectrum`.
    `scale_by_normuon` always looks at the outputs.

    Args:
      beta2: the decay of v, in [0, 1).
      eps: the least v, at least 0.
      norm: which norm stays: "frobenius", or "schatten" as in `scale_by_spectrum`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: modded-nanogpt, optimization track, pull request 274, 2026; Li et al., NorMuon:
    Making Muon more efficient and scalable, 2025.
    """

    beta2: Decay = 0.95
    eps: NonNegative = 1e-10
    norm: Choice = field(default="frobenius", kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)

    State = NeuronRmsState

    def __post_init__(self):
        require_one_of(self, "norm", MATRIX_NORMS)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def init(self, params):
        """Return averages of zeros."""
        return NeuronRmsState(
            self.matrix_slots(params, lambda b, m, n, dtype: jnp.zeros((b, n), dtype))
        )

    def rule(self, g, v):
        """Return the update of a batch of matrices, and the average of the squares."""
        v = self.beta2 * v + (1 - self.beta2) * jnp.mean(g * g, axis=-2)
        u = over(g, root(jnp.maximum(v, self.eps))[:, None, :], self.eps)
        return with_norm_of(g, u, self.norm), v

"""Functions of singular values that matrix products reach, for `scale_by_spectrum`."""

import abc
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import linalg
from gradxform.errors import must_be, name_of
from gradxform.linalg.products import adjoint, identity_like, matmul
from gradxform.numerics import scalar, value_at
from gradxform.schedules.product import product_schedule
from gradxform.transforms.muon import NS_COEFFS, checked_coefficients, polar_express
from gradxform.types import Array, Fraction, NonNegative, PositiveInt
from gradxform.values import Value, is_function
from gradxform.values.fields import check_schedule, value

__all__ = [
    "clip_spectrum",
    "contra_spectrum",
    "polynomial_spectrum",
    "power_spectrum",
    "soft_spectrum",
]

# X <- 2 X - 1.5 (X X^T) X + 0.5 (X X^T)^2 X: values of 1 stay, and no value passes 1.
SIMPLE_TURN = (2.0, -1.5, 0.5)

# From matrices, coefficients and weights of sums: the polar factors, and the sums of the iterates.
Iterate = Callable[..., tuple[Array, ...]]


class Spectrum(Value, abc.ABC):
    """The base of functions f of the singular values of matrices, which are in [0, 1].

    `f(s)` is the function itself, for any array of singular values.
    """

    coefficients: tuple[Any, ...]
    turns: int

    never_schedule = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", checked_coefficients(self, "coefficients"))
        rows = self.coefficients
        if isinstance(rows[0], tuple) and len(rows) != self.turns:
            raise ValueError(
                f"{name_of(self)}: turns must be {len(rows)}, one for each row of coefficients, "
                f"got {self.turns}."
            )

    @property
    def rows(self) -> np.ndarray:
        """The coefficients of every turn, `(turns, 3)`."""
        return np.broadcast_to(np.asarray(self.coefficients), (self.turns, 3))

    def weights(self, count: Any) -> Array | None:
        """Return the weights of the iterates X_0, X_1, ... that `of` needs, after `count` updates.

        By default the sum is X_0, the matrices as they are. None: it is the last one.
        """
        return scalar([1.0] + [0.0] * self.turns)

    @abc.abstractmethod
    def __call__(self, s: Any) -> np.ndarray:
        """Return the function of singular values, in float64."""

    @abc.abstractmethod
    def of(self, x: Array, weights: Array | None, iterate: Iterate) -> tuple[Array, ...]:
        """Return the polar factors of matrices, and the matrices with other singular values.

        Args:
          x: matrices that are not higher than wide, `(..., m, n)`.
          weights: what `weights` returns.
          iterate: returns the polar factors of matrices and the weighted sums of their iterates.
        """


@value
class polynomial_spectrum(Spectrum):
    """Replace singular values by a weighted sum of their iterates.

    With s_0 = s and s_(k+1) = a s_k + b s_k^3 + c s_k^5, where a, b, c are the turn's coefficients:

        f(s) = w_0 s_0 + w_1 s_1 + ...

    By default only the last one counts, which is near 1: then `scale_by_spectrum` is
    `scale_by_muon`.

    Args:
      coefficients: three numbers for all turns, or three for each turn.
      turns: the number of turns, at least 1.
      iterates: the weights w_0, w_1, ..., one more than there are turns: numbers, or schedules.
        Defaults to 1 for the last and 0 for the others.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024.
    """

    coefficients: tuple[Any, ...] = NS_COEFFS["standard"]
    turns: PositiveInt = 5
    iterates: tuple[Any, ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.iterates is None:
            return
        if len(self.iterates) != self.turns + 1:
            raise ValueError(
                f"{name_of(self)}: iterates must be {self.turns + 1} weights, one more than turns, "
                f"got {len(self.iterates)}."
            )
        for i, weight in enumerate(self.iterates):
            _check_weight(self, f"iterates[{i}]", weight)

    def weights(self, count: Any) -> Array | None:
        """Return the weights after `count` updates."""
        if self.iterates is None:
            return None
        return jnp.stack([scalar(value_at(w, count)) for w in self.iterates])

    def __call__(self, s: Any, count: Any = 0) -> np.ndarray:
        """Return the sum, with the weights after `count` updates."""
        s = np.asarray(s, np.float64)
        weights = self.weights(jnp.asarray(count, jnp.int32))
        total = 0.0 if weights is None else weights[0] * s
        for i, (a, b, c) in enumerate(self.rows):
            s = a * s + b * s**3 + c * s**5
            total = s if weights is None else total + np.float64(weights[i + 1]) * s
        return np.asarray(total)

    def of(self, x: Array, weights: Array | None, iterate: Iterate) -> tuple[Array, ...]:
        """Return the polar factors, and the sums of the iterates."""
        return iterate(x, jnp.asarray(self.rows, x.dtype), weights)


@value
class power_spectrum(Spectrum):
    """Raise singular values to a power: f(s) = (s + ridge)^exponent.

    From the polar factor Q, H = X Q^T + ridge I has the singular values and the left singular
    vectors of X. Coupled iterations find its square root and the inverse of that, and of these the
    next roots; the result is H^exponent Q. Roots are computed in full precision.

    Args:
      exponent: 0.25, 0.5 or 0.75, or one of them negative.
      ridge: added to every singular value, at least 0. A negative power of a singular value that
        is near 0 is large, and is as exact as the ridge is large.
      coefficients: of the iteration for Q, as in `polynomial_spectrum`.
      turns: its turns; more of them reach smaller singular values.

    Reference: Higham, Functions of Matrices, 2008, equation (6.35); Wu et al., DynMuon: A Dynamic
    Spectral Shaping View of Muon, 2026, for powers as steps.
    """

    exponent: float
    ridge: NonNegative = 1e-3
    coefficients: tuple[Any, ...] = polar_express(8)
    turns: PositiveInt = 8

    def __post_init__(self):
        super().__post_init__()
        if self.exponent not in (0.25, 0.5, 0.75, -0.25, -0.5, -0.75):
            what = "0.25, 0.5 or 0.75, or one of them negative"
            raise ValueError(must_be(self, "exponent", what, self.exponent))

    def __call__(self, s: Any) -> np.ndarray:
        """Return the power."""
        return (np.asarray(s, np.float64) + self.ridge) ** self.exponent

    def of(self, x: Array, weights: Array | None, iterate: Iterate) -> tuple[Array, ...]:
        """Return the polar factors, and the matrices with powers of their singular values."""
        q, x = iterate(x, jnp.asarray(self.rows, x.dtype), weights)
        h = matmul(x, adjoint(q))
        h = (h + adjoint(h)) / 2 + self.ridge * identity_like(h)
        half = linalg.square_roots(h)[0 if self.exponent > 0 else 1]
        quarters = round(4 * abs(self.exponent))
        power = half if quarters > 1 else None
        if quarters % 2:
            quarter = linalg.square_root(half)
            power = quarter if power is None else matmul(power, quarter)
        assert power is not None
        return q, matmul(power, q)


@value
class clip_spectrum(Spectrum):
    """Bound singular values: f(s) = min(s, limit).

    With Q the polar factor of X, and S that of limit Q - X, whose singular values are the signs of
    limit - s:

        f(X) = (limit Q + X - (limit Q - X) S^T Q) / 2

    Args:
      limit: the largest singular value, in (0, 1), as a share of the bound on all of them.
      coefficients: of the iteration for Q and S, as in `polynomial_spectrum`.
      turns: its turns.

    Reference: Cesista, Fast, Numerically Stable, and Auto-Differentiable Spectral Clipping via
    Newton-Schulz Iteration, 2025.
    """

    limit: Fraction
    coefficients: tuple[Any, ...] = polar_express(8)
    turns: PositiveInt = 8

    def __call__(self, s: Any) -> np.ndarray:
        """Return the smaller one of a singular value and the limit."""
        return np.minimum(np.asarray(s, np.float64), self.limit)

    def of(self, x: Array, weights: Array | None, iterate: Iterate) -> tuple[Array, ...]:
        """Return the polar factors, and the matrices with bounded singular values."""
        rows = jnp.asarray(self.rows, x.dtype)
        q, x = iterate(x, rows, weights)
        below = self.limit * q - x
        signs, _ = iterate(below, rows, weights)
        beyond = matmul(matmul(below, adjoint(signs)), q)
        return q, (self.limit * q + x - beyond) / 2


def _check_weight(part: Any, name: str, weight: Any) -> None:
    """Require a number or a schedule."""
    if is_function(weight):
        check_schedule(part, name, weight)
    elif isinstance(weight, bool) or not isinstance(weight, int | float | jax.Array):
        raise TypeError(must_be(part, name, "a number or a schedule", weight))
    elif isinstance(weight, int | float) and not math.isfinite(weight):
        raise ValueError(must_be(part, name, "finite", weight))


def contra_spectrum(contra: Any = 0.2) -> polynomial_spectrum:
    """Return f(s) = 1 - contra s: the larger a singular value, the shorter the step along it.

    Args:
      contra: how much shorter, a number or a schedule.

    Reference: nilin, Contra-Muon and Soft-Muon, nilin.github.io/contra-muon-and-soft-muon, 2026;
    modded-nanogpt, optimization track, pull request 291.
    """
    _check_weight("contra_spectrum", "contra", contra)
    weight: Any = product_schedule(-1.0, contra) if is_function(contra) else -1.0 * contra
    return polynomial_spectrum(SIMPLE_TURN, 12, (weight, *[0.0] * 11, 1.0))


def soft_spectrum() -> polynomial_spectrum:
    """Return a sum of iterates that is s^0.1 to 1% for s of at least 0.02.

    Reference: nilin, Contra-Muon and Soft-Muon, nilin.github.io/contra-muon-and-soft-muon, 2026;
    modded-nanogpt, optimization track, pull request 291.
    """
    return polynomial_spectrum(SIMPLE_TURN, 12, (*_SOFT, 0.0))


# The weights of X_0 to X_11, as published.
_SOFT = (
    0.1091613623,
    0.07085664498,
    0.05210528973,
    0.05457295795,
    0.05011334061,
    0.03334622198,
    0.05022104481,
    0.1053727358,
    0.1187323776,
    0.1185061091,
    0.1185059576,
    0.1185059576,
)

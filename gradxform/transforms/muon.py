"""Muon: momentum whose matrices are orthogonalized."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import engine, linalg
from gradxform.base import transform
from gradxform.errors import must_be, name_of, require_one_of
from gradxform.leaves import map_with_paths
from gradxform.numerics import bias_correction, safe_increment, scalar, scalar_dtype
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.matrices.dimensions import (
    MuonDimensionNumbers,
    axes_of_all,
    check_numbers,
    matrices,
)
from gradxform.transforms.matrices.rule import MatrixRule, check_compute_dtype
from gradxform.transforms.matrices.shape_factor import ShapeFactor
from gradxform.types import (
    Array,
    Choice,
    Decay,
    DType,
    NonNegative,
    PositiveInt,
    PyTree,
    Scalar,
    Slot,
    StaticTree,
)
from gradxform.values import Value, is_live
from gradxform.values.fields import value

# Coefficients of the orthogonalization by name. One row is repeated; of several, each is a turn.
NS_COEFFS: dict[str, tuple[Any, ...]] = {
    "standard": (3.4445, -4.7750, 2.0315),
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}

# The composed optimal polynomials of Amsel et al., 2025, for singular values from 0.001, before
# their safety factor. From the eighth turn on, all are the last.
_POLAR_EXPRESS = (
    (8.287212018145622, -23.59588651909882, 17.30038731253092),
    (4.1070591115422, -2.9478499167379097, 0.5448431082926601),
    (3.9486908534822946, -2.9089021159629453, 0.5518191394370127),
    (3.3184196573706015, -2.4884880243148753, 0.5100489401237204),
    (2.300652019954818, -1.668903984574751, 0.41880731195256765),
    (1.8913014077873982, -1.2679958271945875, 0.3768040894852486),
    (1.875001480869559, -1.2500016454321654, 0.3750001645635304),
    (1.875, -1.25, 0.375),
)
_SAFETY = 1.01  # values may exceed 1 by so much, from rounding


def polar_express(turns: int) -> tuple[tuple[float, float, float], ...]:
    """Return the coefficients of so many turns, with the safety factor in all but the last row."""
    safe = [(a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _POLAR_EXPRESS[:-1]]
    last = _POLAR_EXPRESS[-1]
    return tuple((safe + [last] * turns)[:turns])


def checked_coefficients(part: Any, name: str) -> tuple[Any, ...]:
    """Return the coefficients in a field as a tuple of numbers, or of tuples of numbers."""
    x = getattr(part, name)
    try:
        table: Any = np.asarray(x, np.float64)
    except (TypeError, ValueError):
        table = np.zeros(0)
    good = table.shape == (3,) or (table.ndim == 2 and table.shape[1] == 3 and len(table))
    words = any(isinstance(number, str | bool) for number in jax.tree.leaves(x))
    if words or not good or not np.isfinite(table).all():
        raise ValueError(must_be(part, name, "three numbers, or three for each turn", x))
    return tuple(tuple(x) if isinstance(x, list) else x for x in table.tolist())


def check_turns(part: Any) -> None:
    """Require as many turns as there are rows of coefficients, or more."""
    rows = len(part.ns_coeffs)
    several = isinstance(part.ns_coeffs[0], tuple) and not is_live(part.ns_steps)
    if several and rows > part.ns_steps:
        raise ValueError(
            f"{name_of(part)}: ns_coeffs has {rows} turns, ns_steps allows {part.ns_steps}."
        )


# Rows by name, for a number of turns.
NS_ROWS = {"polar_express": polar_express}


class MuonState(NamedTuple):
    """State of `scale_by_muon`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the gradient
    ns_coeffs: Array  # (3,) or (turns, 3), at least float32; of the orthogonalization


@transform
class scale_by_muon(MatrixRule):
    """Orthogonalize a moving average of the gradient, matrix by matrix.

    Update rule, from m = 0 and t = 1, 2, ...:

        m <- beta m + (1 - beta) g
        a = m / (1 - beta^t)                                             (without nesterov)
        a = beta m / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)      (with nesterov)
        u = NewtonSchulz(a)      (adaptive: u <- <a, u> u)

    Without debias, a is m, and with nesterov beta m + (1 - beta) g. NewtonSchulz keeps the singular
    vectors and brings all singular values near 1 (some 0.7 to 1.2), by a few matrix products.

    The corrections of the average are Optax's. Jordan's code and `torch.optim.Muon` do without:
    `debias=False`. The first step is the same; in the next ones g weighs more with the
    corrections. Without nesterov they change the size of a alone, and not u.

    For the hidden matrices of a network; embeddings, heads and vectors are for another rule, which
    `muon` arranges. Computed in float32, with products in the precision that JAX is told to use
    (`jax.default_matmul_precision`): on accelerators bfloat16 does well. On a mesh, see
    `distributed.shard_matrices`.

    Args:
      ns_coeffs: three numbers for all turns, or three for each turn.
      ns_steps: the number of turns, at least 1; with three numbers for each turn at least as many.
      beta: the decay of the average, in [0, 1).
      eps: added to the norm of a matrix, at least 0; with 0 a matrix of zeros stays.
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      nesterov: whether to look one step ahead. Keyword-only.
      debias: whether to correct the average for its start at 0. Keyword-only.
      adaptive: whether to scale u by the dual norm of a, so that it follows the gradient's size.
        Keyword-only.
      preconditioning: the norm that a matrix is divided by first: "frobenius", "spectral", "aol" or
        "schatten"; see `linalg.orthogonalize`. Keyword-only.
      weight_dimension_numbers: `MuonDimensionNumbers` or a `matrix_split` for all parameters, a
        tree of them (a prefix of the parameters will do), or a function of the parameters that
        returns one. None, also for one parameter: it has two dimensions. Keyword-only.
      compute_dtype: "bfloat16" for products of 16-bit factors, and exchanges of 16 bits on a mesh;
        m, norms and sums stay in float32. None, and always for complex matrices: the dtype of m
        and the gradient. Keyword-only.
      iteration: "direct", or "gram" to iterate on the product of a matrix with its transpose where
        one side is 2.5 times the other or longer. That takes half of the time at four times, and
        rounds differently. Not with a compute_dtype. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024;
    Bernstein and Newhouse, Old Optimizer, New Norm: An Anthology, 2024, for adaptive.
    """

    ns_coeffs: tuple[Any, ...] = NS_COEFFS["standard"]
    ns_steps: PositiveInt = 5
    beta: Decay = 0.95
    eps: NonNegative = 1e-8
    mu_dtype: DType = None
    nesterov: bool = field(default=True, kw_only=True)
    debias: bool = field(default=True, kw_only=True)
    adaptive: bool = field(default=False, kw_only=True)
    preconditioning: Choice = field(default="frobenius", kw_only=True)
    weight_dimension_numbers: StaticTree = field(default=None, kw_only=True)
    compute_dtype: DType = field(default=None, kw_only=True)
    iteration: Choice = field(default="direct", kw_only=True)

    State = MuonState
    handles_complex = True
    locality = "array"
    averages_of = (("mu", "g"),)
    set_by = (("ns_coeffs", "ns_coeffs"),)

    def __post_init__(self):
        object.__setattr__(self, "ns_coeffs", checked_coefficients(self, "ns_coeffs"))
        require_one_of(self, "preconditioning", linalg.PRECONDITIONINGS)
        require_one_of(self, "iteration", ("direct", "gram"))
        check_compute_dtype(self)
        if self.compute_dtype == "bfloat16" and self.iteration == "gram":
            raise ValueError(
                f"{name_of(self)}: iteration 'gram' needs products in float32; leave out "
                "compute_dtype, or use 'direct'."
            )
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)
        check_turns(self)

    def init(self, params):
        """Return an average of zeros, and the coefficients."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return MuonState(
            count=zero_count(),
            mu=zeros_like(params, self.mu_dtype),
            ns_coeffs=scalar(self.ns_coeffs),
        )

    def prepare(self, state, params):
        """Return the state, the weights of the average, and the coefficients of every turn."""
        count = safe_increment(state.count)
        of_m, of_g = weights_of(self, count)
        coefficients = state.ns_coeffs
        turns = None
        # A live number of turns cannot be the length of an array.
        if coefficients.ndim == 1 and is_live(self.ns_steps):
            coefficients, turns = coefficients[None], self.ns_steps
        elif coefficients.ndim == 1:
            coefficients = jnp.broadcast_to(coefficients[None], (self.ns_steps, 3))
        return state._replace(count=count), of_m, of_g, coefficients, turns

    def entries(
        self, g: Array, m: Array, p: Array | None, of_m: Scalar, of_g: Scalar, *_: Any
    ) -> tuple[Array, Array]:
        """Return what is orthogonalized, and the average."""
        return averaged(self, g, m, of_m, of_g)

    def rule(self, a, _m, _g, coefficients, turns):
        """Return matrices with the same singular vectors, and singular values near 1."""
        return linalg.orthogonalize(
            a,
            coefficients,
            self.preconditioning,
            self.eps,
            turns,
            dtype=self.compute_dtype,
            by_gram=self.iteration == "gram",
            columns=engine.columns_now(),
        )

    def grams_needed(self, m: int, n: int) -> int | None:
        """Return how many products X X^H a step forms; None if the rule needs whole matrices."""
        several = isinstance(self.ns_coeffs[0], tuple)
        if self.preconditioning == "spectral" or (is_live(self.ns_steps) and not several):
            return None
        turns = len(self.ns_coeffs) if several else self.ns_steps
        return linalg.grams_needed(turns, self.iteration == "gram", m, n)

    @property
    def finish(self) -> Any:
        """Where the update follows the gradient's size: the multiplication by the dual norm."""
        return _muon_by_dual_norm if self.adaptive else None


def weights_of(rule: Any, count: Array) -> tuple[Scalar, Scalar]:
    """Return the weights of the average and of the gradient in what is orthogonalized.

    Args:
      rule: which has `beta`, `nesterov` and `debias`.
      count: the number of updates, with this one.
    """
    one = scalar(1.0)
    now = bias_correction(rule.beta, count) if rule.debias else one
    if not rule.nesterov:
        return now, jnp.zeros((), scalar_dtype())
    then = bias_correction(rule.beta, safe_increment(count)) if rule.debias else one
    return rule.beta * then, (1 - rule.beta) * now


def averaged(rule: Any, g: Array, m: Array, of_m: Scalar, of_g: Scalar) -> tuple[Array, Array]:
    """Return what is orthogonalized, and the average, by the weights of `weights_of`."""
    m = rule.beta * m + (1 - rule.beta) * g
    return of_m * m + of_g * g if rule.nesterov else of_m * m, m


def _muon_by_dual_norm(u: Array, a: Array, *_: Any) -> Array:
    return engine.array_sum(jnp.conj(a) * u) * u


@transform
class scale_by_shape(ShapeFactor):
    """Multiply the update of every matrix by a factor of its shape, so that its size fits.

    Update rule, with n the number of rows of a matrix and k that of its columns:

        u = sqrt(max(1, k / n)) g                       (without consistent_rms)
        u = consistent_rms sqrt(max(n, k)) g

    An orthogonal matrix has entries of mean square 1 / max(n, k). The first keeps learning rates
    when a network is made wider, the second makes the mean square that of Adam's updates.

    Args:
      weight_dimension_numbers: as in `scale_by_muon`.
      consistent_rms: the root mean square of the entries of u, at least 0; 0.2 is that of Adam.

    Raises:
      ValueError: at update, if a parameter is not a matrix, or its numbers do not fit.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024;
    Liu et al., Muon is Scalable for LLM Training, 2025, equation (4), for consistent_rms.
    """

    weight_dimension_numbers: StaticTree = None
    consistent_rms: NonNegative | None = None

    def factor(self, n: int, k: int, places: int) -> Any:
        """Return the factor of a matrix of n rows and k columns."""
        if self.consistent_rms is None:
            return max(1, k / max(n, 1)) ** 0.5
        return self.consistent_rms * max(n, k) ** 0.5


@value
class muon_labels(Value):
    """Label the parameters that have dimension numbers "muon" and the others "adam".

    Args:
      weight_dimension_numbers: as in `scale_by_muon`; None for one parameter labels it "adam".
      label: another label of those that have dimension numbers.
      other: another label of those that do not; None for "adam".
    """

    weight_dimension_numbers: StaticTree
    label: str = "muon"
    other: str | None = None

    never_schedule = True

    def __post_init__(self):
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)

    def __call__(self, params: PyTree) -> PyTree:
        """Return the tree of labels."""
        labels = {
            path: (self.other or "adam") if axes is None else self.label
            for path, _, axes in matrices(
                self,
                self.weight_dimension_numbers,
                MuonDimensionNumbers,
                engine.whole_shapes(params),
            )
        }
        return map_with_paths(lambda path, _: labels[path], params)

"""Steps of spectral norm 1 that leave the spectral norm of a matrix, to first order."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import transform
from gradxform.errors import require_non_negative
from gradxform.linalg.products import norm_in_parts
from gradxform.numerics.overflow import quotient_by_shared
from gradxform.slots import zeros_like
from gradxform.transforms.matrices.dimensions import axes_of_all
from gradxform.transforms.momentum import TraceState
from gradxform.transforms.muon import polar_express
from gradxform.transforms.orthogonal import Orthogonalizing, with_norm
from gradxform.types import Array, Decay, DType, NonNegative, Size

# The first step of the search for a bracket, and how often it doubles.
_FIRST, _DOUBLINGS = 1e-3, 10


@transform
class scale_by_spectral_sphere(Orthogonalizing):
    """Orthogonalize an average of the gradient so that the step does not change the spectral norm.

    Update rule for a matrix p of n rows, its inputs, and k columns, from m = 0, with v and w its
    leading singular vectors and T = v w^T:

        m <- beta m + (1 - beta) g
        a = m                                 (nesterov: beta m + (1 - beta) g)
        u = NewtonSchulz(a / |a| + l T)       with l such that <T, u> = 0

    A step along u turns the leading singular vectors, and changes their singular value to second
    order only. `keep_matrix_norms("spectral")` at the end of a chain keeps it exactly.

    At most ten steps from 0, the first of 0.001 and each twice the one before, look for a change of
    the sign of <T, u>, and l is found by bisection between the two ends of the step that meets it.
    l is 0 where none does, and where p is 0. The vectors are found by power iterations from ones. A
    step costs some thirty orthogonalizations.

    Which axes are inputs matters to the power iteration alone; a tall matrix is not turned.

    Args:
      beta: the decay of m, in [0, 1).
      mu_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      ns_coeffs: as in `orthogonalize_updates`; by default those of "polar_express", because values
        that end between 0.7 and 1.2 make the bisection pointless. Keyword-only.
      ns_steps: as in `orthogonalize_updates`, at least 1. Keyword-only.
      eps: added to the norm of a matrix, at least 0; with 0 a matrix of zeros stays. Keyword-only.
      preconditioning: as in `orthogonalize_updates`. Keyword-only.
      weight_dimension_numbers: as in `scale_by_muon`. Keyword-only.
      compute_dtype: as in `scale_by_muon`. Keyword-only.
      nesterov: whether to look one step ahead. Keyword-only.
      power_steps: the number of power iterations, an integer, at least 0. Keyword-only.
      tolerance: the largest |<T, u>| that ends the bisection, at least 0. Keyword-only.
      max_iterations: the most turns of the bisection, an integer, at least 0. Keyword-only.

    Raises:
      ValueError: at init and update, if a parameter is not a matrix, or its numbers do not fit; at
        update, if no parameters are given.

    Reference: Xie et al., Controlled LLM Training on Spectral Sphere, 2026, without its retraction,
    as in pytorch_optimizer; Bernstein and Newhouse, Modular Duality in Deep Learning, 2024, for the
    dual of the spectral norm.
    """

    beta: Decay = 0.9
    mu_dtype: DType = None
    nesterov: bool = field(default=True, kw_only=True)
    power_steps: Size = field(default=10, kw_only=True)
    tolerance: NonNegative = field(default=1e-8, kw_only=True)
    max_iterations: Size = field(default=100, kw_only=True)
    ns_coeffs: tuple[Any, ...] = field(default=polar_express(5), kw_only=True)

    State = TraceState
    oriented = True
    needs_params = True

    def __post_init__(self):
        super().__post_init__()
        require_non_negative(self, "power_steps", "max_iterations")

    def init(self, params):
        """Return an average of zeros."""
        axes_of_all(self, self.weight_dimension_numbers, engine.whole_shapes(params))
        return TraceState(zeros_like(params, self.mu_dtype))

    def entries(self, g: Array, m: Array, p: Array) -> tuple[tuple[Array, Array], Array]:
        """Return what is orthogonalized and the parameter, and the average."""
        m = self.beta * m + (1 - self.beta) * g
        return (self.beta * m + (1 - self.beta) * g if self.nesterov else m, p), m

    def rule(self, a, p):
        """Return the update of a batch of matrices."""
        a, p = _normalized(a), _normalized(p)
        transposed = jnp.swapaxes(p, -1, -2)
        v = jnp.ones_like(p[..., :, :1])
        for _ in range(self.power_steps):
            v = with_norm(p @ (transposed @ v), 1.0)
        direction = v @ jnp.swapaxes(with_norm(transposed @ v, 1.0), -1, -2)

        def at(l: Array) -> Array:
            return self.orthogonal(a + l[:, None, None] * direction)

        def product(l: Array) -> Array:
            return jnp.sum(direction * at(l), axis=(-2, -1))

        return at(_zero(product, jnp.zeros_like(a[:, 0, 0]), self.tolerance, self.max_iterations))


def _normalized(x: Array) -> Array:
    """Return matrices of Frobenius norm 1, also of the largest numbers; zeros stay zeros."""
    largest, share = (jnp.where(part == 0, 1, part) for part in norm_in_parts(x))
    return quotient_by_shared(x, largest) / share


def _zero(f: Callable[[Array], Array], zeros: Array, tolerance: Any, most: int) -> Array:
    """Return where rising functions are 0, for each entry; 0 for one that stays away from it."""

    def at(l: Array) -> Array:  # a place and the value there
        return jnp.stack([l, f(l)])

    start = at(zeros)
    up = jnp.asarray(_FIRST, zeros.dtype)
    step = jnp.where(start[1] < 0, up, -up)

    def widens(carry: Any) -> Any:
        return (carry[0] < _DOUBLINGS) & ~jnp.all(carry[-1])

    def widen(carry: Any) -> Any:
        i, step, last, low, high, found = carry
        new = at(last[0] + step)
        rises = last[1] <= 0
        crosses = ~found & (rises != (new[1] <= 0))
        low = jnp.where(crosses, jnp.where(rises, last, new), low)
        high = jnp.where(crosses, jnp.where(rises, new, last), high)
        return i + 1, 2 * step, new, low, high, found | crosses

    carry = jnp.int32(0), step, start, start, start, jnp.abs(start[1]) < tolerance
    *_, low, high, found = lax.while_loop(widens, widen, carry)
    best = _nearer_zero(low, high)

    def goes_on(carry: Any) -> Any:
        return (carry[0] < most) & ~jnp.all(carry[-1])

    def halve(carry: Any) -> Any:
        i, low, high, best, done = carry
        middle = 0.5 * (low + high)
        here = at(middle)
        best = jnp.where(done, best, _nearer_zero(here, best))
        # Between neighbouring numbers, further turns would not change anything.
        done |= (jnp.abs(here[1]) <= tolerance) | (middle == low) | (middle == high)
        below = here[1] < 0
        return i + 1, jnp.where(below, middle, low), jnp.where(below, high, middle), best, done

    done = ~found | (jnp.abs(best[1]) <= tolerance)
    *_, best, _ = lax.while_loop(goes_on, halve, (jnp.int32(0), low[0], high[0], best, done))
    return jnp.where(found, best[0], 0)


def _nearer_zero(a: Array, b: Array) -> Array:
    """Return which of two places, each with the value there, has the value nearer to 0."""
    return jnp.where(jnp.abs(a[1]) < jnp.abs(b[1]), a, b)

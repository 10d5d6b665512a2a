"""Rules that use the change of the gradient: Adan, DiffGrad, optimistic steps, Rprop."""

from dataclasses import field
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, first_state_of, slots_with, transform
from gradxform.errors import name_of, require_at_least, require_finite, require_in
from gradxform.numerics import abs_sq, bias_correction, safe_increment, within
from gradxform.numerics.roots import over_root
from gradxform.slots import real_full_like
from gradxform.transforms.adam import AdamMoments, with_largest
from gradxform.types import (
    Array,
    Bound,
    Decay,
    DType,
    Finite,
    Limit,
    NonNegative,
    NonNegativeSlot,
    Positive,
    Range,
    Slot,
)


class ScaleByAdanState(NamedTuple):
    """State of `scale_by_adan`."""

    m: Slot  # like params, at least float32; the average m of the gradient
    v: Slot  # like params, at least float32; the average v of its change
    n: NonNegativeSlot  # like params, at least float32; the second moment n of the two together
    g: Slot  # like params, at least float32; the last gradient
    t: Array  # int32 scalar; the number of updates so far


@transform
class scale_by_adan(ArrayRule):
    """Rescale updates as Adan does: averages of g and of its change over their root mean square.

    Update rule, with d = g - (the last g), 0 at the first step, and w = change_weight, from
    m = v = n = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) d
        n <- b3 n + (1 - b3) |g + w d|^2
        u = (m / (1 - b1^t) + w v / (1 - b2^t)) / (sqrt(n / (1 - b3^t) + eps_root) + eps)

    The decays are 1 minus the betas of the paper. In the paper, and in its authors' code, w is our
    b2 (1 minus their beta2). The default here is 1 - b2, as in Optax; `change_weight=b2` gives the
    paper's algorithm.

    Args:
      b1: the decay of the gradient's average, in [0, 1).
      b2: the decay of the average of its change, in [0, 1).
      b3: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      change_weight: the weight of the change, at least 0. Defaults to 1 - b2. Keyword-only.

    Reference: Xie et al., Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
    Models, 2022, Algorithm 1.
    """

    b1: Decay = 0.98
    b2: Decay = 0.92
    b3: Decay = 0.99
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    change_weight: NonNegative | None = field(default=None, kw_only=True)

    State = ScaleByAdanState
    locality = "entry"
    step_fields = ("t",)
    handles_complex = True

    def prepare(self, updates, state, params):
        """Return the advanced count, whether it is the first step, and the factors of m, v, n."""
        t = safe_increment(state.t)
        of_m, of_v = bias_correction(self.b1, t), bias_correction(self.b2, t)
        of_n = bias_correction(self.b3, t)
        return state._replace(t=t), state.t == 0, of_m, of_v, of_n

    def rule(self, g, m, v, n, last_g, p, *scalars):
        """Return the update, the averages, and the gradient for the next step."""
        is_first, of_m, of_v, of_n = scalars
        d = jnp.where(is_first, jnp.zeros_like(g), g - last_g)
        w = 1 - self.b2 if self.change_weight is None else self.change_weight
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * d
        n = self.b3 * n + (1 - self.b3) * abs_sq(g + w * d)
        half = (of_m / 2) * m + (w * of_v / 2) * v  # the whole may be beyond the range
        return 2 * over_root(half, of_n * n, self.eps, self.eps_root), m, v, n, g


class ScaleByDiffGradState(NamedTuple):
    """State of `scale_by_diffgrad`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    nu: NonNegativeSlot  # like params, at least float32; the second moment v
    previous_gradient: Slot  # like params, at least float32; the last gradient
    nu_max: NonNegativeSlot = None  # like nu; the largest second moment h; with amsgrad


@transform
class scale_by_diffgrad(AdamMoments):
    """Rescale updates as DiffGrad does: Adam, shorter where the gradient does not change.

    Update rule, from m = v = h = last g = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        h <- max(h, v)                         (without amsgrad: h = v)
        f = 1 / (1 + exp(-|last g - g|))
        u = f (m / (1 - b1^t)) / (sqrt(h / (1 - b2^t) + eps_root) + eps)

    The friction f is 1/2 for a gradient that stays, and near 1 for one that changes by more than
    about 5: it depends on the scale of gradients. With correct_after, as in the authors' code,
    u = f (sqrt(1 - b2^t) / (1 - b1^t)) m / (sqrt(h + eps_root) + eps). The first gradient counts as
    a change from 0.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      amsgrad: whether to divide by the largest second moment. Keyword-only.
      correct_after: whether to add both epsilons before the correction. Keyword-only.

    Reference: Dubey et al., diffGrad: An Optimization Method for Convolutional Neural Networks,
    2019.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    eps_root: NonNegative = 0.0
    mu_dtype: DType = None
    amsgrad: bool = field(default=False, kw_only=True)
    correct_after: bool = field(default=False, kw_only=True)

    State = ScaleByDiffGradState
    unused_slots = slots_with(nu_max="amsgrad")
    averages_of = ()
    handles_complex = False
    eps_before_correction = property(lambda self: self.correct_after)

    def rule(self, g, m, v, last_g, h, p, of_m, of_v):
        """Return the update, the moments, the gradient and the largest v."""
        m, v = self.moments(g, m, v)
        below, h = with_largest(v, h)
        f = jax.nn.sigmoid(jnp.abs(last_g - g))
        u = f * (of_m * over_root(m, of_v * below, self.eps, self.eps_root))
        return u, m, v, g, h


class ScaleByOptimisticGradientState(NamedTuple):
    """State of `scale_by_optimistic_gradient`."""

    is_initial_step: Array  # boolean scalar; whether the next update is the first
    previous_gradient: Slot  # like params, at least float32; the last gradient


@transform
class scale_by_optimistic_gradient(ArrayRule):
    """Extrapolate updates as optimistic gradient descent does: add their change since the last.

    Update rule, with g' the last g, and g itself at the first step:

        u = (alpha + beta) g - beta g'

    For games: where two players descend at once, plain gradient steps circle around the solution,
    and optimistic ones approach it.

    Args:
      alpha: the weight of the gradient, at least 0.
      beta: the weight of its change, finite.

    Reference: Mokhtari et al., A Unified Analysis of Extra-gradient and Optimistic Gradient Methods
    for Saddle Point Problems: Proximal Point Approach, 2020, generalized OGDA.
    """

    alpha: NonNegative = 1.0
    beta: Finite = 1.0

    State = ScaleByOptimisticGradientState
    locality = "entry"
    handles_complex = True

    def init(self, params):
        """Return zeros, which the first update does not read."""
        return first_state_of(self, params, is_initial_step=jnp.ones((), jnp.bool_))

    def prepare(self, updates, state, params):
        """Return the state after the first step, and whether this is the first step."""
        return state._replace(is_initial_step=jnp.zeros((), jnp.bool_)), state.is_initial_step

    def rule(self, g, last_g, p, is_first):
        """Return the update, and the gradient for the next step."""
        last_g = jnp.where(is_first, g, last_g)
        return (self.alpha + self.beta) * g - self.beta * last_g, g


class ScaleByRpropState(NamedTuple):
    """State of `scale_by_rprop`."""

    step_sizes: NonNegativeSlot  # like params, at least float32; the size s of every entry's step
    prev_updates: Slot  # like params, at least float32; the signed step of the last gradient


@transform
class scale_by_rprop(ArrayRule):
    """Replace updates as Rprop does: by signs times step sizes that grow while the sign stays.

    Update rule, from s = learning_rate and d = 0; with d' the last d:

        s <- min(s eta_plus, max_step_size)       where g d' > 0
        s <- max(s eta_minus, min_step_size)      where g d' < 0
        d <- 0 where g d' < 0, else s sign(g)
        u = 0 where g d' < 0, else d'             (without delayed: u = d)

    It needs gradients of the whole data set: the noise of mini-batches changes signs at random.

    As in Optax, u is the step of the previous gradient, so that the first update is 0 and an entry
    moves after two gradients of the same sign. `delayed=False` steps at once, as in the paper.

    Args:
      learning_rate: the first step size, greater than 0.
      eta_minus: the factor of a step size where the sign changes, in (0, 1].
      eta_plus: the factor of a step size where the sign stays, at least 1.
      min_step_size: the least step size, at least 0.
      max_step_size: the largest step size, at least min_step_size; infinite for no bound.
      delayed: whether to emit the step of the previous gradient. Keyword-only.

    Reference: Igel and Huesken, Empirical Evaluation of the Improved Rprop Learning Algorithms,
    2003, iRprop-.
    """

    learning_rate: Positive
    eta_minus: Bound = 0.5
    eta_plus: float = 1.2
    min_step_size: Limit = 1e-6
    max_step_size: float = 50.0
    delayed: bool = field(default=True, kw_only=True)

    State = ScaleByRpropState
    locality = "entry"

    def __post_init__(self) -> None:
        require_at_least(self, 1, "eta_plus")
        require_finite(self, "eta_plus")
        if isinstance(self.eta_minus, float) and self.eta_minus > 1:
            raise ValueError(f"{name_of(self)}: eta_minus must be in (0, 1], got {self.eta_minus}.")
        if isinstance(self.min_step_size, float):
            least = f"at least min_step_size, here {self.min_step_size}"
            require_in(
                self,
                "max_step_size",
                self.max_step_size,
                Range(least, lambda x: x >= self.min_step_size, finite=False),
            )

    def init(self, params):
        """Return the first step sizes, and steps of 0."""
        return first_state_of(self, params, step_sizes=real_full_like(params, self.learning_rate))

    def rule(self, g, s, last_d, p):
        """Return the update, the step sizes and the step."""
        # Signs, because a product of small numbers would be 0.
        agreement = jnp.sign(g) * jnp.sign(last_d)
        largest = within(self.max_step_size, s.dtype)
        scaled = jnp.where(agreement > 0, self.eta_plus * s, self.eta_minus * s)
        scaled = jnp.clip(scaled, self.min_step_size, largest)
        s = jnp.where(agreement == 0, s, scaled)
        d = jnp.where(agreement < 0, 0, s * jnp.sign(g))
        u = d
        if self.delayed:
            u = jnp.where(agreement < 0, 0, last_d)
        return u, s, d

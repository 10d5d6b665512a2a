"""Adam that estimates its learning rate from the distance to the solution: D-Adaptation, Prodigy.

Both emit the whole step, learning rate included. Their estimates need sums over the whole tree of
the new slots. `prepare` computes these sums in a pass that stores nothing, before the rule runs.
"""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.engine import tree_sums
from gradxform.errors import name_of, shown
from gradxform.leaves import masks
from gradxform.numerics import (
    bias_correction,
    is_zero,
    safe_increment,
    scalar,
    scalar_dtype,
    value_at,
)
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import atan2_root, over_root
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.tree_rules import (
    columns_of,
    copied_params,
    ratio_or_zero,
    selected_by_mask,
)
from gradxform.types import (
    Array,
    AtLeastOne,
    Decay,
    NonNegative,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Params,
    Positive,
    Scalar,
    Slot,
    StaticMask,
    Updates,
)


def _check_betas(part: Any) -> None:
    pair = part.betas
    numbers = [isinstance(x, int | float | Array) and not isinstance(x, bool) for x in pair]
    if len(pair) != 2 or not all(numbers):
        raise TypeError(f"{name_of(part)}: betas must be a pair of numbers, got {shown(pair)}.")
    if not all(0 <= x < 1 for x in pair if not isinstance(x, Array)):
        raise ValueError(f"{name_of(part)}: betas must both be in [0, 1), got {shown(pair)}.")


def _moment_correction(betas: tuple[Scalar, Scalar], count: Array) -> Array:
    """Return Adam's correction of both moments, sqrt(1 - b2^t) / (1 - b1^t)."""
    b1, b2 = betas
    return bias_correction(b1, count) / jnp.sqrt(bias_correction(b2, count))


def _add_gradient(s: Array, g: Array, decay: Scalar, weight: Scalar) -> Array:
    return decay * s + weight * g


def _zero_sums(part: Any, params: Params) -> dict[str, Any]:
    """Return the fields that both states have, before the first update."""
    return {
        "exp_avg": zeros_like(params),
        "exp_avg_sq": zeros_like(params),
        "grad_sum": zeros_like(params),
        "estim_lr": scalar(part.estim_lr0),
        "numerator_weighted": jnp.zeros((), scalar_dtype()),
        "count": zero_count(),
    }


class DAdaptAdamWState(NamedTuple):
    """State of `step_by_dadapt_adamw`."""

    exp_avg: Slot  # like params, at least float32; the average m of the scaled gradient
    exp_avg_sq: NonNegativeSlot  # like params, at least float32; the second moment v
    grad_sum: Slot  # like params, at least float32; the slower average s of the scaled gradient
    estim_lr: Array  # scalar, at least float32; the estimate d
    numerator_weighted: Array  # scalar, at least float32; the numerator r of the estimate
    count: Array  # int32 scalar; the number of updates so far


def _sums(
    g: Array, m: Array, v: Array, s: Array, p: Array, decay: Scalar, weight: Scalar, eps: Scalar
) -> tuple[Array, Array]:
    g = bounded_square(g)
    return over_root(g * s, v, eps), jnp.abs(_add_gradient(s, g, decay, weight))


@transform
class step_by_dadapt_adamw(ArrayRule):
    """Emit the whole step of D-Adaptation: AdamW with an estimated learning rate.

    Update rule, from m = v = s = r = 0, d = estim_lr0 and t = 1, 2, ..., with q = sqrt(b2), and
    sums and products over the whole tree:

        k = d lr(t-1) sqrt(1 - b2^t) / (1 - b1^t)
        r <- q r + (1 - q) k <g, s / (sqrt(v) + eps)>
        s <- q s + (1 - q) k g
        m <- b1 m + (1 - b1) k g
        v <- b2 v + (1 - b2) g^2
        u = -m / (sqrt(v) + eps) - weight_decay k p
        d <- max(d, r / ((1 - q) sum |s|))

    Leave the learning rate at 1, or let a schedule shape it: a warmup, then a decay to 0. As long
    as all gradients are 0, d does not change (in Optax it becomes NaN, and stays so). Adam's
    corrections in k are Optax's; in the authors' code they are an option.

    Args:
      learning_rate: at least 0, or a schedule.
      betas: the decays (b1, b2) of the moments, each in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      estim_lr0: the first d, greater than 0 and well below what is needed.
      weight_decay: at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Defazio and Mishchenko, Learning-Rate-Free Learning by D-Adaptation, 2023,
    Algorithm 5, D-Adapted Adam.
    """

    learning_rate: NonNegativeOrSchedule = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: NonNegative = 1e-8
    estim_lr0: Positive = 1e-6
    weight_decay: NonNegative = 0.0

    State = DAdaptAdamWState
    locality = "tree"
    sees_pieces = True
    needs_params = True

    def __post_init__(self) -> None:
        _check_betas(self)

    def init(self, params):
        """Return averages of zeros and the first estimate."""
        return DAdaptAdamWState(**_zero_sums(self, params))

    def estimated_rate(self, state):
        """Return the estimate d."""
        return state.estim_lr

    def prepare(self, updates, state, params):
        """Return the new estimate, and the step size k from the old one."""
        count, q = safe_increment(state.count), self.betas[1] ** 0.5
        k = state.estim_lr * value_at(self.learning_rate, state.count)
        k = k * _moment_correction(self.betas, count)
        leaves = columns_of(self, updates, state, params)
        product, sum_abs_s = tree_sums(_sums, updates, leaves, q, (1 - q) * k, self.eps)
        r = q * state.numerator_weighted + (1 - q) * k * product
        d = jnp.maximum(state.estim_lr, ratio_or_zero(r, (1 - q) * sum_abs_s))
        state = state._replace(estim_lr=d, numerator_weighted=r, count=count)
        return state, k

    def rule(self, g, m, v, s, p, k):
        """Return the step, the moments and the slower average."""
        (b1, b2), q = self.betas, self.betas[1] ** 0.5
        g = bounded_square(g)
        s = _add_gradient(s, g, q, (1 - q) * k)
        m = b1 * m + ((1 - b1) * k) * g
        v = b2 * v + (1 - b2) * jnp.square(g)
        u = -over_root(m, v, self.eps)
        return u - (self.weight_decay * k) * p, m, v, s


class ProdigyState(NamedTuple):
    """State of `step_by_prodigy`."""

    exp_avg: Slot  # like params, at least float32; the average m of the scaled gradient
    exp_avg_sq: NonNegativeSlot  # like params, at least float32; v of the scaled gradient
    grad_sum: Slot  # like params, at least float32; the decaying sum s of scaled gradients
    params0: Slot  # like params, at least float32; where the parameters began, p0
    estim_lr: Array  # scalar, at least float32; the estimate d
    numerator_weighted: Array  # scalar, at least float32; the numerator r of the estimate
    count: Array  # int32 scalar; the number of updates so far


class ProdigyWithLimitState(NamedTuple):
    """State of `step_by_prodigy` with a `growth_rate`."""

    exp_avg: Slot  # as in `ProdigyState`, and so are the next six
    exp_avg_sq: NonNegativeSlot
    grad_sum: Slot
    params0: Slot
    estim_lr: Array
    numerator_weighted: Array
    count: Array
    max_estim_lr: Array  # scalar, at least float32; the largest estimate so far, without the limit


def _prodigy_sums(
    g: Array, m: Array, v: Array, s: Array, p0: Array, p: Array, decay: Scalar, weight: Scalar
) -> tuple[Array, Array]:
    g = bounded_square(g)
    return g * (p0 - p), jnp.abs(_add_gradient(s, g, decay, weight))


@transform
class step_by_prodigy(ArrayRule):
    """Emit the whole step of Prodigy: AdamW with an estimated learning rate.

    Update rule, from m = v = s = r = 0, d = d0 = estim_lr0, p0 = the parameter at `init` and
    t = 1, 2, ..., with sums and products over the whole tree:

        k = d lr(t-1) sqrt(1 - b2^t) / (1 - b1^t)
        r <- beta3 r + (d / d0) k <g, p0 - p>
        s <- beta3 s + (d / d0) k g      (with safeguard_warmup: (d / d0) d g)
        d' = max(d, estim_lr_coef r / sum |s|)
        m <- b1 m + (1 - b1) d g
        v <- b2 v + (1 - b2) d^2 g^2
        u = -k m / (sqrt(v) + d' eps) - weight_decay k p
        d <- d'

    Without use_bias_correction, k has no roots. With a growth_rate, d' is instead, from D = d0:

        D <- max(D, estim_lr_coef r / sum |s|)
        d' = min(D, growth_rate d)       (as long as d = d0: D)

    Leave the learning rate at 1, or let a schedule shape it: a decay to 0, after a warmup if
    needed. `current_learning_rate` is that times d, and `metrics` shows d as `estim_lr`. As long
    as all gradients are 0, d does not change (in Optax it becomes NaN, and stays so). As in Optax,
    eps is multiplied by the new estimate, and the step is debiased as Adam's is; in the authors'
    code that is an option, and off.

    Parameters in bfloat16 or float16 round the first steps away, and never move: wrap the optimizer
    in `master_weights(...)`.

    Args:
      learning_rate: at least 0, or a schedule.
      betas: the decays (b1, b2) of the moments, each in [0, 1).
      beta3: the decay of the sums r and s, in [0, 1). Defaults to sqrt(b2).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
        None: atan2(m, sqrt(v)) is in the place of the division, as in `scale_by_adam_atan2`.
      estim_lr0: the first d, greater than 0 and well below what is needed.
      estim_lr_coef: the factor of the estimates, greater than 0, usually 0.5 to 2.
      weight_decay: at least 0.
      safeguard_warmup: whether to keep the learning rate out of s, for long warmups.
      weight_decay_mask: which parameters decay: a mask such as `ndim_at_least(2)`, a tree of
        booleans that may be a prefix of the parameters, or a function of them. Defaults to all.
      growth_rate: how many times larger the estimate may become in one step, at least 1, such as
        1.02, which warms up. The first rise is free: d0 says nothing. Defaults to no limit.
        Keyword-only.
      use_bias_correction: whether the step size k has the corrections of Adam's moments.
        Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Mishchenko and Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free Learner,
    2023, Algorithm 4, Prodigy in Adam's form; the authors' code for growth_rate.
    """

    learning_rate: NonNegativeOrSchedule = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    beta3: Decay | None = None
    eps: NonNegative | None = 1e-8
    estim_lr0: Positive = 1e-6
    estim_lr_coef: Positive = 1.0
    weight_decay: NonNegative = 0.0
    safeguard_warmup: bool = False
    weight_decay_mask: StaticMask | None = None
    growth_rate: AtLeastOne | None = field(default=None, kw_only=True)
    use_bias_correction: bool = field(default=True, kw_only=True)

    begins_small = True
    locality = "tree"
    copies = ("params0",)
    sees_pieces = True
    needs_params = True

    def __post_init__(self) -> None:
        _check_betas(self)

    def init(self, params):
        """Return averages of zeros, a copy of the parameters, and the first estimate."""
        masks.check_patterns(self, self.weight_decay_mask, params)
        fields = _zero_sums(self, params) | {"params0": copied_params(params)}
        if self.growth_rate is not None:
            fields["max_estim_lr"] = scalar(self.estim_lr0)
        return self.State(**fields)

    @property
    def State(self) -> type:
        """The class of the state, which follows from the limit."""
        return ProdigyState if self.growth_rate is None else ProdigyWithLimitState

    def estimated_rate(self, state):
        """Return the estimate d."""
        return state.estim_lr

    def statics(self, updates: Updates) -> list[Any]:
        """Return for every leaf whether it decays."""
        return selected_by_mask(self, self.weight_decay_mask, updates)

    def _beta3(self) -> Scalar:
        return self.betas[1] ** 0.5 if self.beta3 is None else self.beta3

    def prepare(self, updates, state, params):
        """Return the new estimate d'; d, the step size k, the weight of g in s, and d' eps."""
        count, d, beta3 = safe_increment(state.count), state.estim_lr, self._beta3()
        k = d * value_at(self.learning_rate, state.count)
        if self.use_bias_correction:
            k = k * _moment_correction(self.betas, count)
        growth = d / self.estim_lr0
        weight = growth * (d if self.safeguard_warmup else k)
        leaves = columns_of(self, updates, state, params)
        product, sum_abs_s = tree_sums(_prodigy_sums, updates, leaves, beta3, weight)
        r = beta3 * state.numerator_weighted + growth * k * product
        found = ratio_or_zero(self.estim_lr_coef * r, sum_abs_s)
        next_d = jnp.maximum(d, found)
        if self.growth_rate is not None:
            most = jnp.maximum(state.max_estim_lr, found)
            is_first_rise = d == scalar(self.estim_lr0)
            next_d = jnp.where(is_first_rise, most, jnp.minimum(most, self.growth_rate * d))
            state = state._replace(max_estim_lr=most)
        state = state._replace(estim_lr=next_d, numerator_weighted=r, count=count)
        return state, d, k, weight, next_d * (0.0 if self.eps is None else self.eps)

    def rule(self, g, m, v, s, p0, p, d, k, weight, d_eps, decays):
        """Return the step, the moments, the sum and p0."""
        b1, b2 = self.betas
        g = bounded_square(g)
        s = _add_gradient(s, g, self._beta3(), weight)
        m = b1 * m + ((1 - b1) * d) * g
        v = b2 * v + (1 - b2) * jnp.square(d * g)
        if self.eps is None:
            u = -k * atan2_root(m, v)
        else:  # an eps that is known to be 0 must stay known, to guard the division
            u = -k * over_root(m, v, self.eps if is_zero(self.eps) else d_eps)
        u = u - (self.weight_decay * k) * p if decays else u
        return u, m, v, s, p0

"""ScheduleFree+: schedule-free AdamC whose step size follows from the loss."""

import math
from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, first_state_of, transform
from gradxform.engine import tree_sums
from gradxform.numerics import bias_correction, safe_increment, scalar, scalar_dtype, value_at
from gradxform.numerics.overflow import bounded_square, clipped, saturated
from gradxform.numerics.roots import over_root
from gradxform.transforms.tree_rules import as_loss, columns_of, copied_params, ratio_or_zero
from gradxform.types import (
    Array,
    Decay,
    Fraction,
    NonNegative,
    NonNegativeInt,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Params,
    Positive,
    PyTree,
    Slot,
)

L1_TO_L2 = math.sqrt(math.pi / 2)  # of a vector of normal entries, per entry


class ScheduleFreePlusState(NamedTuple):
    """State of `step_by_schedule_free_plus`."""

    exp_avg: Slot  # like params, at least float32; the first moment m
    exp_avg_sq: NonNegativeSlot  # like params, at least float32; the second moment v
    z: Slot  # like params, at least float32; where AdamC is
    x: Slot  # like params, at least float32; the average, to evaluate
    grad_norm: Array  # scalar, at least float32; the average e of the norms
    max_lr: Array  # scalar, at least float32; the largest step size so far
    weight_sum: Array  # scalar, at least float32; the sum of the weights so far
    count: Array  # int32 scalar; the number of updates so far

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the average x."""
        return {"x": self.x}

    def exchanged(self, name: str, params: Params) -> "ScheduleFreePlusState":
        """Return the state with `params` as x."""
        return self._replace(x=copied_params(params))


def _norm_and_slope(
    g: Array, m: Array, v: Array, z: Array, x: Array, p: Array
) -> tuple[Array, Array]:
    g = bounded_square(g)
    return jnp.abs(g), g * (z - x)


@transform
class step_by_schedule_free_plus(ArrayRule):
    """Emit the whole step of ScheduleFree+: schedule-free AdamC with a Polyak step size.

    Update rule, from x = z = p, m = v = e = W = 0 and t = 1, 2, ..., with sums and products over
    the whole tree, B = average_b1 and value the loss at p:

        e <- norm_decay e + (1 - norm_decay) sqrt(pi / 2) sum |g|
        a = lr(t-1) max(0, value + B <g, z - x>) (1 - norm_decay^t) / e
        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        z <- z - a^2 weight_decay p - a (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        w = t^weight_step_power (the largest a so far)^weight_lr_power
        W <- W + w,    c = w / W          (in the first average_start steps: W <- W, c = 1)
        x <- (1 - c) x + c z
        u = B x + (1 - B) z - p

    With anneal_steps, 1 - B goes from 1 - average_b1 to 1 - average_b1_end in so many steps, by the
    same factor each, and stays there.

    p are the parameters, where gradients are taken. Evaluate and save x: `eval_params(state,
    params)`, or `swap`. `update` needs the loss of the batch, `value=`, which must be 0 at best.
    Leave the learning rate at 1, or let it warm up; it counts as eps at least. The decay is
    multiplied by a squared, so that values of 20 to 50 are usual.

    As long as all gradients are 0, a is 0, where the authors' code divides by 0; it is at most 4e9
    in float32. With a norm_decay, their code keeps e / (1 - norm_decay^t) in the place of e, which
    then grows without bound.

    Must be the last part of a chain, because its updates must be applied unchanged.

    Args:
      learning_rate: a factor of the step size, at least 0, or a schedule.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, greater than 0.
      weight_decay: at least 0.
      average_b1: the share B of x in p, in (0, 1).
      norm_decay: the decay of the average of norms, in [0, 1); with 0 it is the last norm.
      average_start: how many first steps are not averaged, at least 0: once or twice the warm-up.
      anneal_steps: in how many steps B comes to average_b1_end, at least 0; with 0 it stays.
      average_b1_end: the last share, in (0, 1).
      weight_lr_power: the power of the step size in the weights of the average, at least 0.
      weight_step_power: the power of the number of the step there, at least 0; 2 for long runs.

    Raises:
      TypeError: at update, without `value`.
      ValueError: at update, if no parameters are given.

    Reference: Defazio, ScheduleFree+: Scaling Learning-Rate-Free and Schedule-Free Learning to
    Large Language Models, 2026, as the authors' code, AdamCScheduleFreePlusPaper, computes it.
    """

    learning_rate: NonNegativeOrSchedule = 1.0
    b1: Decay = 0.9
    b2: Decay = 0.95
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    average_b1: Fraction = 0.9
    norm_decay: Decay = 0.0
    average_start: NonNegativeInt = 0
    anneal_steps: NonNegativeInt = 0
    average_b1_end: Fraction = 0.965
    weight_lr_power: NonNegative = 2.0
    weight_step_power: NonNegative = 0.0

    State = ScheduleFreePlusState
    locality = "tree"
    follows = ("z", "x")
    sees_pieces = True
    needs_params = True

    def init(self, params):
        """Return averages of zeros, and copies of the parameters."""
        zeros = {k: jnp.zeros((), scalar_dtype()) for k in ("grad_norm", "weight_sum")}
        copies = {k: copied_params(params) for k in ("z", "x")}
        return first_state_of(self, params, max_lr=scalar(self.eps), **zeros, **copies)

    def _share(self, count: Array) -> Array:
        """Return B after `count` updates."""
        first, last = 1 - scalar(self.average_b1), 1 - scalar(self.average_b1_end)
        progress = jnp.minimum(scalar(count) / jnp.maximum(scalar(self.anneal_steps), 1), 1)
        return 1 - first * (last / first) ** jnp.where(scalar(self.anneal_steps) > 0, progress, 0)

    def prepare(self, updates, state, params, *, value):
        """Return the state of the next step; the step size a, c, B, and Adam's corrections."""
        count, share = safe_increment(state.count), self._share(state.count)
        leaves = columns_of(self, updates, state, params)
        norm, along = tree_sums(_norm_and_slope, updates, leaves)
        old = scalar(self.norm_decay)
        e = saturated(old * state.grad_norm + (1 - old) * L1_TO_L2 * saturated(norm))
        gap = jnp.maximum(as_loss(self, value) + share * clipped(along), 0)
        rate = jnp.maximum(value_at(self.learning_rate, state.count), scalar(self.eps))
        a = rate * ratio_or_zero(gap, e * bias_correction(self.norm_decay, count))
        # With a loss over a tiny gradient, its square and what z comes to would overflow.
        a = jnp.minimum(a, float(jnp.finfo(a.dtype).max) ** 0.25)
        max_lr = jnp.maximum(state.max_lr, a)
        weight = max_lr ** scalar(self.weight_lr_power)
        weight = weight * scalar(count) ** scalar(self.weight_step_power)
        averages = state.count >= self.average_start
        weight_sum = state.weight_sum + jnp.where(averages, weight, 0)
        c = jnp.where(averages, ratio_or_zero(weight, weight_sum), 1)
        state = state._replace(grad_norm=e, max_lr=max_lr, weight_sum=weight_sum, count=count)
        corrections = bias_correction(self.b1, count), bias_correction(self.b2, count)
        return state, a, c, share, *corrections

    def rule(self, g, m, v, z, x, p, a, c, share, of_m, of_v):
        """Return the step to the new p, the moments, z and x."""
        g = bounded_square(g)
        m = self.b1 * m + (1 - self.b1) * g
        v = self.b2 * v + (1 - self.b2) * jnp.square(g)
        z = z - (self.weight_decay * a * a) * p - a * over_root(of_m * m, of_v * v, self.eps)
        x = x + c * (z - x)
        return (z - p) + share * (x - z), m, v, z, x

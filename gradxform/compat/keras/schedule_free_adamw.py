"""The rule of `ScheduleFreeAdamW` of Keras 3, whose weight decay moves the parameters alone."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.numerics import abs_sq, cast, count_and_debias, scalar, value_at
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import over_root
from gradxform.slots import real_zeros_like, zero_count
from gradxform.transforms.tree_rules import copied_params
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeInt,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Params,
    PositiveShare,
    PyTree,
    Scalar,
    Slot,
)
from gradxform.wrappers.schedule_free import average_of


class ScheduleFreeAdamState(NamedTuple):
    """State of `step_by_schedule_free_adam`."""

    count: Array  # int32 scalar; the number of updates so far
    b1: Array  # scalar, at least float32; the b1 with which the parameters were computed
    z: Slot  # like params, at least float32; where the gradients lead
    nu: NonNegativeSlot  # like params, at least float32; the second moment v

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the average x, which follows from the parameters y and from z."""
        return {"x": average_of(self, params)}

    def exchanged(self, name: str, params: Params) -> "SwappedScheduleFreeAdamState":
        """Return the state that keeps the parameters y, where x is in their place."""
        return SwappedScheduleFreeAdamState(*self, y=copied_params(params))


class SwappedScheduleFreeAdamState(NamedTuple):
    """State of `step_by_schedule_free_adam` after `swap`, which must be swapped again to go on."""

    count: Array  # as in `ScheduleFreeAdamState`, and so are the next three
    b1: Array
    z: Slot
    nu: NonNegativeSlot
    y: Slot  # like params, at least float32; the parameters

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the parameters y."""
        return {"y": self.y}

    def exchanged(self, name: str, params: Params) -> ScheduleFreeAdamState:
        """Return the state without y, which is in its place again."""
        return ScheduleFreeAdamState(*self[:4])


@transform
class step_by_schedule_free_adam(ArrayRule):
    """Emit the whole step of schedule-free Adam as Keras computes it, its weight decay included.

    Update rule, from z = y = the parameter at `init`, v = 0, and t = 1, 2, ... the step, with
    r = learning_rate(t - 1):

        y <- y - weight_decay r y
        v <- b2 v + (1 - b2) |g|^2
        x = (y - (1 - b1) z) / b1
        z <- z - r min(t / warmup_steps, 1) g / (sqrt(v / (1 - b2^t)) + eps)
        x <- x + (z - x) / t
        y <- b1 x + (1 - b1) z

    All steps have the same weight in the average x, also those of the warm-up. The decay moves y
    and, with it, x, but not z; in `schedule_free_adamw` it moves z. Evaluate and save x:
    `eval_params(state, params)`, or `swap`.

    The step includes the learning rate, and points downhill. It must be the last part of a chain.
    Every entry moves towards the average in every step, so that it refuses row-sparse gradients.

    Args:
      learning_rate: at least 0, or a schedule.
      b1: the share of x in y, in (0, 1].
      b2: the decay of the average of the squared gradients, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      warmup_steps: how many steps the rate of z climbs, at least 0; 0 for none.
      weight_decay: the share of y that decays, times the learning rate, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: `keras.optimizers.ScheduleFreeAdamW`; Defazio et al., The Road Less Scheduled, 2024,
    Algorithm 1.
    """

    learning_rate: NonNegativeOrSchedule
    b1: PositiveShare = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    warmup_steps: NonNegativeInt = 0
    weight_decay: NonNegative = 0.0

    State = ScheduleFreeAdamState
    locality = "entry"
    handles_rows = False
    why_no_rows = "moves every row towards an average"
    handles_complex = True
    needs_params = True
    follows = ("z",)

    def init(self, params: Params) -> ScheduleFreeAdamState:
        """Return a copy of the parameters, and second moments of 0."""
        return ScheduleFreeAdamState(
            count=zero_count(),
            b1=jnp.array(scalar(self.b1), copy=True),
            z=copied_params(params),
            nu=real_zeros_like(params),
        )

    def prepare(
        self, updates: None, state: ScheduleFreeAdamState, params: Params
    ) -> tuple[Any, ...]:
        """Return the advanced count, and the numbers of this step."""
        rate = value_at(self.learning_rate, state.count)
        decay = rate * scalar(self.weight_decay)
        inverse = 1 / scalar(state.b1)  # of the parameters; b1 may have changed since
        state, of_v = count_and_debias(state, self.b2)
        rate = rate * jnp.minimum(
            scalar(state.count) / jnp.maximum(scalar(self.warmup_steps), 1), 1
        )
        state = state._replace(b1=cast(scalar(self.b1), state.b1.dtype))
        return state, rate, decay, of_v, 1 / scalar(state.count), inverse

    def rule(
        self,
        g: Array,
        z: Array,
        v: Array,
        p: Array,
        rate: Scalar,
        decay: Scalar,
        of_v: Scalar,
        share: Scalar,
        inverse: Scalar,
    ) -> tuple[Array, Array, Array]:
        """Return the step of y, z and the second moment."""
        g = bounded_square(g)
        v = saturated(self.b2 * v + (1 - self.b2) * abs_sq(g))
        x = z + inverse * (p - decay * p - z)
        z = z - rate * over_root(g, of_v * v, self.eps)
        x = x + share * (z - x)
        return z + self.b1 * (x - z) - p, z, v

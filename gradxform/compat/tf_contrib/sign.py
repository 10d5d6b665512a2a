"""`tf.contrib.opt` of TensorFlow 1: optimizers by agreement in sign, and their sign decays."""

import math
from typing import Any

from gradxform.compat.arguments import by_step, descend, with_semantics
from gradxform.compat.tf1.door_names import remembers_names
from gradxform.schedules.periodic import cosine_sign_decay, linear_sign_decay, restart_sign_decay
from gradxform.transforms.agreement import scale_by_add_sign, scale_by_power_sign
from gradxform.types import ScalarOrSchedule, Schedule
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.compose import chain


@remembers_names()
def AddSign(
    learning_rate: ScalarOrSchedule = 0.1,
    alpha: float = 1.0,
    beta: float = 0.9,
    sign_decay_fn: Schedule | None = None,
    use_locking: Any = False,
    name: Any = "AddSignOptimizer",
) -> chain:
    """Steps by agreement in sign: `scale_by_add_sign`, `scale_by_learning_rate`.

    With a row-sparse gradient the averages of all rows decay, and touched rows move.

    Reference: `tf.contrib.opt.AddSignOptimizer`.
    """
    rule = by_step(scale_by_add_sign(alpha, beta, sign_decay_fn), sign_decay_fn)
    return with_semantics("slots", rule, descend(learning_rate))


@remembers_names()
def PowerSign(
    learning_rate: ScalarOrSchedule = 0.1,
    base: float = math.e,
    beta: float = 0.9,
    sign_decay_fn: Schedule | None = None,
    use_locking: Any = False,
    name: Any = "PowerSignOptimizer",
) -> chain:
    """Steps by agreement in sign: `scale_by_power_sign`, `scale_by_learning_rate`.

    With a row-sparse gradient the averages of all rows decay, and touched rows move.

    Reference: `tf.contrib.opt.PowerSignOptimizer`.
    """
    rule = by_step(scale_by_power_sign(base, beta, sign_decay_fn), sign_decay_fn)
    return with_semantics("slots", rule, descend(learning_rate))


@with_checked_arguments
def get_linear_decay_fn(decay_steps: int | float) -> Schedule:
    """Return `linear_sign_decay`: max(0, 1 - n / decay_steps)."""
    return linear_sign_decay(decay_steps)


@with_checked_arguments
def get_cosine_decay_fn(
    decay_steps: int | float, num_periods: float = 0.5, zero_after: float | None = None
) -> Schedule:
    """Return `cosine_sign_decay`: (1 + cos(2 pi num_periods n / decay_steps)) / 2."""
    return cosine_sign_decay(decay_steps, num_periods, zero_after)


@with_checked_arguments
def get_restart_decay_fn(
    decay_steps: int | float, num_periods: float = 1, zero_after: float | None = None
) -> Schedule:
    """Return `restart_sign_decay`: num_periods half cosines, each from 1 to 0."""
    return restart_sign_decay(decay_steps, num_periods, zero_after)

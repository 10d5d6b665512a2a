"""Optimizers between Adam and SGD: Padam and AdaBound."""

from typing import Any

import jax

from gradxform.numerics import value_at
from gradxform.optimizers.optimizer import decayed_descent, optimizer, with_arguments
from gradxform.slots import zero_count
from gradxform.transforms.toward_sgd import scale_by_adabound, scale_by_padam
from gradxform.types import DType, NonNegativeOrSchedule, Positive, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def padam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    partial: float = 0.125,
    mu_dtype: DType = None,
    *,
    amsgrad: bool = True,
    bias_correction: bool = False,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Padam: the average gradient over a small power of the largest second moment.

    Args:
      learning_rate: at least 0, or a schedule; 0.1 in the paper.

    See `scale_by_padam` for the other arguments.
    """
    direction = with_arguments(scale_by_padam, locals())
    return decayed_descent("padam", direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def adabound(
    learning_rate: NonNegativeOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    final_lr: Positive = 0.1,
    gamma: float = 1e-3,
    mu_dtype: DType = None,
    *,
    base_lr: Positive | None = None,
    amsgrad: bool = False,
    bias_correction: bool = True,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AdaBound: Adam whose rates are clipped to bounds that meet at the learning rate of SGD.

    The bounds meet at `final_lr` times what a schedule makes of `base_lr`.

    Args:
      learning_rate: at least 0, or a schedule, which the bounds follow.
      final_lr: the rate at which the bounds meet, greater than 0.
      base_lr: the learning rate beside which `final_lr` is meant, greater than 0. Defaults to the
        learning rate, or a schedule's first value. Give it where that is 0, or changes by
        `inject_hyperparams`.

    See `scale_by_adabound` for the other arguments.

    Raises:
      ValueError: if `base_lr` is needed and not given.
    """
    base = base_lr
    if base is None:
        base = learning_rate
        if callable(base):
            with jax.ensure_compile_time_eval():
                base = float(value_at(base, zero_count()))
        if isinstance(base, int | float) and base <= 0:
            raise ValueError(
                f"adabound: final_lr={final_lr!r} is meant beside a learning rate greater than 0, "
                f"and this one begins with {base!r}; say which with base_lr=."
            )
    ratio: Any = final_lr / base
    direction = with_arguments(scale_by_adabound, locals(), final_ratio=ratio)
    return decayed_descent("adabound", direction, learning_rate, weight_decay, weight_decay_mask)

"""Positive-negative momentum, alone and over the root of squares."""

from gradxform.optimizers.optimizer import decayed_descent, optimizer, with_arguments
from gradxform.transforms.pnm import scale_by_adapnm, scale_by_pnm
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def pnm(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b0: float = 1.0,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """PNM: SGD with the difference of two averages of alternating gradients as momentum.

    See `scale_by_pnm` and `scale_by_learning_rate` for the arguments.
    """
    return decayed_descent(
        "pnm", scale_by_pnm(b1, b0), learning_rate, weight_decay, weight_decay_mask
    )


@optimizer
def adapnm(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    b0: float = 1.0,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    amsgrad: bool = True,
    eps_before_correction: bool = False,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AdaPNM: Adam with a positive-negative momentum.

    See `scale_by_adapnm` and `scale_by_learning_rate` for the arguments.
    """
    direction = with_arguments(scale_by_adapnm, locals())
    return decayed_descent("adapnm", direction, learning_rate, weight_decay, weight_decay_mask)

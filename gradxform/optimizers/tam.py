"""Torque-aware momentum, alone and over the root of squares."""

from gradxform.optimizers.optimizer import decayed_descent, optimizer
from gradxform.transforms.tam import scale_by_adatam, scale_by_tam
from gradxform.types import ScalarOrSchedule, Size, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def tam(
    learning_rate: ScalarOrSchedule,
    momentum: float = 0.9,
    decay: float = 0.9,
    eps: float = 1e-8,
    *,
    axis: Size | None = None,
    first_gradient: bool = False,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """TAM: SGD whose momentum damps gradients that turn against it.

    See `scale_by_tam` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_tam(momentum, decay, eps, axis=axis, first_gradient=first_gradient)
    return decayed_descent("tam", direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def adatam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    decay: float = 0.9,
    eps: float = 1e-8,
    *,
    axis: Size | None = None,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AdaTAM: Adam whose momentum damps gradients that turn against it.

    See `scale_by_adatam` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_adatam(b1, b2, decay, eps, axis=axis)
    return decayed_descent("adatam", direction, learning_rate, weight_decay, weight_decay_mask)

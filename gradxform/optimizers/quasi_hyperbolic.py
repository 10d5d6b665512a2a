"""Quasi-hyperbolic momentum, and Adam with it."""

from gradxform.optimizers.optimizer import decayed_descent, optimizer
from gradxform.transforms.quasi_hyperbolic import scale_by_qhadam, scale_by_qhm
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def qhm(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.999,
    nu: float = 0.7,
    mu_dtype: DType = None,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """QHM: descent along the newest gradient and a long moving average of all.

    Args:
      learning_rate: at least 0, or a schedule; ten times that of a momentum of 0.9.

    See `scale_by_qhm` for the other arguments.
    """
    return decayed_descent(
        "qhm", scale_by_qhm(b1, nu, mu_dtype), learning_rate, weight_decay, weight_decay_mask
    )


@optimizer
def qhadam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.995,
    b2: float = 0.999,
    nu1: float = 0.7,
    nu2: float = 1.0,
    eps: float = 1e-8,
    mu_dtype: DType = None,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """QHAdam: Adam with the newest gradient beside both of its averages.

    See `scale_by_qhadam` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_qhadam(b1, b2, nu1, nu2, eps, mu_dtype)
    return decayed_descent("qhadam", direction, learning_rate, weight_decay, weight_decay_mask)

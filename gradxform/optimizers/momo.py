"""Step sizes from a model of the loss: MoMo, for SGD and for Adam."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.momo import step_by_momo, step_by_momo_adam
from gradxform.types import ScalarOrSchedule


@optimizer
def momo(
    learning_rate: ScalarOrSchedule = 1.0,
    beta: float = 0.9,
    lower_bound: float = 0.0,
    weight_decay: float = 0.0,
    adapt_lower_bound: bool = False,
) -> step_by_momo:
    """MoMo: SGD with momentum and a Polyak step size; its update needs the loss, as `value`.

    Args:
      learning_rate: the largest step size, at least 0, or a schedule; choose it large.

    See `step_by_momo` for the other arguments.

    Reference: Schaipp et al., MoMo: Momentum Models for Adaptive Learning Rates, 2023, Algorithm 1.
    """
    return step_by_momo(learning_rate, beta, lower_bound, weight_decay, adapt_lower_bound)


@optimizer
def momo_adam(
    learning_rate: ScalarOrSchedule = 1e-2,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    lower_bound: float = 0.0,
    weight_decay: float = 0.0,
    adapt_lower_bound: bool = False,
) -> step_by_momo_adam:
    """MoMo-Adam: AdamW with a Polyak step size; its update needs the loss, as `value`.

    Args:
      learning_rate: the largest step size, at least 0, or a schedule; choose it larger than Adam's.

    See `step_by_momo_adam` for the other arguments.

    Reference: Schaipp et al., MoMo: Momentum Models for Adaptive Learning Rates, 2023, Algorithm 2.
    """
    return step_by_momo_adam(
        learning_rate, b1, b2, eps, lower_bound, weight_decay, adapt_lower_bound
    )

"""Dual averaging of momentum SGD."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.madgrad import scale_by_madgrad
from gradxform.transforms.scaling import add_decayed_weights
from gradxform.types import ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def madgrad(
    learning_rate: ScalarOrSchedule,
    momentum: float = 0.9,
    weight_decay: ScalarOrSchedule = 0.0,
    eps: float = 1e-6,
) -> chain:
    """MADGRAD: momentum SGD by dual averaging, scaled by the cube root of the sum of squares.

    Args:
      weight_decay: added to the gradients, at least 0, or a schedule; use little or none.

    See `scale_by_madgrad` for the other arguments.

    Reference: Defazio and Jelassi, Adaptivity without Compromise: A Momentumized, Adaptive, Dual
    Averaged Gradient Method for Stochastic Optimization, 2021, Algorithm 1.
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))

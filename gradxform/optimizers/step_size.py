"""Optimizers that find the size of the step, or of every array's step, themselves."""

from gradxform.optimizers.momentum import sgd
from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.step_size import scale_by_polyak
from gradxform.types import ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def polyak_sgd(
    max_learning_rate: float = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: float = 0.0,
    eps: float = 0.0,
    variant: str = "sps",
) -> chain:
    """Polyak SGD: gradient descent by Polyak's step size; its update needs the loss, as `value`.

    Args:
      scaling: multiplies the gradients first, at least 0, or a schedule; the step size is then that
        of the scaled gradients.

    See `scale_by_polyak` for the other arguments.

    Reference: Loizou et al., Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for
    Fast Convergence, 2021, SPS_max.
    """
    return chain(sgd(scaling), scale_by_polyak(f_min, max_learning_rate, eps, variant))

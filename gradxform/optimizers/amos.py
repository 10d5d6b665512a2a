"""Amos, with an average of its steps."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.amos import step_by_amos
from gradxform.transforms.momentum import ema
from gradxform.types import Decay, ScalarOrSchedule, Size
from gradxform.wrappers.compose import chain


@optimizer
def amos(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.999,
    eta: float | None = None,
    momentum: Decay | None = None,
    c_coef: float = 0.25,
    d_coef: float = 0.25,
    eps: float = 1e-18,
    axis: Size | tuple[int, ...] | None = None,
) -> chain:
    """Amos: scaled steps with a weight decay that follows from the learning rate.

    Args:
      momentum: the decay of an average of the steps, in [0, 1). Defaults to the steps themselves.

    See `step_by_amos` for the other arguments.
    """
    step = step_by_amos(learning_rate, beta, eta, c_coef, d_coef, eps, axis)
    return chain(step) if momentum is None else chain(step, ema(momentum, debias=False))

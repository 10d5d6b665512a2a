"""Optimizers for sparse models: proximal steps, dual averaging, FTRL.

Each step assigns a new value, and l1 gives exact zeros.
"""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.proximal import (
    step_by_dual_averaging,
    step_by_ftrl,
    step_by_proximal_adagrad,
    step_by_proximal_gradient,
)
from gradxform.types import ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def proximal_sgd(learning_rate: ScalarOrSchedule, l1: float = 0.0, l2: float = 0.0) -> chain:
    """Proximal SGD: descent, then a proximal step towards 0 (forward-backward splitting).

    See `step_by_proximal_gradient` for the arguments.

    Reference: Duchi and Singer, Efficient Online and Batch Learning Using Forward Backward
    Splitting, 2009, equations (2) and (3).
    """
    return chain(step_by_proximal_gradient(learning_rate, l1, l2))


@optimizer
def proximal_adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    l1: float = 0.0,
    l2: float = 0.0,
) -> chain:
    """Proximal Adagrad: Adagrad with a proximal step towards 0, scaled like each entry's rate.

    See `step_by_proximal_adagrad` for the arguments.

    Reference: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, 2011, equations (4) and (24).
    """
    return chain(step_by_proximal_adagrad(learning_rate, initial_accumulator_value, l1, l2))


@optimizer
def adagrad_da(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    l1: float = 0.0,
    l2: float = 0.0,
) -> chain:
    """Adagrad by dual averaging: each step minimizes a model of all gradients so far.

    See `step_by_dual_averaging` for the arguments.

    Reference: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, 2011, equations (3) and (19).
    """
    return chain(step_by_dual_averaging(learning_rate, initial_accumulator_value, l1, l2))


@optimizer
def ftrl(
    learning_rate: ScalarOrSchedule,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1: float = 0.0,
    l2: float = 0.0,
    l2_shrinkage: float = 0.0,
    *,
    beta: float = 0.0,
) -> chain:
    """FTRL: follow the regularized leader, for large sparse linear models.

    See `step_by_ftrl` for the arguments.

    Reference: McMahan et al., Ad Click Prediction: a View from the Trenches, 2013, Algorithm 1.
    """
    rule = step_by_ftrl(
        learning_rate,
        learning_rate_power,
        initial_accumulator_value,
        l1,
        l2,
        l2_shrinkage,
        beta=beta,
    )
    return chain(rule)

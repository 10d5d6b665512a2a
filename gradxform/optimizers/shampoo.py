"""Shampoo."""

import jax

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.shampoo import step_by_shampoo
from gradxform.types import ScalarOrSchedule, Schedule, Size
from gradxform.wrappers.compose import chain


@optimizer
def shampoo(
    learning_rate: ScalarOrSchedule = 1.0,
    max_matrix_size: Size = 768,
    gbar_decay: ScalarOrSchedule = 0.0,
    gbar_weight: ScalarOrSchedule = 1.0,
    mat_gbar_decay: ScalarOrSchedule = 1.0,
    mat_gbar_weight: ScalarOrSchedule = 1.0,
    svd_interval: int | float | jax.Array | Schedule = 1,
    precond_update_interval: int | float | jax.Array | Schedule = 1,
    epsilon: float = 1e-4,
    alpha: ScalarOrSchedule = 0.5,
    use_iterative_root: bool = False,
) -> chain:
    """Shampoo: the gradient multiplied along every axis by the inverse root of a matrix.

    Schedules, including that of the learning rate, are called with T = 1, 2, ..., the number of
    this update. Elsewhere in this library they count from 0. `step_by_shampoo` says what differs
    from the paper.

    See `step_by_shampoo` for the arguments.

    Reference: TensorFlow, tf.contrib.opt.ShampooOptimizer, after Gupta et al., Shampoo:
    Preconditioned Stochastic Tensor Optimization, 2018, Algorithm 2.
    """
    return chain(step_by_shampoo(**locals()))

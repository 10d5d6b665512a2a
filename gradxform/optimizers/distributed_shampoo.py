"""Distributed Shampoo."""

from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import add_decayed_weights, scale, scale_by_learning_rate
from gradxform.transforms.shampoo.distributed_shampoo import scale_by_distributed_shampoo
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticTree, UnitInterval
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def distributed_shampoo(
    learning_rate: ScalarOrSchedule,
    block_size: Size = 1024,
    beta1: UnitInterval = 0.9,
    beta2: float = 0.999,
    diagonal_epsilon: float = 1e-10,
    matrix_epsilon: float = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    start_preconditioning_step: int = 5,
    preconditioning_compute_steps: Size = 1,
    statistics_compute_steps: Size = 1,
    graft_type: str = "sgd",
    nesterov: bool = True,
    exponent_override: Size = 0,
    *,
    inverse_root: str = "auto",
    inverse_failure_threshold: float = 0.1,
    moving_average_for_momentum: bool = False,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.999,
    adam_eps: float = 1e-8,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
    compute_dtype: DType = None,
) -> partition:
    """Distributed Shampoo: blocks, inverse roots and grafting for matrices, AdamW for all others.

    Grafting keeps the learning rate of the grafted method: with graft_type "adam", that of Adam and
    moving_average_for_momentum=True. Renewing roots every 10 to 50 steps makes them affordable.

    Args:
      beta1: the decay of the momentum of the steps, in [0, 1).
      weight_decay: of the matrices, before the momentum, at least 0, or a schedule.
      moving_average_for_momentum: whether a new step counts 1 - beta1 in the momentum, not 1.
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as in `soap`: None in it for parameters that AdamW gets. By default,
        parameters of two dimensions are matrices.

    See `scale_by_distributed_shampoo`, `trace` and `soap` for the other arguments.

    Reference: Anil et al., Scalable Second Order Optimization for Deep Learning, 2021; Shi et al.,
    A Distributed Data-Parallel PyTorch Implementation of the Distributed Shampoo Optimizer for
    Training Neural Networks At-Scale, 2023.
    """
    direction = with_arguments(scale_by_distributed_shampoo, locals())
    # `trace` sums up: of parts of 1 - beta1 each, the sum is a moving average.
    average = (scale(1 - beta1),) if moving_average_for_momentum else ()
    matrices = chain(
        direction,
        add_decayed_weights(weight_decay),
        *average,
        trace(beta1, nesterov),
        scale_by_learning_rate(learning_rate),
    )
    label, numbers = "distributed_shampoo", weight_dimension_numbers
    adam, decay = (adam_learning_rate, adam_b1, adam_b2, adam_eps), adam_weight_decay
    return with_adamw(label, matrices, numbers, learning_rate, *adam, weight_decay=decay)

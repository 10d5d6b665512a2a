"""PSGD Kron."""

import math

from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.psgd import UPDATE_PROBABILITY, scale_by_psgd_kron
from gradxform.types import (
    Decay,
    DType,
    FixedBound,
    Key,
    ScalarOrSchedule,
    Size,
    StaticMask,
    StaticTree,
)
from gradxform.wrappers.select import partition


@optimizer
def psgd_kron(
    learning_rate: ScalarOrSchedule = 1e-3,
    b1: float = 0.9,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
    preconditioner_update_probability: ScalarOrSchedule = UPDATE_PROBABILITY,
    max_size_triangular: Size = 8192,
    max_skew_triangular: FixedBound = math.inf,
    memory_save_mode: str | None = None,
    momentum_into_precond_update: bool = True,
    precond_lr: float = 0.1,
    precond_init_scale: float = 1.0,
    *,
    deterministic: bool = False,
    key: Key = 0,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.999,
    adam_eps: float = 1e-8,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
    compute_dtype: DType = None,
) -> partition:
    """PSGD Kron: two fitted triangular factors for matrices, AdamW for all other parameters.

    Learning rates are about a third of Adam's. The factors take m^2 + n^2 numbers for a matrix of
    sides m and n; memory_save_mode="one_diag" leaves only that of the shorter side whole.

    Args:
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as in `soap`: None in it for parameters that AdamW gets. By default,
        parameters of two dimensions are matrices.

    See `scale_by_psgd_kron` and `soap` for the other arguments.

    Reference: Li, Preconditioned Stochastic Gradient Descent, 2018, and Preconditioner on Matrix
    Lie Group for SGD, 2018.
    """
    direction = with_arguments(scale_by_psgd_kron, locals())
    matrices = with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)
    numbers, decay = weight_dimension_numbers, adam_weight_decay
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return with_adamw("psgd_kron", matrices, numbers, learning_rate, *adam, weight_decay=decay)

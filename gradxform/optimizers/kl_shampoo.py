"""KL-Shampoo."""

from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.kl_shampoo import scale_by_kl_shampoo
from gradxform.types import Decay, DType, FixedDecay, ScalarOrSchedule, Size, StaticMask, StaticTree
from gradxform.wrappers.select import partition


@optimizer
def kl_shampoo(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    beta: FixedDecay = 0.98,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = 0.01,
    weight_decay_mask: StaticMask | None = None,
    precondition_frequency: Size = 10,
    max_precond_dim: Size = 10000,
    kl_start: float = 0.1,
    *,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.98,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
    compute_dtype: DType = None,
) -> partition:
    """KL-Shampoo: Shampoo with covariances of both sides for matrices, AdamW for the rest.

    The first update of a matrix is its weight decay alone: KL-Shampoo only forms the bases. Warm up
    the learning rate as for Adam.

    Args:
      eps: added to the roots, in AdamW too, at least 0.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      weight_decay_mask: which parameters decay. Defaults to all.
      weight_dimension_numbers: as in `soap`.

    See `scale_by_kl_shampoo`, `soap` and `scale_by_learning_rate` for the other arguments.

    Reference: Lin et al., Understanding and Improving Shampoo and SOAP via Kullback-Leibler
    Minimization, 2025; the defaults are those of its code.
    """
    direction = with_arguments(scale_by_kl_shampoo, locals())
    matrices = with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)
    decay = {"weight_decay": weight_decay, "mask": weight_decay_mask}
    adam, numbers = (adam_learning_rate, adam_b1, adam_b2, eps), weight_dimension_numbers
    return with_adamw("kl_shampoo", matrices, numbers, learning_rate, *adam, **decay)

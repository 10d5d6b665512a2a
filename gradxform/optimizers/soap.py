"""SOAP."""

from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.soap import scale_by_soap
from gradxform.types import Decay, DType, FixedDecay, ScalarOrSchedule, Size, StaticMask, StaticTree
from gradxform.wrappers.select import partition


@optimizer
def soap(
    learning_rate: ScalarOrSchedule = 3e-3,
    b1: float = 0.95,
    b2: FixedDecay = 0.95,
    shampoo_beta: FixedDecay | None = None,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = 0.01,
    weight_decay_mask: StaticMask | None = None,
    precondition_frequency: Size = 10,
    max_precond_dim: Size = 10000,
    *,
    correct_bias: bool = True,
    eps_before_correction: bool = False,
    normalize_grads: bool = False,
    one_sided: bool = False,
    adam_b1: Decay = 0.95,
    adam_b2: Decay = 0.95,
    adam_weight_decay: ScalarOrSchedule = 0.01,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
    compute_dtype: DType = None,
    kl_start: float | None = None,
) -> partition:
    """SOAP: Adam in the eigenbasis of Shampoo's matrices, AdamW for all other parameters.

    The first update of a matrix is its weight decay alone: SOAP only forms the basis. Warm up the
    learning rate as for Adam. Embeddings and output layers are matrices too, with one long side: to
    leave them to AdamW, put None in their place in `weight_dimension_numbers`.

    Args:
      eps: added to the root, in AdamW too, at least 0.
      weight_decay: of the matrices, at least 0, or a schedule; the learning rate multiplies it.
      weight_decay_mask: which matrices decay. Defaults to all.
      adam_b1: the decay of AdamW's first moment, in [0, 1).
      adam_b2: the decay of AdamW's second moment, in [0, 1).
      adam_weight_decay: AdamW's weight decay, at least 0, or a schedule.
      adam_learning_rate: AdamW's learning rate. Defaults to that of the matrices.
      weight_dimension_numbers: `MuonDimensionNumbers` for all parameters, a tree of them with None
        for those that AdamW gets (a prefix of the parameters will do), or a function of the
        parameters that returns one. By default, parameters of two dimensions are matrices.

    See `scale_by_soap` and `scale_by_learning_rate` for the other arguments.

    Reference: Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, 2024, Algorithm 3;
    the defaults are those of its code.
    """
    direction = with_arguments(scale_by_soap, locals())
    matrices = with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)
    numbers, decay = weight_dimension_numbers, adam_weight_decay
    adam = adam_learning_rate, adam_b1, adam_b2, eps
    return with_adamw("soap", matrices, numbers, learning_rate, *adam, weight_decay=decay)

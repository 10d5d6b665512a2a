"""Adam-mini."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adam_mini import scale_by_adam_mini
from gradxform.types import DType, ScalarOrSchedule, StaticMask, StaticTree
from gradxform.wrappers.compose import chain


@optimizer
def adam_mini(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
    *,
    blocks: StaticTree = None,
) -> chain:
    """Adam-mini: Adam with one second moment for each block of a parameter, such as a neuron.

    See `scale_by_adam_mini`, `add_decayed_weights` and `scale_by_learning_rate` for the arguments.

    Reference: Zhang et al., Adam-mini: Use Fewer Learning Rates To Gain More, 2024, Algorithm 1.
    """
    direction = scale_by_adam_mini(b1, b2, eps, mu_dtype, blocks=blocks)
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

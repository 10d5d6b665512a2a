"""MARS with AdamW."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.mars import scale_by_mars
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def mars_adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.95,
    b2: float = 0.99,
    eps: float = 1e-8,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 1e-2,
    weight_decay_mask: StaticMask | None = None,
    gamma: float = 0.025,
    max_norm: float = 1.0,
) -> chain:
    """AdamW of gradients that MARS has corrected by their change.

    Args:
      learning_rate: at least 0, or a schedule; 6e-3 for the small GPT-2 of the paper. It multiplies
        the decay too.
      b1: the decay of the average, in [0, 1), also in the correction.

    See `scale_by_mars`, `scale_by_adam` and `add_decayed_weights` for the other arguments.

    Reference: Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large
    Models, 2024, MARS-AdamW in the approximate form.
    """
    direction = chain(
        scale_by_mars(b1, gamma, max_norm), scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)
    )
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

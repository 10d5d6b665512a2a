"""LaProp."""

from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.laprop import scale_by_laprop, scale_by_torch_laprop
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def laprop(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-15,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
    *,
    amsgrad: bool = False,
    centered_after: int | None = None,
    eps_before_correction: bool = False,
) -> chain:
    """LaProp: momentum of gradients that have already been divided, with decoupled weight decay.

    Args:
      learning_rate: at least 0, or a schedule; 4e-4 in the paper. It multiplies the decay too.
      eps_before_correction: whether the rule is `scale_by_torch_laprop`.

    See `scale_by_laprop` and `add_decayed_weights` for the other arguments.

    Reference: Ziyin et al., LaProp: Separating Momentum and Adaptivity in Adam, 2020, Algorithm 1.
    """
    direction = with_arguments(
        scale_by_torch_laprop if eps_before_correction else scale_by_laprop, locals()
    )
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

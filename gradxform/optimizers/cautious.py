"""Cautious AdamW and Lion."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.sign import scale_by_lion
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.cautious import cautious
from gradxform.wrappers.compose import chain


@optimizer
def cautious_adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 1e-4,
    weight_decay_mask: StaticMask | None = None,
    xi: float = 1.0,
) -> chain:
    """AdamW whose direction is masked where it disagrees with the gradient: C-AdamW.

    Args:
      learning_rate: at least 0, or a schedule; that of AdamW. It multiplies the decay too.

    See `scale_by_adam`, `cautious` and `add_decayed_weights` for the other arguments.

    Reference: Liang et al., Cautious Optimizers: Improving Training with One Line of Code, 2024,
    Algorithm 1.
    """
    direction = cautious(scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype), xi, descent=False)
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def cautious_lion(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 1e-3,
    weight_decay_mask: StaticMask | None = None,
    xi: float = 1.0,
) -> chain:
    """Lion whose direction is masked where it disagrees with the gradient: C-Lion.

    Args:
      learning_rate: at least 0, or a schedule; that of Lion. It multiplies the decay too.

    See `scale_by_lion`, `cautious` and `add_decayed_weights` for the other arguments.

    Reference: Liang et al., Cautious Optimizers: Improving Training with One Line of Code, 2024.
    """
    direction = cautious(scale_by_lion(b1, b2, mu_dtype), xi, descent=False)
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

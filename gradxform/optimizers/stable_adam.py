"""Adam made stable: StableAdamW and Adam-atan2."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.transforms.stable_adam import scale_by_adam_atan2, scale_by_stable_adam
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def stable_adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-8,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule = 1e-2,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """StableAdamW: AdamW with shorter steps where a gradient is large beside earlier ones.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `scale_by_stable_adam` for the other arguments.
    """
    direction = scale_by_stable_adam(
        b1, b2, eps, mu_dtype, weight_decay=weight_decay, mask=weight_decay_mask
    )
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def adam_atan2(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    a: float = 1.0,
    b: float = 1.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 1e-4,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Adam-atan2: AdamW without an epsilon, whose division is an arctangent.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `scale_by_adam_atan2` and `add_decayed_weights` for the other arguments.
    """
    direction = scale_by_adam_atan2(b1, b2, a, b, mu_dtype)
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

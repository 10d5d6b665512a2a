"""AdamW of gradients whose slow part is amplified."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.grokfast import grokfast_ema
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def grokfast_adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.98,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
    alpha: float = 0.98,
    lamb: float = 2.0,
    *,
    start: int = 0,
) -> chain:
    """AdamW of gradients to which a multiple of their moving average is added.

    Args:
      learning_rate: at least 0, or a schedule; that of AdamW. It multiplies the decay too.

    See `grokfast_ema`, `scale_by_adam` and `add_decayed_weights` for the other arguments.

    Reference: Lee et al., Grokfast: Accelerated Grokking by Amplifying Slow Gradients, 2024,
    with a moving average (EMA).
    """
    return chain(
        grokfast_ema(alpha, lamb, start),
        scale_by_adam(b1, b2, eps),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )

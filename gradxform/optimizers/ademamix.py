"""Adam with a second, much slower memory of the gradient."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.ademamix import scale_by_ademamix, scale_by_simplified_ademamix
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AdEMAMix: AdamW whose momentum is a fast average of the gradient plus a very slow one.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `scale_by_ademamix` and `add_decayed_weights` for the other arguments.

    Reference: Pagliardini et al., The AdEMAMix Optimizer: Better, Faster, Older, 2024, Algorithm 1.
    """
    return chain(
        scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.99,
    b2: float = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Simplified AdEMAMix: one slow momentum, and more weight for the newest gradient.

    Args:
      learning_rate: at least 0, or a schedule; about 1 - b1 times Adam's. It multiplies the decay
        too.

    See `scale_by_simplified_ademamix` and `add_decayed_weights` for the other arguments.

    Reference: Morwani et al., Connections between Schedule-Free Optimizers, AdEMAMix, and
    Accelerated SGD Variants, 2025, Simplified-AdEMAMix.
    """
    return chain(
        scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )

"""Optimizers that divide by a second moment of earlier gradients only."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.adopt import fourth_root, scale_by_acprop, scale_by_adopt
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule, Schedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def acprop(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """ACProp: AdaBelief one step behind, the gradient over the deviations of earlier ones.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `scale_by_acprop` and `add_decayed_weights` for the other arguments.

    Reference: Zhuang et al., Momentum Centering and Asynchronous Update for Adaptive Gradient
    Methods, 2021, ACProp.
    """
    return chain(
        scale_by_acprop(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def adopt(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.9999,
    eps: float = 1e-6,
    mu_dtype: DType = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Schedule = fourth_root,
) -> chain:
    """ADOPT: Adam that converges for every b2, by scaling gradients before averaging them.

    The first update is 0.

    See `scale_by_adopt` and `scale_by_learning_rate` for the arguments.

    Reference: Taniguchi et al., ADOPT: Modified Adam Can Converge with Any beta2 with the Optimal
    Rate, 2024, Algorithm 2, and the clipping of its section 4.
    """
    return chain(
        scale_by_adopt(
            b1,
            b2,
            eps,
            mu_dtype,
            nesterov=nesterov,
            use_clipping=use_clipping,
            clip_value_fn=clip_value_fn,
        ),
        scale_by_learning_rate(learning_rate),
    )

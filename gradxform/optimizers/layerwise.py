"""Optimizers whose step for an array is in proportion to the array's norm."""

from typing import Any

from gradxform.errors import must_be, shown
from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.layerwise import (
    scale_by_first_snr,
    scale_by_novograd,
    scale_by_trust_ratio,
    undo_norm_growth,
)
from gradxform.transforms.momentum import ema, trace
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, StaticMask, UnitInterval
from gradxform.values import frozen, key_of
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import masked


@optimizer
def lamb(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
    *,
    max_ratio: float | None = None,
) -> chain:
    """LAMB: Adam whose update of each array is scaled to the array's norm, for large batches.

    Args:
      max_ratio: the largest factor of an update, greater than 0: 1 for LAMBC, which never
        lengthens one. Defaults to any.

    See `scale_by_adam`, `add_decayed_weights` and `scale_by_learning_rate` for the other arguments.

    Reference: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, Algorithm 2.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_trust_ratio(max_ratio=max_ratio),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = True,
    trust_coefficient: float = 0.001,
    eps: float = 0.0,
    trust_ratio_mask: StaticMask = True,
    momentum: UnitInterval = 0.9,
    nesterov: bool = False,
    *,
    sum_norms: bool = False,
    scaled_decay: bool = False,
    max_ratio: float | None = None,
) -> chain:
    """LARS: SGD with momentum whose step for each array is in proportion to the array's norm.

    The ratio is trust_coefficient |p| / (|g + weight_decay p| + eps), as in Optax. With sum_norms
    it is trust_coefficient |p| / (|g| + weight_decay |p| + eps), as in the paper and TensorFlow. An
    array whose gradient is zero has a ratio of 1 in TensorFlow and with sum_norms, and decays by
    learning_rate weight_decay p; without sum_norms, or with scaled_decay, its decay is scaled as
    any other step, as in the paper.

    Args:
      learning_rate: at least 0, or a schedule; it is applied before the momentum.
      weight_decay: at least 0, or a schedule; a number with sum_norms.
      weight_decay_mask: which parameters decay.
      trust_coefficient: the ratio of the sizes of step and array, finite.
      trust_ratio_mask: which parameters' steps are scaled, such as `~path_matches("bias|norm")`;
        with sum_norms the same mask as weight_decay_mask.
      momentum: the decay of the momentum, in [0, 1].
      sum_norms: whether to add the norms of gradient and decay, instead of taking the norm of their
        sum.
      scaled_decay: with sum_norms, whether the decay of an array without a gradient is scaled.
      max_ratio: the largest ratio, greater than 0. Defaults to any. LARC of the rate r is
        `lars(1.0, ..., max_ratio=r)`.

    See `scale_by_trust_ratio` and `trace` for the other arguments.

    Reference: You et al., Large Batch Training of Convolutional Networks, 2017, Algorithm 1 and
    equation (6).
    """
    if sum_norms:
        ratio = _lars_ratio(weight_decay, trust_coefficient, eps, scaled_decay, max_ratio)
        parts = (ratio if weight_decay_mask is True else masked(ratio, weight_decay_mask),)
        if key_of(frozen(weight_decay_mask)) != key_of(frozen(trust_ratio_mask)):
            raise ValueError(
                "lars: with sum_norms, weight_decay_mask and trust_ratio_mask must be the same "
                f"mask, got {shown(weight_decay_mask)} and {shown(trust_ratio_mask)}."
            )
    else:
        ratio = scale_by_trust_ratio(0.0, trust_coefficient, eps, max_ratio=max_ratio)
        parts = (
            add_decayed_weights(weight_decay, weight_decay_mask),
            masked(ratio, trust_ratio_mask),
        )
    return chain(*parts, scale_by_learning_rate(learning_rate), trace(momentum, nesterov))


def _lars_ratio(
    weight_decay: Any,
    trust_coefficient: float,
    eps: float,
    scaled_decay: bool,
    max_ratio: float | None,
) -> scale_by_trust_ratio:
    """Return the trust ratio with the norms of gradient and decay added."""
    if callable(weight_decay):
        raise TypeError(must_be("lars", "weight_decay", "a number with sum_norms", weight_decay))
    return scale_by_trust_ratio(
        0.0,
        trust_coefficient,
        eps,
        weight_decay=weight_decay,
        scaled_decay=scaled_decay,
        max_ratio=max_ratio,
    )


@optimizer
def novograd(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.25,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
) -> chain:
    """NovoGrad: each array's gradient over a running norm of it, with momentum and weight decay.

    See `scale_by_novograd` and `scale_by_learning_rate` for the arguments.

    Reference: Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments for
    Training of Deep Networks, 2019, Algorithm 1.
    """
    return chain(
        scale_by_novograd(b1, b2, eps, eps_root, weight_decay),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def fromage(learning_rate: ScalarOrSchedule, min_norm: float = 1e-6) -> chain:
    """Fromage: steps in proportion to each array's norm; then the array is shrunk to that norm.

    Args:
      learning_rate: the length of the step relative to the array's norm, at least 0, or a schedule.

    See `scale_by_trust_ratio` for the other arguments.

    Reference: Bernstein et al., On the distance between two neural networks and the stability of
    learning, 2020, Algorithm 1.
    """
    return chain(
        scale_by_trust_ratio(min_norm),
        scale_by_learning_rate(learning_rate),
        undo_norm_growth(learning_rate),
    )


@optimizer
def sgd_sai(
    learning_rate: ScalarOrSchedule,
    momentum: float = 0.9,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = 0.01,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """SGD-SaI: momentum, with a scale for each array from its first gradient.

    Args:
      momentum: the decay of the average of scaled gradients, in [0, 1).

    See `scale_by_first_snr`, `add_decayed_weights` and `scale_by_learning_rate` for the other
    arguments.

    Reference: Xu et al., No More Adam: Learning Rate Scaling at Initialization is All You Need,
    2024.
    """
    direction = chain(scale_by_first_snr(eps), ema(momentum, debias=False))
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

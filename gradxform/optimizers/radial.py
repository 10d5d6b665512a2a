"""AdamP and SGDP: steps at right angles to the weights that a normalization follows."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import Decay, NonNegative, ScalarOrSchedule, Size, StaticMask
from gradxform.wrappers.compose import chain
from gradxform.wrappers.radial import remove_radial


@optimizer
def adamp(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    weight_decay_mask: StaticMask | None = None,
    delta: float = 0.1,
    wd_ratio: float = 0.1,
    *,
    nesterov: bool = False,
    axis: Size = -1,
) -> chain:
    """AdamP: AdamW that does not move normalized weights along themselves.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.
      eps: added to the root, and to the norm of a row of the parameter, at least 0.
      nesterov: whether to look one step ahead, as the authors' code does and not as NAdam: eps is
        then added before the correction of the root, as in `scale_by_tf_adam`.

    See `scale_by_adam` and `remove_radial` for the other arguments.

    Reference: Heo et al., AdamP: Slowing Down the Slowdown for Momentum Optimizers on
    Scale-invariant Weights, 2021, Algorithm 2.
    """
    adam = scale_by_adam(b1, b2, eps)
    if nesterov:
        adam = scale_by_tf_adam(b1, b2, eps, nesterov=True)
    direction = remove_radial(
        adam, delta, wd_ratio, weight_decay, weight_decay_mask, eps=eps, axis=axis
    )
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def sgdp(
    learning_rate: ScalarOrSchedule,
    momentum: Decay = 0.9,
    weight_decay: NonNegative = 0.0,
    weight_decay_mask: StaticMask | None = None,
    delta: float = 0.1,
    wd_ratio: float = 0.1,
    *,
    nesterov: bool = False,
    eps: float = 1e-8,
    axis: Size = -1,
) -> chain:
    """SGDP: SGD with momentum that does not move normalized weights along themselves.

    The decay is divided by 1 - momentum, so that it is as strong as one that is in the momentum.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.
      momentum: the decay of the momentum, in [0, 1).

    See `trace` and `remove_radial` for the other arguments.

    Reference: Heo et al., AdamP: Slowing Down the Slowdown for Momentum Optimizers on
    Scale-invariant Weights, 2021, Algorithm 1.
    """
    decay = weight_decay / (1 - momentum)
    direction = remove_radial(
        trace(momentum, nesterov), delta, wd_ratio, decay, weight_decay_mask, eps=eps, axis=axis
    )
    return chain(direction, scale_by_learning_rate(learning_rate))

"""Adam's kin: another second moment, or a rectified one."""

from gradxform.optimizers.optimizer import (
    decayed_descent,
    optimizer,
    with_arguments,
    with_weight_decay,
)
from gradxform.transforms.adam_kin import (
    scale_by_adamax,
    scale_by_belief,
    scale_by_radam,
    scale_by_rectified_belief,
    scale_by_torch_radam,
    scale_by_yogi,
)
from gradxform.transforms.normalization import centralize
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, Size, StaticMask
from gradxform.wrappers.compose import chain
from gradxform.wrappers.lookahead import lookahead


@optimizer
def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    *,
    nesterov: bool = False,
    amsgrad: bool = False,
    threshold: float | None = None,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AdaBelief: Adam, divided by how far gradients are from their average, not from 0.

    With amsgrad or a threshold, the rule is `scale_by_rectified_belief`, else `scale_by_belief`.

    See `scale_by_rectified_belief` and `scale_by_learning_rate` for the arguments.

    Reference: Zhuang et al., AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
    Gradients, 2020, Algorithm 2, which uses one epsilon of 1e-8 for both of ours.
    """
    is_papers = threshold is None and not amsgrad
    direction = with_arguments(
        scale_by_belief if is_papers else scale_by_rectified_belief, locals()
    )
    decay = weight_decay, weight_decay_mask
    return decayed_descent("adabelief", direction, learning_rate, *decay)


@optimizer
def adamax(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    eps_in_max: bool = True,
) -> chain:
    """AdaMax: Adam with a decaying maximum of |g| instead of the second moment.

    See `scale_by_adamax` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_adamax(b1, b2, eps, eps_in_max=eps_in_max)
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = 1e-4,
    weight_decay_mask: StaticMask | None = None,
    *,
    eps_in_max: bool = True,
) -> chain:
    """AdaMaxW: AdaMax with decoupled weight decay.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `scale_by_adamax` and `add_decayed_weights` for the other arguments.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, Algorithm 2;
    Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 2.
    """
    direction = scale_by_adamax(b1, b2, eps, eps_in_max=eps_in_max)
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def radam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
    eps_before_correction: bool = False,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """RAdam: Adam that is divided only once its second moment has seen enough gradients.

    Args:
      eps_before_correction: whether the rule is PyTorch's, `scale_by_torch_radam`.

    See `scale_by_radam` and `scale_by_learning_rate` for the other arguments.
    """
    direction = with_arguments(
        scale_by_torch_radam if eps_before_correction else scale_by_radam, locals()
    )
    return decayed_descent("radam", direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def ranger(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.95,
    b2: float = 0.999,
    eps: float = 1e-5,
    sync_period: int = 6,
    slow_step_size: float = 0.5,
    *,
    threshold: float = 5.0,
    eps_before_correction: bool = True,
    axis: Size = -1,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> lookahead:
    """Ranger: RAdam of centralized gradients, inside lookahead.

    Evaluate `eval_params(state, params)`.

    Args:
      eps_before_correction: whether the rule is PyTorch's, `scale_by_torch_radam`.
      axis: the axis of the outputs; the last one of layers of Flax.

    See `scale_by_radam`, `scale_by_learning_rate` and `lookahead` for the other arguments.

    Reference: Wright, Ranger: a synergistic optimizer, 2019, with Yong et al., Gradient
    Centralization: A New Optimization Technique for Deep Neural Networks, 2020.
    """
    rule = with_arguments(
        scale_by_torch_radam if eps_before_correction else scale_by_radam, locals()
    )
    direction = chain(centralize(axis=axis), rule)
    fast = decayed_descent("ranger", direction, learning_rate, weight_decay, weight_decay_mask)
    return lookahead(fast, sync_period, slow_step_size)


@optimizer
def yogi(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-3,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Yogi: Adam with a second moment that changes additively and never forgets quickly.

    See `scale_by_yogi` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_yogi(b1, b2, eps)
    return decayed_descent("yogi", direction, learning_rate, weight_decay, weight_decay_mask)

"""AdaHessian."""

from typing import Any

from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.adahessian import average_spatial_axes, scale_by_adahessian
from gradxform.transforms.sophia import hutchinson_estimator_diag_hessian
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def adahessian(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-4,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
    hessian_power: float = 1.0,
    update_interval: int = 1,
    hessian_diagonal_fn: Any = hutchinson_estimator_diag_hessian(),  # noqa: B008  (a value)
    mu_dtype: DType = None,
    *,
    spatial_averaging: bool = True,
) -> chain:
    """AdaHessian: Adam with the diagonal of the Hessian in the place of the gradient's square.

    Its update needs `obj_fn`, the loss of the batch as a function of the parameters alone:
    `update(grads, state, params, obj_fn=lambda p: loss(p, batch))`.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too. The authors use 0.15
        for ResNets on CIFAR-10.
      spatial_averaging: whether estimates are averaged over the windows of kernels, by
        `average_spatial_axes`; for other kernels than arrays of four axes or more, chain it to
        `hessian_diagonal_fn` yourself.

    See `scale_by_adahessian` and `add_decayed_weights` for the other arguments.

    Reference: Yao et al., ADAHESSIAN: An Adaptive Second Order Optimizer for Machine Learning,
    2021, Algorithm 1.
    """
    if spatial_averaging:
        hessian_diagonal_fn = chain(hessian_diagonal_fn, average_spatial_axes())
    direction = with_arguments(scale_by_adahessian, locals())
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

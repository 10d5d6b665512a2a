"""Sophia: clipped steps, scaled by an estimate of the curvature."""

from typing import Any

from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.sophia import hutchinson_estimator_diag_hessian, scale_by_sophia
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def sophia(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.965,
    b2: float = 0.99,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = 1e-4,
    weight_decay_mask: StaticMask | None = None,
    gamma: float = 0.01,
    clip_threshold: float | None = 1.0,
    update_interval: int = 10,
    hessian_diagonal_fn: Any = hutchinson_estimator_diag_hessian(),  # noqa: B008  (a value)
    mu_dtype: DType = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: int = 0,
    *,
    debias: bool = True,
    delayed: bool = True,
) -> chain:
    """Sophia: the average gradient over the curvature, clipped per entry, with weight decay.

    Its update needs `obj_fn`, the loss of the batch as a function of the parameters alone:
    `update(grads, state, params, obj_fn=lambda p: loss(p, batch))`. With `debias=False` and
    `delayed=False` it is the paper's Algorithm 3.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `scale_by_sophia` and `add_decayed_weights` for the other arguments.

    Reference: Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
    Pre-training, 2023, Algorithm 3.
    """
    direction = with_arguments(scale_by_sophia, locals())
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

"""Optimizers that look at how the gradient has changed since the last step."""

import warnings
from typing import Any

from gradxform.errors import shown
from gradxform.optimizers.optimizer import (
    decayed_descent,
    optimizer,
    with_arguments,
    with_weight_decay,
)
from gradxform.schedules.product import product_schedule
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.gradient_change import (
    scale_by_adan,
    scale_by_diffgrad,
    scale_by_optimistic_gradient,
    scale_by_rprop,
)
from gradxform.transforms.scaling import add_decayed_weights, scale, scale_by_learning_rate
from gradxform.types import DType, NonNegativeOrSchedule, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> chain:
    """Optimistic gradient descent: each gradient plus its change since the last.

    See `scale_by_optimistic_gradient` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_optimistic_gradient(alpha, beta)
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    nesterov: bool = True,
) -> chain:
    """Optimistic Adam: each step of Adam plus its change since the last.

    Args:
      alpha: the weight of Adam's step, at least 0.
      nesterov: whether Adam looks one step ahead, which the paper's does not.

    See `scale_by_adam`, `scale_by_optimistic_gradient` and `scale_by_learning_rate` for the other
    arguments.

    Reference: Daskalakis et al., Training GANs with Optimism, 2018, Algorithm 1.
    """
    steps = with_arguments(scale_by_adam, locals()), scale_by_optimistic_gradient(alpha, beta)
    return chain(*steps, scale_by_learning_rate(learning_rate))


@optimizer
def optimistic_adam(
    learning_rate: ScalarOrSchedule,
    optimism: float | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    *,
    nesterov: bool = True,
) -> chain:
    """Optimistic Adam: each step plus its change since the last. Use `optimistic_adam_v2`.

    Deprecated, as in Optax, with a warning: `optimistic_adam_v2` does the same and has clearer
    arguments.

    Args:
      learning_rate: at least 0; without `optimism` also a schedule.
      optimism: the weight of the change, not multiplied by the learning rate, finite. Defaults to
        the learning rate, as in the paper.

    See `optimistic_adam_v2` for the other arguments.
    """
    message = "`optimistic_adam` is deprecated; use `optimistic_adam_v2` instead."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    adam = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    if optimism is None:
        return chain(adam, scale_by_optimistic_gradient(), scale_by_learning_rate(learning_rate))
    if callable(learning_rate):
        raise TypeError(
            f"optimistic_adam: learning_rate must be a number if optimism is set, got "
            f"{shown(learning_rate)}. For a schedule, omit optimism or use optimistic_adam_v2."
        )
    weight: Any = learning_rate  # a number, because it is not callable
    change = scale_by_optimistic_gradient(weight, optimism)
    return chain(adam, change, scale_by_learning_rate(1.0))


@optimizer
def rprop(
    learning_rate: float,
    eta_minus: float = 0.5,
    eta_plus: float = 1.2,
    min_step_size: float = 1e-6,
    max_step_size: float = 50.0,
    *,
    delayed: bool = True,
) -> chain:
    """Rprop: steps against the gradient's sign that grow while it stays, for full batches.

    Args:
      delayed: whether each step is that of the previous gradient, as in Optax but not in the paper.

    See `scale_by_rprop` for the other arguments.
    """
    return chain(with_arguments(scale_by_rprop, locals()), scale(-1.0))


@optimizer
def adan(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.98,
    b2: float = 0.92,
    b3: float = 0.99,
    eps: float = 1e-8,
    eps_root: float = 1e-8,
    weight_decay: NonNegativeOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
    *,
    change_weight: float | None = None,
    proximal_decay: bool = False,
) -> chain:
    """Adan: Adam with an average of the gradient's change beside that of the gradient.

    With u the update of `scale_by_adan`, lr the learning rate and wd the weight decay:

        p <- (1 - lr wd) p - lr u
        p <- (p - lr u) / (1 + lr wd)        (with proximal_decay)

    The first is Optax's form, the second that of the paper and its code. `change_weight=b2` and
    `proximal_decay=True` are the paper's algorithm.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.
      change_weight: the weight of the change, at least 0. Defaults to 1 - b2, as in Optax; the
        paper has b2.
      proximal_decay: whether to divide by 1 + lr wd after the step. Keyword-only.

    See `scale_by_adan` and `add_decayed_weights` for the other arguments.
    """
    direction = scale_by_adan(b1, b2, b3, eps, eps_root, change_weight=change_weight)
    if not proximal_decay:
        return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)
    rate = scale_by_learning_rate(learning_rate)
    lr: Any = learning_rate  # live numbers will do, too
    wd: Any = weight_decay
    decay = product_schedule(lr, wd) if callable(lr) or callable(wd) else lr * wd
    return chain(
        direction,
        rate,
        add_decayed_weights(decay, weight_decay_mask, flip_sign=True, proximal=True),
    )


@optimizer
def diffgrad(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    *,
    amsgrad: bool = False,
    correct_after: bool = False,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """DiffGrad: Adam with shorter steps where the gradient does not change.

    See `scale_by_diffgrad` and `scale_by_learning_rate` for the arguments.
    """
    direction = with_arguments(scale_by_diffgrad, locals())
    return decayed_descent("diffgrad", direction, learning_rate, weight_decay, weight_decay_mask)

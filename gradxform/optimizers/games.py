"""Optimistic optimizers, for two players whose losses depend on each other."""

import warnings
from typing import Any

from gradxform.errors import shown
from gradxform.optimizers.base import optimizer
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.differences import scale_by_optimistic_gradient
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> chain:
    """Gradient descent that adds to every gradient what it has changed since the last.

    Args:
      learning_rate: at least 0, or a schedule.
      alpha: the weight of the gradient, at least 0.
      beta: the weight of its change, finite.

    Reference: Mokhtari et al., A Unified Analysis of Extra-gradient and Optimistic Gradient Methods
    for Saddle Point Problems: Proximal Point Approach, 2020, generalized OGDA.
    """
    return chain(
        scale_by_optimistic_gradient(alpha, beta),
        scale_by_learning_rate(learning_rate),
    )


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
    """Adam that adds to every step what it has changed since the last; see `optimistic_adam_v2`.

    Deprecated, as in Optax, and says so in a warning: `optimistic_adam_v2` is the same with
    clearer arguments.

    Args:
      learning_rate: at least 0; without `optimism` also a schedule.
      optimism: the weight of the change, not multiplied by the learning rate, finite; None for the
        learning rate, as in the paper.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of the first moment; by default the parameter's, float32 for 16-bit ones.
      nesterov: whether Adam looks one step ahead, which the paper's does not.

    Reference: Daskalakis et al., Training GANs with Optimism, 2018, Algorithm 1.
    """
    said = "`optimistic_adam` is deprecated; use `optimistic_adam_v2` instead."
    warnings.warn(said, DeprecationWarning, stacklevel=2)
    adam = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    if optimism is None:
        return chain(adam, scale_by_optimistic_gradient(), scale_by_learning_rate(learning_rate))
    if callable(learning_rate):
        raise TypeError(
            f"optimistic_adam: learning_rate must be a number beside an optimism, got "
            f"{shown(learning_rate)}. For a schedule leave optimism out, or use optimistic_adam_v2."
        )
    weight: Any = learning_rate  # a number, that is
    return chain(
        adam,
        scale_by_optimistic_gradient(weight, optimism),
        scale_by_learning_rate(1.0),
    )


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
    """Adam that adds to every step what it has changed since the last.

    Args:
      learning_rate: at least 0, or a schedule.
      alpha: the weight of Adam's step, at least 0.
      beta: the weight of its change, finite.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of the first moment; by default the parameter's, float32 for 16-bit ones.
      nesterov: whether Adam looks one step ahead, which the paper's does not.

    Reference: Daskalakis et al., Training GANs with Optimism, 2018, Algorithm 1.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_optimistic_gradient(alpha, beta),
        scale_by_learning_rate(learning_rate),
    )

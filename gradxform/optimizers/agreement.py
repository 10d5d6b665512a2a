"""Optimizers that compare the signs of a gradient and its average."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.agreement import (
    scale_by_add_sign,
    scale_by_grad_variance,
    scale_by_grams,
    scale_by_power_sign,
    scale_by_sign_agreement,
)
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule, Schedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def add_sign(
    learning_rate: ScalarOrSchedule,
    alpha: float = 1.0,
    b1: float = 0.9,
    sign_decay: Schedule | None = None,
) -> chain:
    """AddSign: steps that double where gradient and average agree in sign, and else vanish.

    Args:
      learning_rate: at least 0, or a schedule; TensorFlow's default is 0.1.

    See `scale_by_add_sign` for the other arguments.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.4.
    """
    return chain(scale_by_add_sign(alpha, b1, sign_decay), scale_by_learning_rate(learning_rate))


@optimizer
def power_sign(
    learning_rate: ScalarOrSchedule,
    base: float = 2.718281828459045,
    b1: float = 0.9,
    sign_decay: Schedule | None = None,
) -> chain:
    """PowerSign: steps multiplied by a base where gradient and average agree, else divided by it.

    Args:
      learning_rate: at least 0, or a schedule; TensorFlow's default is 0.1.

    See `scale_by_power_sign` for the other arguments.

    Reference: Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017, section 4.4.
    """
    return chain(scale_by_power_sign(base, b1, sign_decay), scale_by_learning_rate(learning_rate))


@optimizer
def neural_optimizer1(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    decrease_factor: float = 0.1,
) -> chain:
    """NeuralOptimizer1: gradient descent, slower where gradient and average differ in sign.

    See `scale_by_sign_agreement` and `scale_by_learning_rate` for the arguments.

    Reference: RETURNN, NeuralOptimizer1; after Bello et al., Neural Optimizer Search with
    Reinforcement Learning, 2017.
    """
    return chain(
        scale_by_sign_agreement(b1, decrease_factor), scale_by_learning_rate(learning_rate)
    )


@optimizer
def grad_variance_scaled(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> chain:
    """GradVarianceScaled: descent, slower where the gradient is unusually far from its average.

    Args:
      learning_rate: at least 0, or a schedule; the first steps are about 1 - b2 of it.

    See `scale_by_grad_variance` for the other arguments.

    Reference: RETURNN, GradVarianceScaled.
    """
    return chain(scale_by_grad_variance(b1, b2, eps), scale_by_learning_rate(learning_rate))


@optimizer
def grams(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Grams: Adam's steps in the direction of the gradient, with decoupled weight decay.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `scale_by_grams` and `add_decayed_weights` for the other arguments.

    Reference: Cao et al., Grams: Gradient Descent with Adaptive Momentum Scaling, 2024,
    Algorithm 1.
    """
    return with_weight_decay(
        scale_by_grams(b1, b2, eps, eps_root, mu_dtype),
        learning_rate,
        weight_decay,
        weight_decay_mask,
    )

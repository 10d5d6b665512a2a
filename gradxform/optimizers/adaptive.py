"""Adagrad, RMSProp and their kin."""

from gradxform.optimizers.optimizer import decayed_descent, optimizer, trace_or_identity
from gradxform.transforms.adaptive import (
    scale_by_adadelta,
    scale_by_kate,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
)
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, StaticMask, UnitInterval
from gradxform.wrappers.compose import chain


@optimizer
def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: UnitInterval | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> chain:
    """RMSProp: the gradient over the root of its mean square, then momentum.

    The learning rate is applied before the momentum: a schedule scales what is added to the
    momentum's buffer, not what is already in it.

    Args:
      centered: whether to divide by the standard deviation instead.
      momentum: the decay of the momentum, in [0, 1]. Defaults to no momentum.
      nesterov: whether the momentum looks one step ahead.

    See `scale_by_rms` and `scale_by_learning_rate` for the other arguments.

    Reference: Hinton, Neural Networks for Machine Learning, lecture 6e, 2012; Graves, Generating
    Sequences With Recurrent Neural Networks, 2013, equations (38-45).
    """
    scale_by = scale_by_stddev if centered else scale_by_rms
    return chain(
        scale_by(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        trace_or_identity("rmsprop", momentum, nesterov),
    )


@optimizer
def adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    eps: float = 1e-7,
    *,
    eps_in_sqrt: bool = True,
) -> chain:
    """Adagrad: the gradient over the root of the sum of its squares.

    Args:
      eps_in_sqrt: whether eps is added under the root; Keras adds it outside.

    See `scale_by_rss` and `scale_by_learning_rate` for the other arguments.
    """
    direction = scale_by_rss(initial_accumulator_value, eps, eps_in_sqrt=eps_in_sqrt)
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def reg_adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    eps: float = 0.0,
) -> chain:
    """RegAdagrad: Adagrad with steps that leave its sum alone, for a regularizer's gradients.

    `tx.update(grads, state, params, update_slots=False)` divides by the root of the sum without
    adding to it; any other update is Adagrad's. Apply the gradient of the loss in one update, and
    that of the regularizer in a second.

    See `adagrad` for the arguments.

    Reference: TensorFlow, tf.contrib.opt.RegAdagradOptimizer; Duchi et al., Adaptive Subgradient
    Methods for Online Learning and Stochastic Optimization, 2011.
    """
    return adagrad(learning_rate, initial_accumulator_value, eps)


@optimizer
def sparse_adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    eps: float = 1e-7,
) -> chain:
    """Adagrad for tables: a row-sparse gradient gives exactly the steps of the dense one.

    `adagrad` under another name: where the gradient is 0, neither the sum nor the parameter
    changes, so that leaving rows out changes only the cost.

    See `adagrad` for the arguments.
    """
    return adagrad(learning_rate, initial_accumulator_value, eps)


@optimizer
def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Adadelta: steps of the size of earlier steps, whatever the gradient's unit.

    Args:
      learning_rate: at least 0, or a schedule. Defaults to 1: the paper does not have one.
      weight_decay: at least 0, or a schedule; added to the gradient.

    See `scale_by_adadelta` for the other arguments.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(1.0 if learning_rate is None else learning_rate),
    )


@optimizer
def kate(
    learning_rate: ScalarOrSchedule,
    delta: float = 0.0,
    eps: float = 1e-8,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """KATE: Adagrad without its root, so that the scale of data does not matter.

    See `scale_by_kate` and `scale_by_learning_rate` for the arguments.
    """
    return decayed_descent(
        "kate", scale_by_kate(delta, eps), learning_rate, weight_decay, weight_decay_mask
    )

"""Optimizers that use only the signs of the gradient or of an average of it."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.momentum import ema
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.transforms.sign import scale_by_focus, scale_by_lion, scale_by_sign
from gradxform.types import Decay, DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def sign_sgd(learning_rate: ScalarOrSchedule) -> chain:
    """signSGD: steps of one size in every entry, against the sign of the gradient.

    Args:
      learning_rate: the size of the steps, at least 0, or a schedule.

    Reference: Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018,
    Algorithm 1.
    """
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate))


@optimizer
def signum(
    learning_rate: ScalarOrSchedule,
    beta: Decay = 0.9,
    accumulator_dtype: DType = None,
) -> chain:
    """Signum: steps against the sign of a moving average of the gradient.

    Args:
      beta: the decay of the average, in [0, 1).

    See `ema` and `scale_by_learning_rate` for the other arguments.

    Reference: Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018,
    Algorithm 2.
    """
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def lion(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 1e-3,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Lion: the sign of an interpolated momentum, with decoupled weight decay.

    Args:
      learning_rate: at least 0, or a schedule; about a tenth of Adam's.
      weight_decay: at least 0, or a schedule; about ten times AdamW's.

    See `scale_by_lion` and `add_decayed_weights` for the other arguments.
    """
    return with_weight_decay(
        scale_by_lion(b1, b2, mu_dtype), learning_rate, weight_decay, weight_decay_mask
    )


@optimizer
def tiger(
    learning_rate: ScalarOrSchedule,
    beta: Decay = 0.965,
    weight_decay: ScalarOrSchedule = 0.01,
    weight_decay_mask: StaticMask | None = None,
    accumulator_dtype: DType = None,
) -> chain:
    """Tiger: steps against the sign of a moving average, with decoupled weight decay.

    `signum` with a weight decay: Lion whose two decays are the same. The author makes the learning
    rate of a matrix proportional to its root mean square, as `scale_by_param_block_rms` does.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.

    See `signum` and `add_decayed_weights` for the other arguments.

    Reference: Su, Tiger: A Tight-fisted Optimizer, 2023, https://github.com/bojone/tiger.
    """
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def focus(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    gamma: float = 0.1,
    mu_dtype: DType = None,
    *,
    weight_decay: float = 0.0,
) -> chain:
    """FOCUS: steps against the sign of a momentum, and towards an average of the parameters.

    See `scale_by_focus` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_focus(b1, b2, gamma, mu_dtype, weight_decay=weight_decay)
    return chain(direction, scale_by_learning_rate(learning_rate))

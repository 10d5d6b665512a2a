"""Optimizers whose state is smaller than the parameters."""

from gradxform.base import Transform
from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adalite import scale_by_adalite
from gradxform.transforms.came import scale_by_confidence
from gradxform.transforms.clipping import clip_by_block_rms
from gradxform.transforms.factored import constant_decay_rate, scale_by_factored_rms, scale_by_sm3
from gradxform.transforms.layerwise import limit_norm_growth, scale_by_param_block_rms
from gradxform.transforms.momentum import ema
from gradxform.transforms.racs import scale_by_rows_and_columns
from gradxform.transforms.scaling import add_decayed_weights, scale, scale_by_learning_rate
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticMask
from gradxform.wrappers.compose import chain

__all__ = [
    "adafactor",
    "adalite",
    "came",
    "racs",
    "sm3",
]


@optimizer
def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: Size = 128,
    decay_rate: float = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    momentum: Decay | None = None,
    dtype_momentum: DType = None,
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: float = 1e-30,
    factored: bool = True,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Adafactor: the gradient over a factored root mean square, clipped, relative to parameters.

    Args:
      learning_rate: at least 0, or a schedule. Defaults to 1. With `multiply_by_parameter_scale` it
        is relative to the parameters, and 1e-2 is much.
      min_dim_size_to_factor: how long a matrix's shorter side must be to be factored, at least 0.
      decay_rate: the second moment's decay is 1 - t^-decay_rate at step t; at least 0.
      decay_offset: the step at which fine-tuning began, if it continues to count; at least 0.
      multiply_by_parameter_scale: whether steps are in proportion to the size of each array.
      clipping_threshold: the largest root mean square of a step before the learning rate, greater
        than 0. None: no clipping.
      momentum: the decay of an average of the steps, in [0, 1). Defaults to no average.
      dtype_momentum: the dtype of that average.
      weight_decay_rate: at least 0, or a schedule, not multiplied by the learning rate. Defaults to
        no decay.
      eps: added to every square, at least 0.
      weight_decay_mask: which parameters decay, such as `ndim_at_least(2)`. Defaults to all.

    See `scale_by_factored_rms` for the other arguments.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, Algorithms 4 to 6.
    """
    parts: list[Transform] = [
        scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)
    ]
    if clipping_threshold is not None:
        parts.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        parts.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        parts.append(scale_by_param_block_rms())
    if momentum is not None:
        parts.append(ema(momentum, False, dtype_momentum))
    if weight_decay_rate is not None:
        parts.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*parts, scale(-1.0))


@optimizer
def adalite(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps2: float = 1e-10,
    tau: float = 1.0,
    g_norm_min: float = 1e-10,
    ratio_min: float = 1e-4,
    weight_decay: ScalarOrSchedule = 0.01,
    mask: StaticMask | None = None,
) -> chain:
    """Adalite: Adam with moments of rank 1, of gradients as large as their parameters.

    See `scale_by_adalite`, `add_decayed_weights` and `scale_by_learning_rate` for the arguments.

    Reference: pytorch_optimizer, Adalite; a paper is not known.
    """
    direction = scale_by_adalite(b1, b2, eps, eps2, tau, g_norm_min, ratio_min)
    return with_weight_decay(direction, learning_rate, weight_decay, mask)


@optimizer
def came(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    b3: float = 0.9999,
    eps: float = 1e-30,
    eps2: float = 1e-16,
    clipping_threshold: float = 1.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: StaticMask | None = None,
) -> chain:
    """CAME: Adafactor's direction, averaged, and longer where it is sure of itself.

    The last two axes of an array are the rows and columns of matrices. Nothing corrects for
    averages that start at 0, as in the paper: the first steps of matrices are about
    1 / sqrt(1 - b3) times as long as later ones. Warm the learning rate up.

    Args:
      b1: the decay of the average of directions, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      b3: the decay of the squared deviations of directions from their average, in [0, 1).
      eps: added to every squared gradient, at least 0.
      eps2: added to every squared deviation, at least 0.
      clipping_threshold: the largest root mean square of a direction, greater than 0; infinite for
        no clipping.

    See `add_decayed_weights` and `scale_by_learning_rate` for the other arguments.

    Reference: Luo et al., CAME: Confidence-guided Adaptive Memory Efficient Optimization, 2023,
    Algorithm 2.
    """
    direction = chain(
        scale_by_factored_rms(True, b2, 0, 0, eps, constant_decay_rate, last_axes=True),
        clip_by_block_rms(clipping_threshold),
        scale_by_confidence(b1, b3, eps2),
    )
    return with_weight_decay(direction, learning_rate, weight_decay, mask)


@optimizer
def racs(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.9,
    alpha: float = 0.05,
    gamma: float = 1.01,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: StaticMask | None = None,
    *,
    iterations: Size = 5,
) -> chain:
    """RACS: gradient descent scaled by rows and columns, without momentum.

    Args:
      alpha: multiplies steps before the decay is added, finite.
      gamma: the largest growth of the norm of an array's step, at least 1; infinite for any.
      eps: added under the roots and to norms, at least 0.

    See `scale_by_rows_and_columns`, `add_decayed_weights` and `scale_by_learning_rate` for the
    other arguments.

    Reference: Gong et al., Towards Efficient Optimizer Design for LLM via Structured Fisher
    Approximation with a Low-Rank Extension, 2025, RACS.
    """
    direction = chain(
        scale_by_rows_and_columns(beta, eps, iterations),
        limit_norm_growth(gamma, eps),
        scale(alpha),
    )
    return with_weight_decay(direction, learning_rate, weight_decay, mask)


@optimizer
def sm3(
    learning_rate: ScalarOrSchedule, momentum: Decay = 0.9, *, b2: float = 1.0, eps: float = 1e-8
) -> chain:
    """SM3: Adagrad with one number per row and per column, then an average of the steps.

    As in Optax, 1e-8 is added under the root, so that gradients far below 1e-4 move little. The
    paper adds nothing: `eps=0.0`.

    Args:
      momentum: the decay of the average, in [0, 1).
      b2: the decay of the maxima, in [0, 1]; 1, without decay, in the paper. Keyword-only.
      eps: added under the root, at least 0. Keyword-only.

    See `scale_by_learning_rate` for the other arguments.

    Reference: Anil et al., Memory-Efficient Adaptive Optimization, 2019, Algorithm SM3-II.
    """
    return chain(scale_by_sm3(momentum, b2, eps), scale_by_learning_rate(learning_rate))

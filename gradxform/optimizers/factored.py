"""Optimizers whose state is smaller than the parameters."""

from gradxform.base import Transform
from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.clipping import clip_by_block_rms
from gradxform.transforms.factored import scale_by_factored_rms, scale_by_sm3
from gradxform.transforms.layerwise import scale_by_param_block_rms
from gradxform.transforms.momentum import ema
from gradxform.transforms.scaling import add_decayed_weights, scale, scale_by_learning_rate
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticMask
from gradxform.wrappers.compose import chain


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
def sm3(
    learning_rate: ScalarOrSchedule,
    momentum: Decay = 0.9,
    *,
    b2: float | None = None,
    eps: float | None = None,
) -> chain:
    """SM3: Adagrad with one number per row and per column, then an average of the steps.

    As in Optax, 1e-8 is added under the root, so that gradients far below 1e-4 move little. The
    paper adds nothing: `eps=0.0`.

    Args:
      momentum: the decay of the average, in [0, 1).
      b2: the decay of the maxima, in [0, 1]; None: 1, without decay, as in the paper.
        Keyword-only.
      eps: added under the root, at least 0; None: 1e-8. Keyword-only.

    See `scale_by_learning_rate` for the other arguments.

    Reference: Anil et al., Memory-Efficient Adaptive Optimization, 2019, Algorithm SM3-II.
    """
    # With numbers as defaults, `inject_hyperparams` would keep two that Optax does not.
    numbers = {"b2": b2, "eps": eps}
    rule = scale_by_sm3(momentum, **{name: x for name, x in numbers.items() if x is not None})
    return chain(rule, scale_by_learning_rate(learning_rate))

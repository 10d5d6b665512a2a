"""The famous names: each is one `return chain(...)`."""

from collections.abc import Callable
from typing import Any, TypeVar

from gradxform.base import Transform
from gradxform.errors import shown
from gradxform.functions import identity
from gradxform.registry import register
from gradxform.transforms.adaptive import (
    scale_by_adam,
    scale_by_amsgrad,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
)
from gradxform.transforms.momentum import ema, trace
from gradxform.transforms.normalizing import scale_by_trust_ratio
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.transforms.sign import scale_by_lion, scale_by_sign
from gradxform.types import DType, ScalarOrSchedule, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import masked

F = TypeVar("F", bound=Callable[..., Transform])

# Every optimizer by name: what command lines and configs can ask for.
OPTIMIZERS: dict[str, Callable[..., Transform]] = {}


def optimizer(function: F) -> F:
    """Register a function that returns a transform under its own name."""
    register(function.__name__, function)
    OPTIMIZERS[function.__name__] = function
    return function


def _momentum(
    name: str, momentum: Any, nesterov: bool, accumulator_dtype: Any = None
) -> trace | identity:
    """Return `trace`; without momentum nothing, refusing the arguments that only it reads."""
    made = trace(0.0 if momentum is None else momentum, nesterov, accumulator_dtype)
    if momentum is not None:
        return made
    for field, given in (("nesterov", nesterov), ("accumulator_dtype", accumulator_dtype)):
        if given:
            raise ValueError(f"{name}: {field}={given!r} has no effect without a momentum.")
    return identity()


@optimizer
def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: DType = None,
) -> chain:
    """Stochastic gradient descent, with heavy-ball or Nesterov momentum.

    Update rule, from m = 0: m <- g + momentum m; u = -lr m (nesterov: u = -lr (g + momentum m)).

    Args:
      learning_rate: at least 0, or a schedule.
      momentum: in [0, 1]; None for none.
      nesterov: whether to look one step ahead.
      accumulator_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.

    Reference: Sutskever et al., On the importance of initialization and momentum in deep learning,
    2013, equations (1-4).
    """
    return chain(
        _momentum("sgd", momentum, nesterov, accumulator_dtype),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    *,
    nesterov: bool = False,
) -> chain:
    """Adam: `scale_by_adam`, then the learning rate.

    Args:
      learning_rate: at least 0, or a schedule.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of the first moment; by default the parameter's, float32 for 16-bit ones.
      nesterov: whether to look one step ahead.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, Algorithm 1.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: StaticTree = None,
    *,
    nesterov: bool = False,
) -> chain:
    """Adam with decoupled weight decay: u = -lr (adam + weight_decay p).

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of the first moment; by default the parameter's, float32 for 16-bit ones.
      weight_decay: at least 0, or a schedule.
      mask: which parameters decay, such as `ndim_at_least(2)`; None: all.
      nesterov: whether to look one step ahead.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 2.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def nadam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    *,
    nesterov: bool = True,
) -> chain:
    """Adam with Nesterov momentum; arguments as `adam`.

    Reference: Dozat, Incorporating Nesterov Momentum into Adam, 2016, with b1 constant.
    """
    return adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)


@optimizer
def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: StaticTree = None,
    *,
    nesterov: bool = True,
) -> chain:
    """Adam with Nesterov momentum and decoupled weight decay; arguments as `adamw`.

    Reference: Dozat, Incorporating Nesterov Momentum into Adam, 2016; Loshchilov and Hutter,
    Decoupled Weight Decay Regularization, 2019.
    """
    return adamw(
        learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=nesterov
    )


@optimizer
def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> chain:
    """Adam divided by the root of the largest second moment so far.

    Args:
      learning_rate: at least 0, or a schedule.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      mu_dtype: the dtype of the first moment; by default the parameter's, float32 for 16-bit ones.
      bias_correction_mu: whether to debias the first moment; the paper does not.
      bias_correction_nu: whether to debias the second before the maximum; the paper does not.

    Reference: Reddi et al., On the Convergence of Adam and Beyond, 2018, Algorithm 2.
    """
    return chain(
        scale_by_amsgrad(b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> chain:
    """The gradient over the root of its mean square, then momentum.

    The learning rate is inside the momentum's buffer: a schedule scales what is added to it, not
    what is in it.

    Args:
      learning_rate: at least 0, or a schedule.
      decay: the decay of the mean square, in [0, 1).
      eps: at least 0.
      initial_scale: the first mean square, at least 0.
      eps_in_sqrt: whether eps is added under the root.
      centered: whether to divide by the standard deviation instead.
      momentum: in [0, 1]; None for none.
      nesterov: whether the momentum looks one step ahead.
      bias_correction: whether to correct the averages for having started at 0.

    Reference: Hinton, Neural Networks for Machine Learning, lecture 6e, 2012; Graves, Generating
    Sequences With Recurrent Neural Networks, 2013, equations (38-45).
    """
    if not isinstance(centered, bool):
        raise TypeError(f"rmsprop: centered must be True or False, got {shown(centered)}.")
    scale_by = scale_by_stddev if centered else scale_by_rms
    return chain(
        scale_by(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        _momentum("rmsprop", momentum, nesterov),
    )


@optimizer
def adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    eps: float = 1e-7,
) -> chain:
    """The gradient over the root of the sum of its squares.

    Args:
      learning_rate: at least 0, or a schedule.
      initial_accumulator_value: the sum's first value, at least 0.
      eps: added under the root, at least 0.

    Reference: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, 2011, Figure 1, with a diagonal matrix.
    """
    return chain(
        scale_by_rss(initial_accumulator_value, eps),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def lion(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: StaticTree = None,
) -> chain:
    """The sign of an interpolated momentum, with decoupled weight decay.

    Args:
      learning_rate: at least 0, or a schedule; some ten times below Adam's.
      b1: how much of the emitted direction is old momentum, in [0, 1).
      b2: the decay of the momentum itself, in [0, 1).
      mu_dtype: the dtype of the momentum; by default the parameter's, float32 for 16-bit ones.
      weight_decay: at least 0, or a schedule; some ten times above AdamW's.
      mask: which parameters decay; None: all.

    Reference: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, Algorithm 2.
    """
    return chain(
        scale_by_lion(b1, b2, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def lamb(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: StaticTree = None,
) -> chain:
    """Adam whose update of each array is scaled to the array's norm, for large batches.

    Args:
      learning_rate: at least 0, or a schedule.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0.
      eps_root: added under the root, at least 0.
      weight_decay: at least 0, or a schedule.
      mask: which parameters decay; None: all.

    Reference: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, Algorithm 2.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticTree = True,
    trust_coefficient: float = 0.001,
    eps: float = 0.0,
    trust_ratio_mask: StaticTree = True,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> chain:
    """SGD with momentum whose step for each array is in proportion to the array's norm.

    The ratio is trust_coefficient |p| / (|g + weight_decay p| + eps), as Optax has it.

    Args:
      learning_rate: at least 0, or a schedule; it is inside the momentum's buffer.
      weight_decay: at least 0, or a schedule.
      weight_decay_mask: which parameters decay.
      trust_coefficient: the ratio of the sizes of step and array, finite.
      eps: added to the gradient's norm, at least 0.
      trust_ratio_mask: which parameters' steps are scaled.
      momentum: in [0, 1].
      nesterov: whether to look one step ahead.

    Reference: You et al., Large Batch Training of Convolutional Networks, 2017, Algorithm 1.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(
            scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), trust_ratio_mask
        ),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )


@optimizer
def signum(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.9,
    accumulator_dtype: DType = None,
) -> chain:
    """The sign of a moving average of the gradient.

    Args:
      learning_rate: at least 0, or a schedule.
      beta: the decay of the average, in [0, 1).
      accumulator_dtype: the dtype of the average; by default the parameter's, float32 for 16-bit.

    Reference: Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018,
    Algorithm 2.
    """
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        scale_by_learning_rate(learning_rate),
    )

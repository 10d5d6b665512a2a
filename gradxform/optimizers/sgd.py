"""Gradient descent, with momentum, and by the sign of the gradient."""

from gradxform.errors import shown
from gradxform.optimizers.base import decayed, momentum_or_none, optimizer
from gradxform.transforms.momentum import ema, trace
from gradxform.transforms.normalizing import normalize_by_block_norm, normalize_by_update_norm
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.transforms.sign import scale_by_lion, scale_by_sign
from gradxform.types import DType, ScalarOrSchedule, StaticTree
from gradxform.wrappers.compose import chain


@optimizer
def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: DType = None,
    *,
    learning_rate_inside: bool = False,
) -> chain:
    """Stochastic gradient descent, with heavy-ball or Nesterov momentum.

    Update rule, from m = 0: m <- g + momentum m; u = -lr m (nesterov: u = -lr (g + momentum m)).

    With learning_rate_inside, as in Keras and in the paper: m <- -lr g + momentum m; u = m
    (nesterov: u = -lr g + momentum m). It makes a difference when the learning rate changes: what
    is in m already keeps the size that it had.

    Args:
      learning_rate: at least 0, or a schedule.
      momentum: in [0, 1]; None for none.
      nesterov: whether to look one step ahead.
      accumulator_dtype: the dtype of m; by default the parameter's, float32 for 16-bit ones.
      learning_rate_inside: whether m holds steps instead of gradients. Keyword-only.

    Reference: Sutskever et al., On the importance of initialization and momentum in deep learning,
    2013, equations (1-4).
    """
    made = momentum_or_none("sgd", momentum, nesterov, accumulator_dtype)
    rate = scale_by_learning_rate(learning_rate)
    if not learning_rate_inside:
        return chain(made, rate)
    if momentum is None:
        raise ValueError("sgd: learning_rate_inside=True has no effect without a momentum.")
    return chain(rate, made)


@optimizer
def sgdw(
    learning_rate: ScalarOrSchedule,
    momentum: float = 0.9,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: StaticTree = None,
    nesterov: bool = False,
    *,
    decay_by_learning_rate: bool = True,
) -> chain:
    """Stochastic gradient descent with momentum and decoupled weight decay.

    Update rule, from m = 0: m <- g + momentum m; u = -lr (m + weight_decay p). The decay is not in
    the momentum. Without decay_by_learning_rate: u = -lr m - weight_decay p.

    Args:
      learning_rate: at least 0, or a schedule.
      momentum: in [0, 1].
      weight_decay: at least 0, or a schedule.
      mask: which parameters decay, such as `ndim_at_least(2)`; None: all.
      nesterov: whether to look one step ahead.
      decay_by_learning_rate: whether the learning rate multiplies the decay too. Keyword-only.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 1; the
    form without the learning rate is its equation (1), and TensorFlow's MomentumW.
    """
    return decayed(
        chain(trace(momentum, nesterov)), learning_rate, weight_decay, mask, decay_by_learning_rate
    )


@optimizer
def normalized_sgd(
    learning_rate: ScalarOrSchedule,
    norm_of: str = "array",
    min_norm: float = 1e-6,
) -> chain:
    """Gradient descent by steps of a given length: u = -lr g / |g|.

    Args:
      learning_rate: the length of the step, at least 0, or a schedule.
      norm_of: "array" for the norm of each array by itself, "tree" for that of all together.
      min_norm: what the norm counts at least, greater than 0, so that a zero stays one.

    Reference: Hazan et al., Beyond Convexity: Stochastic Quasi-Convex Optimization, 2015,
    Algorithm 1.
    """
    parts = {
        "array": normalize_by_block_norm(min_norm=min_norm),
        "tree": normalize_by_update_norm(eps=min_norm),
    }
    if norm_of not in parts:
        raise ValueError(
            f"normalized_sgd: norm_of must be one of 'array', 'tree', got {shown(norm_of)}."
        )
    return chain(parts[norm_of], scale_by_learning_rate(learning_rate))


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

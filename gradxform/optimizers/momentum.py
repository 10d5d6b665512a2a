"""Gradient descent, with momentum."""

from gradxform.optimizers.optimizer import (
    decayed_descent,
    optimizer,
    trace_or_identity,
    with_weight_decay,
)
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule, StaticMask, UnitInterval
from gradxform.wrappers.compose import chain, sum_of


@optimizer
def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: UnitInterval | None = None,
    nesterov: bool = False,
    accumulator_dtype: DType = None,
    *,
    learning_rate_inside: bool = False,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """SGD: stochastic gradient descent, with optional heavy-ball or Nesterov momentum.

    Update rule, from m = 0: m <- g + momentum m; u = -lr m (nesterov: u = -lr (g + momentum m)).

    With learning_rate_inside, as in Keras and in the paper: m <- -lr g + momentum m; u = m
    (nesterov: u = -lr g + momentum m). The two differ when the learning rate changes: what m
    already holds keeps its size.

    Args:
      momentum: the decay of the momentum, in [0, 1]. Defaults to no momentum.
      learning_rate_inside: whether m holds steps instead of gradients; not with a weight_decay.
      weight_decay: at least 0, or a schedule; the learning rate multiplies it, and it is not in m,
        as in `sgdw`. PyTorch's goes through m: `chain(add_decayed_weights(d), sgd(...))`. Defaults
        to no decay.

    See `trace` and `scale_by_learning_rate` for the other arguments.

    Reference: Sutskever et al., On the importance of initialization and momentum in deep learning,
    2013, equations (1-4).
    """
    direction = trace_or_identity("sgd", momentum, nesterov, accumulator_dtype)
    if not learning_rate_inside:
        return decayed_descent("sgd", direction, learning_rate, weight_decay, weight_decay_mask)
    if momentum is None:
        raise ValueError("sgd: learning_rate_inside=True does nothing without a momentum.")
    if weight_decay is not None or weight_decay_mask is not None:
        raise ValueError(
            "sgd: learning_rate_inside=True does not take weight_decay or weight_decay_mask; use "
            "decoupled_weight_decay(sgd(...), ...)."
        )
    return chain(scale_by_learning_rate(learning_rate), direction)


@optimizer
def sgdw(
    learning_rate: ScalarOrSchedule,
    momentum: UnitInterval = 0.9,
    weight_decay: ScalarOrSchedule | None = 1e-4,
    weight_decay_mask: StaticMask | None = None,
    nesterov: bool = False,
    *,
    decay_by_learning_rate: bool = True,
) -> chain:
    """SGDW: SGD with momentum and decoupled weight decay.

    Update rule, from m = 0: m <- g + momentum m; u = -lr (m + weight_decay p). The decay is not in
    the momentum. Without decay_by_learning_rate: u = -lr m - weight_decay p.

    Args:
      momentum: the decay of the momentum, in [0, 1].
      decay_by_learning_rate: whether the learning rate multiplies the decay too.

    See `trace`, `add_decayed_weights` and `scale_by_learning_rate` for the other arguments.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 1; the
    form without the learning rate is its equation (1), and TensorFlow's MomentumW.
    """
    return with_weight_decay(
        trace(momentum, nesterov),
        learning_rate,
        weight_decay,
        weight_decay_mask,
        decay_by_learning_rate,
    )


@optimizer
def aggmo(
    learning_rate: ScalarOrSchedule,
    betas: tuple[float, ...] = (0.0, 0.9, 0.99),
    accumulator_dtype: DType = None,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AggMo: the mean of several momenta, of which the small ones damp the large.

    Update rule, from m_i = 0, for each of the k betas b_i: m_i <- g + b_i m_i; u = -lr/k sum m_i.

    Args:
      betas: the decays of the momenta, each in [0, 1]; each takes a slot. The paper's K decays are
        1 - 0.1^i, i = 0, ..., K - 1.

    See `trace` and `scale_by_learning_rate` for the other arguments.

    Reference: Lucas et al., Aggregated Momentum: Stability Through Passive Damping, 2019, equation
    (2).
    """
    momenta = sum_of(*(trace(b, accumulator_dtype=accumulator_dtype) for b in betas))
    mean = chain(momenta, scale(1 / len(betas)))
    return decayed_descent("aggmo", mean, learning_rate, weight_decay, weight_decay_mask)

"""SPlus."""

from gradxform.optimizers.matrices import with_others
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.momentum import ema
from gradxform.transforms.scaling import add_decayed_weights, scale, scale_by_learning_rate
from gradxform.transforms.sign import scale_by_sign
from gradxform.transforms.splus import scale_by_mean_side, scale_by_splus
from gradxform.types import DType, FixedDecay, ScalarOrSchedule, Size, StaticMask, StaticTree
from gradxform.wrappers.average import moving_average
from gradxform.wrappers.compose import chain


@optimizer
def splus(
    learning_rate: ScalarOrSchedule = 0.1,
    b1: float = 0.9,
    b2: FixedDecay = 0.999,
    weight_decay: ScalarOrSchedule = 0.01,
    weight_decay_mask: StaticMask | None = None,
    precondition_frequency: Size = 100,
    max_precond_dim: Size = 10000,
    mu_dtype: DType = None,
    *,
    average_decay: float = 0.999,
    other_scale: float = 1e-3,
    weight_dimension_numbers: StaticTree = None,
    compute_dtype: DType = None,
) -> moving_average:
    """SPlus: signs in the eigenbasis of Shampoo's matrices, to evaluate at averaged parameters.

    Update rule of a matrix of n rows and k columns, with u the update of `scale_by_splus`:

        p <- p - 2 / (n + k) learning_rate (u + weight_decay p)

    Other parameters have the sign of the averaged gradient for u, and `other_scale` in the place of
    2 / (n + k), as matrices with a side above `max_precond_dim` have. Smaller tables of embeddings
    are matrices too: to treat them as the authors do, put None in their place in
    `weight_dimension_numbers`.

    Evaluate and save `eval_params(state, params)`, the average of the parameters.

    Args:
      weight_decay: at least 0, or a schedule; the rate of a parameter multiplies it.
      weight_decay_mask: which parameters decay. Defaults to all.
      average_decay: the decay of the average of the parameters, in [0, 1).
      other_scale: the factor of the learning rate for all that is not a matrix, and for matrices
        with a side above max_precond_dim, finite.
      weight_dimension_numbers: `MuonDimensionNumbers` for all parameters, a tree of them with None
        for those that are not matrices (a prefix of the parameters will do), or a function of the
        parameters that returns one. By default, parameters of two dimensions are matrices.

    See `scale_by_splus` and `scale_by_learning_rate` for the other arguments.

    Reference: Frans et al., A Stable Whitening Optimizer for Efficient Neural Network Training,
    2025, Algorithm 1; the defaults are those of its code.
    """
    direction = with_arguments(scale_by_splus, locals())
    decay = add_decayed_weights(weight_decay, weight_decay_mask)
    rate = scale_by_learning_rate(learning_rate)
    signs = ema(b1, False, mu_dtype), scale_by_sign()
    side = scale_by_mean_side(
        weight_dimension_numbers, max_side=max_precond_dim, other_scale=other_scale
    )
    parts = {
        "splus": chain(direction, decay, side, rate),
        "sign": chain(*signs, decay, scale(other_scale), rate),
    }
    return moving_average(with_others(parts, weight_dimension_numbers), average_decay, debias=True)

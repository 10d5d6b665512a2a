"""RACS."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.norm_growth import limit_norm_growth
from gradxform.transforms.racs import scale_by_rows_and_columns
from gradxform.transforms.scaling import scale
from gradxform.types import ScalarOrSchedule, Size, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def racs(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.9,
    alpha: float = 0.05,
    gamma: float = 1.01,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
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
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

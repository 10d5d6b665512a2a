"""GaLore."""

from typing import Any

from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.adam import scale_by_adam
from gradxform.types import DType, ScalarOrSchedule, Size, StaticMask, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.low_rank.galore import scale_by_galore


@optimizer
def galore(
    learning_rate: ScalarOrSchedule,
    rank: Size = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: Any = None,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
    weight_dimension_numbers: StaticTree = None,
    *,
    mu_dtype: DType = None,
    shorter_side: bool = False,
) -> chain:
    """GaLore: Adam, or another rule, on low-rank projections of gradients, for little memory.

    The longer side of a matrix is projected, as in Optax; the paper and its code project the
    shorter one, `shorter_side=True`.

    Args:
      update_proj_gap: the number of steps for which a projection is kept, at least 1.
      scale: multiplies the updates of matrices, finite.
      base_optimizer: a transform that does not need parameters. Defaults to `scale_by_adam()`. One
        with a learning rate of its own needs a `learning_rate` of 1 here.
      mu_dtype: the dtype of Adam's first moment; not with a base_optimizer, which has its own.
        Defaults to the parameter's, at least float32.
      weight_decay: decoupled, on the whole parameters; at least 0, or a schedule.

    See `scale_by_galore`, `add_decayed_weights` and `scale_by_learning_rate` for the other
    arguments.

    Reference: Zhao et al., GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection,
    2024, Algorithm 1.
    """
    if mu_dtype is not None:
        if base_optimizer is not None:
            raise ValueError(
                "galore: mu_dtype does nothing with a base_optimizer; give it to that one."
            )
        base_optimizer = scale_by_adam(mu_dtype=mu_dtype)
    direction = with_arguments(scale_by_galore, locals())
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

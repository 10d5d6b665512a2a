"""APOLLO and APOLLO-Mini."""

from gradxform.optimizers.optimizer import optimizer, with_arguments, with_weight_decay
from gradxform.transforms.apollo import scale_by_apollo
from gradxform.types import Key, ScalarOrSchedule, Size, StaticMask, StaticTree
from gradxform.wrappers.compose import chain


@optimizer
def apollo(
    learning_rate: ScalarOrSchedule,
    rank: Size = 256,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
    weight_dimension_numbers: StaticTree = None,
    *,
    granularity: str = "channel",
    growth: float = 1.01,
    low_rank: bool = False,
    key: Key = 0,
) -> chain:
    """APOLLO: SGD whose channels are scaled as Adam scales random projections of them.

    See `scale_by_apollo`, `add_decayed_weights` and `scale_by_learning_rate` for the arguments.

    Reference: Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024, Algorithm 1.
    """
    direction = with_arguments(scale_by_apollo, locals())
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def apollo_mini(
    learning_rate: ScalarOrSchedule,
    update_proj_gap: int = 200,
    scale: float = 128**0.5,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
    weight_dimension_numbers: StaticTree = None,
    *,
    growth: float = 1.01,
    key: Key = 0,
) -> chain:
    """APOLLO-Mini: SGD whose matrices are scaled as Adam scales a projection of rank 1.

    See `apollo` for the arguments.

    Reference: Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024, APOLLO-Mini.
    """
    return apollo(rank=1, granularity="tensor", **locals())

"""DeMo: a momentum on each replica, of which only the fastest components travel."""

from gradxform.distributed.averaging.tower import tower
from gradxform.distributed.wire.axis import Axes
from gradxform.distributed.wire.compression import dct_top_k
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.transforms.sign import scale_by_sign
from gradxform.types import ScalarOrSchedule
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.compose import chain

__all__ = [
    "demo",
]


@with_checked_arguments
def demo(
    learning_rate: ScalarOrSchedule,
    axis: Axes,
    *,
    decay: float = 0.999,
    fraction: float = 1 / 128,
    block: int = 512,
    weight_decay: ScalarOrSchedule = 0.0,
) -> tower:
    """Return `tower` with signs of what `dct_top_k` sends of each replica's momentum: DeMo.

    Update rule on replica i of N, from m_i = 0, with q_i the largest cosine coefficients of m_i:

        m_i <- decay m_i + g_i
        m_i <- m_i - q_i
        u = -learning_rate (sign((1/N) sum_j q_j) + weight_decay p)

    All replicas take the same step; their momenta differ, and are never exchanged. See `dct_top_k`
    for what differs from the paper.

    Args:
      learning_rate: at least 0, or a schedule.
      axis: the name of the axis of replicas, or several.
      decay: the decay of the momentum, in [0, 1].
      fraction: how many of the coefficients travel, in (0, 1].
      block: the number of entries that are transformed together, at most 65536.
      weight_decay: at least 0, or a schedule; the learning rate multiplies it.

    Reference: Peng et al., DeMo: Decoupled Momentum Optimization, 2024, Algorithm 1; the defaults
    are those of its code, 32 of 4096 coefficients.
    """
    step = (
        scale_by_sign(),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(learning_rate),
    )
    return tower(chain(*step), axis, compress=dct_top_k(fraction, block, decay))

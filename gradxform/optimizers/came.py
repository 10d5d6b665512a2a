"""CAME."""

import math

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.came import scale_by_confidence
from gradxform.transforms.clipping import clip_by_block_rms
from gradxform.transforms.factored import constant_decay_rate, scale_by_factored_rms
from gradxform.types import Decay, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def came(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: Decay = 0.999,
    b3: float = 0.9999,
    eps: float = 1e-30,
    eps2: float = 1e-16,
    clipping_threshold: float | None = 1.0,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
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
      clipping_threshold: the largest root mean square of a direction, greater than 0; infinite, or
        None, for no clipping.

    See `add_decayed_weights` and `scale_by_learning_rate` for the other arguments.

    Reference: Luo et al., CAME: Confidence-guided Adaptive Memory Efficient Optimization, 2023,
    Algorithm 2.
    """
    direction = chain(
        scale_by_factored_rms(True, b2, 0, 0, eps, constant_decay_rate, last_axes=True),
        clip_by_block_rms(math.inf if clipping_threshold is None else clipping_threshold),
        scale_by_confidence(b1, b3, eps2),
    )
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

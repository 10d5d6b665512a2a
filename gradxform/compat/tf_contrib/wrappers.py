"""The wrappers of `tf.contrib.opt` that keep an average of the variables."""

from typing import Any

from gradxform.types import Fixed
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.average import moving_average


@with_checked_arguments
def MovingAverage(
    opt: Any,
    average_decay: float = 0.9999,
    num_updates: Fixed = None,
    sequential_update: bool = True,
) -> moving_average:
    """Keep moving averages of the variables: `moving_average`.

    num_updates is None or an integer, a constant, as in the original, or "step" in the place of the
    global step: the decay then follows the extra argument `step` of `update`, or else counts.

    Instead of `swapping_saver().save(...)`, save `swap(state, params)`, the averages under the
    variables' names and the variables in the state; swap again what you restore, to go on. To
    evaluate, `eval_params(state, params)`.

    Raises:
      ValueError: if sequential_update is false: the average would race with the update.

    Reference: `tf.contrib.opt.MovingAverageOptimizer`.
    """
    if not sequential_update:
        raise ValueError(
            "MovingAverage: sequential_update must be True, got "
            f"{sequential_update!r}; without it the original averages the variables before or "
            "after the update, as it happens."
        )
    return moving_average(opt, average_decay, num_updates)

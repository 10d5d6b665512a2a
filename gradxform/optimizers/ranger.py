"""Ranger21: many parts in one."""

import math
from typing import Any

from gradxform.errors import must_be, shown
from gradxform.optimizers.optimizer import optimizer
from gradxform.schedules.basic import linear_schedule
from gradxform.schedules.join import join_schedules
from gradxform.transforms.clipping import adaptive_grad_clip
from gradxform.transforms.layerwise import add_norm_loss
from gradxform.transforms.normalization import centralize, normalize_by_block_std
from gradxform.transforms.ranger import scale_by_ranger21
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import Decay, NonNegative, NonNegativeOrSchedule, Size
from gradxform.wrappers.compose import chain
from gradxform.wrappers.lookahead import lookahead


@optimizer
def ranger21(
    learning_rate: NonNegativeOrSchedule,
    total_steps: Size | None = None,
    b1: float = 0.9,
    b2: Decay = 0.999,
    b0: float = 0.9,
    weight_decay: float = 1e-4,
    eps: float = 1e-8,
    beta_softplus: float | None = 50.0,
    clipping: float = 0.01,
    norm_loss: float = 1e-4,
    sync_period: int = 5,
    slow_step_size: float = 0.5,
    *,
    axis: Size = -1,
    least_rate: NonNegative | None = None,
    renormalize: bool = False,
) -> lookahead:
    """Ranger21: AdaPNM of clipped and normalized gradients, with two decays, inside lookahead.

    With `total_steps`, the learning rate climbs to its value in 2 / (1 - b2) steps, or in 22% of
    all steps where that is more than 45% of them; then it stays, and falls to `least_rate` in the
    last 28%. Evaluate `eval_params(state, params)`. One decay is that of `scale_by_ranger21`, the
    other the norm loss.

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decays too.
      total_steps: the number of steps of the run, at least 4, with a number as learning rate.
        Defaults to a learning rate that stays.
      eps: added to the root and to the standard deviation of gradients, at least 0.
      clipping: the largest ratio of the norms of gradient and parameter, unit by unit, greater than
        0; infinite for no clipping.
      norm_loss: the weight of the loss that draws the norms of units to 1, at least 0.
      axis: the axis of the outputs; the last one of layers of Flax.
      least_rate: the learning rate at the end, with total_steps; at least 0. Defaults to 3e-5.

    See `scale_by_ranger21` and `lookahead` for the other arguments.
    """
    rate = learning_rate
    if total_steps is not None:
        least = 3e-5 if least_rate is None else least_rate
        rate = _rate_up_and_down(learning_rate, total_steps, b2, least)
    elif least_rate is not None:
        raise ValueError(
            f"ranger21: least_rate={shown(least_rate)} does nothing without total_steps."
        )
    fast = chain(
        adaptive_grad_clip(clipping),
        centralize(axis=axis),
        normalize_by_block_std(eps),
        scale_by_ranger21(b1, b2, b0, weight_decay, eps, beta_softplus, renormalize=renormalize),
        add_norm_loss(norm_loss),
        scale_by_learning_rate(rate),
    )
    return lookahead(fast, sync_period, slow_step_size)


def _rate_up_and_down(rate: Any, steps: int, b2: float, least: float) -> join_schedules:
    """Return a learning rate that climbs, stays and falls."""
    name = "ranger21"
    if callable(rate):
        raise TypeError(must_be(name, "learning_rate", "a number with total_steps", rate))
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(must_be(name, "total_steps", "an integer", steps))
    if steps < 4:
        raise ValueError(f"{name}: total_steps must be at least 4, got {shown(steps)}.")
    if not isinstance(b2, int | float):
        raise TypeError(must_be(name, "b2", "known before the run with total_steps", b2))
    up = math.ceil(2 / (1 - b2))
    up = up if up <= 0.45 * steps else max(int(0.22 * steps), 1)
    start = int(0.72 * steps)
    down = steps - start
    first = rate - (rate - least) / (down + 1)
    return join_schedules(
        (linear_schedule(rate / up, rate, up - 1), rate, linear_schedule(first, least, down)),
        (up - 1, start - 1),
    )

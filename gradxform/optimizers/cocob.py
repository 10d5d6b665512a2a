"""Coin betting, without a learning rate."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.cocob import scale_by_cocob
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: float = 100.0,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """COCOB: coin betting. No learning rate; every entry steps in proportion to what it has won.

    Args:
      learning_rate: multiplies the gradients before the betting, at least 0, or a schedule; a
        constant changes almost nothing.
      eps: lower bound on the largest gradient of an entry, at least 0.
      weight_decay: added to the gradients, at least 0, or a schedule.

    See `scale_by_cocob` and `add_decayed_weights` for the other arguments.

    Reference: Orabona and Tommasi, Training Deep Networks without Learning Rates Through Coin
    Betting, 2017, Algorithm 2.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_cocob(alpha, eps),
    )

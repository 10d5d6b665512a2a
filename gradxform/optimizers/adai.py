"""Adai: SGD with an inertia for each entry."""

from gradxform.optimizers.optimizer import decayed_descent, optimizer
from gradxform.transforms.adai import scale_by_adai
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def adai(
    learning_rate: ScalarOrSchedule,
    b0: float = 0.1,
    b2: float = 0.99,
    eps: float = 1e-3,
    damping: float = 1.0,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Adai: SGD with momentum that forgets faster where gradients are large.

    Args:
      weight_decay: at least 0, or a schedule; the learning rate multiplies it, as in AdaiW of the
        authors. Adai itself has `add_decayed_weights` before it. Defaults to no decay.

    See `scale_by_adai` and `scale_by_learning_rate` for the other arguments.
    """
    return decayed_descent(
        "adai", scale_by_adai(b0, b2, eps, damping), learning_rate, weight_decay, weight_decay_mask
    )

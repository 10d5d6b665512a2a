"""AdamNorm: Adam without short gradients in its momentum."""

from gradxform.optimizers.optimizer import decayed_descent, optimizer, with_arguments
from gradxform.transforms.adanorm import scale_by_adanorm
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def adanorm(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    r: float = 0.95,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    amsgrad: bool = False,
    eps_before_correction: bool = False,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AdamNorm: Adam of gradients that do not become shorter than their average norm.

    See `scale_by_adanorm` and `scale_by_learning_rate` for the arguments.
    """
    direction = with_arguments(scale_by_adanorm, locals())
    return decayed_descent("adanorm", direction, learning_rate, weight_decay, weight_decay_mask)

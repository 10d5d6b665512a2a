"""Adalite."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adalite import scale_by_adalite
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def adalite(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps2: float = 1e-10,
    tau: float = 1.0,
    g_norm_min: float = 1e-10,
    ratio_min: float = 1e-4,
    weight_decay: ScalarOrSchedule | None = 0.01,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Adalite: Adam with moments of rank 1, of gradients as large as their parameters.

    See `scale_by_adalite`, `add_decayed_weights` and `scale_by_learning_rate` for the arguments.

    Reference: pytorch_optimizer, Adalite; a paper is not known.
    """
    direction = scale_by_adalite(b1, b2, eps, eps2, tau, g_norm_min, ratio_min)
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

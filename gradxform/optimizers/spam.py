"""SPAM and Stable-SPAM: Adam that meets spikes of the gradient."""

from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.spam import adaclip, adagn, clip_by_second_moment, warm_up_after_resets
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain
from gradxform.wrappers.reset import reset_state


@optimizer
def spam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    threshold: float = 5000.0,
    start: int = 20,
    every: int = 500,
    warmup_steps: int = 150,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """SPAM: Adam without spikes of single entries, whose moments begin anew every few steps.

    All entries are trained; the paper's variant with a random part of them is not here. Clipping
    keeps a second moment of its own, beside Adam's.

    Args:
      eps: added to the root before it is corrected, at least 0.
      start: the first step at which entries are clipped, also after a reset, at least 1.
      every: the number of steps from one reset of the moments to the next, at least 1.
      warmup_steps: how many steps the learning rate climbs after a reset, at least 0.

    See `scale_by_tf_adam`, `clip_by_second_moment`, `warm_up_after_resets`, `add_decayed_weights`
    and `scale_by_learning_rate` for the other arguments.

    Reference: Huang et al., SPAM: Spike-Aware Adam with Momentum Reset for Stable LLM Training,
    2025, Algorithm 1.
    """
    direction = chain(
        reset_state(clip_by_second_moment(threshold, b2, start, every), every, counts=False),
        reset_state(scale_by_tf_adam(b1, b2, eps), every, counts=False),
        warm_up_after_resets(every, warmup_steps),
    )
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)


@optimizer
def stable_spam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    gamma1: float = 0.7,
    gamma2: float = 0.9,
    theta: float = 0.999,
    eps: float = 1e-8,
    every: int = 1000,
    weight_decay: ScalarOrSchedule | None = 0.0,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """Stable-SPAM: Adam of gradients whose entries and norms are clipped, begun anew now and then.

    Args:
      eps: added to the roots, at least 0.
      every: the number of steps from one reset of Adam to the next, at least 1.

    See `scale_by_adam`, `adaclip`, `adagn`, `add_decayed_weights` and `scale_by_learning_rate` for
    the other arguments.

    Reference: Huang et al., Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit Adam, 2025.
    """
    direction = chain(
        adaclip(theta),
        adagn(gamma1, gamma2, eps),
        reset_state(scale_by_adam(b1, b2, eps), every),
    )
    return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)

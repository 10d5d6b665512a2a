"""ScheduleFree+: neither a schedule nor a learning rate."""

from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.schedule_free_plus import step_by_schedule_free_plus
from gradxform.types import NonNegativeOrSchedule


@optimizer
def schedule_free_plus(
    learning_rate: NonNegativeOrSchedule = 1.0,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    average_b1: float = 0.9,
    norm_decay: float = 0.0,
    average_start: int = 0,
    anneal_steps: int = 0,
    average_b1_end: float = 0.965,
    weight_lr_power: float = 2.0,
    weight_step_power: float = 0.0,
) -> step_by_schedule_free_plus:
    """ScheduleFree+: schedule-free AdamC whose step size follows from the loss.

    Each update needs the loss of its batch: `update(..., value=loss)`. Evaluate `eval_params(state,
    params)`, not the parameters.

    Args:
      learning_rate: 1, or a warm-up to 1.

    See `step_by_schedule_free_plus` for the other arguments.

    Reference: Defazio, ScheduleFree+: Scaling Learning-Rate-Free and Schedule-Free Learning to
    Large Language Models, 2026, as the authors' code computes it.
    """
    return with_arguments(step_by_schedule_free_plus, locals())

"""Adam that estimates its learning rate: D-Adaptation, Prodigy."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.dadapt import step_by_dadapt_adamw, step_by_prodigy
from gradxform.types import ScalarOrSchedule, StaticMask


@optimizer
def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    estim_lr0: float = 1e-6,
    weight_decay: float = 0.0,
) -> step_by_dadapt_adamw:
    """D-Adapted AdamW: its learning rate is estimated by D-Adaptation.

    Args:
      learning_rate: 1, or a schedule whose largest value is about 1.
      estim_lr0: the first estimate of the learning rate, greater than 0.

    See `step_by_dadapt_adamw` for the other arguments.

    Reference: Defazio and Mishchenko, Learning-Rate-Free Learning by D-Adaptation, 2023,
    Algorithm 5, D-Adapted Adam.
    """
    return step_by_dadapt_adamw(learning_rate, betas, eps, estim_lr0, weight_decay)


@optimizer
def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    beta3: float | None = None,
    eps: float | None = 1e-8,
    estim_lr0: float = 1e-6,
    estim_lr_coef: float = 1.0,
    weight_decay: float = 0.0,
    safeguard_warmup: bool = False,
    *,
    weight_decay_mask: StaticMask | None = None,
    growth_rate: float | None = None,
    use_bias_correction: bool = True,
) -> step_by_prodigy:
    """Prodigy: AdamW that estimates its learning rate, which rises faster than D-Adaptation's.

    Parameters in bfloat16 or float16 never move without `master_weights`: they round the first
    steps away.

    Args:
      learning_rate: 1, or a schedule whose largest value is about 1.
      estim_lr0: the first estimate of the learning rate, greater than 0.

    See `step_by_prodigy` for the other arguments.

    Reference: Mishchenko and Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free Learner,
    2023, Algorithm 4, Prodigy in Adam's form.
    """
    return step_by_prodigy(
        learning_rate,
        betas,
        beta3,
        eps,
        estim_lr0,
        estim_lr_coef,
        weight_decay,
        safeguard_warmup,
        weight_decay_mask,
        growth_rate=growth_rate,
        use_bias_correction=use_bias_correction,
    )

"""Optimizers without a learning rate schedule."""

from typing import Any

from gradxform.errors import shown
from gradxform.optimizers.momentum import sgd
from gradxform.optimizers.optimizer import optimizer, with_weight_decay
from gradxform.schedules.basic import linear_schedule
from gradxform.schedules.join import warmup_constant_schedule
from gradxform.schedules.product import product_schedule
from gradxform.schedules.rectified import rectified_warmup_schedule
from gradxform.transforms.adaptive import scale_by_rms
from gradxform.transforms.dadapt import step_by_prodigy
from gradxform.transforms.scaling import add_decayed_weights
from gradxform.types import (
    Decay,
    DType,
    NonNegativeOrSchedule,
    ScalarOrSchedule,
    Size,
    StaticMask,
)
from gradxform.wrappers.compose import chain
from gradxform.wrappers.schedule_free import schedule_free


def _warmed_up_schedule_free(
    name: str, learning_rate: ScalarOrSchedule, warmup_steps: Size | None, from_zero: bool
) -> ScalarOrSchedule:
    """Return the learning rate with its warm-up, if any."""
    if warmup_steps is None:
        return learning_rate
    whole = isinstance(warmup_steps, int) and not isinstance(warmup_steps, bool)
    if not whole or warmup_steps < 1:
        raise (ValueError if whole else TypeError)(
            f"{name}: warmup_steps must be an integer of at least 1, got {shown(warmup_steps)}."
        )
    if not from_zero:
        if warmup_steps == 1:
            return learning_rate
        climb = linear_schedule(1 / warmup_steps, 1.0, warmup_steps - 1)
        return product_schedule(climb, learning_rate)
    if callable(learning_rate):
        return product_schedule(learning_rate, linear_schedule(0.0, 1.0, warmup_steps))
    peak: Any = learning_rate  # a live number will do, too
    return warmup_constant_schedule(0.0, peak, warmup_steps)


def _adam(rate: ScalarOrSchedule, b2: Decay, eps: float, weight_decay: ScalarOrSchedule) -> chain:
    direction = scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True)
    return with_weight_decay(direction, rate, weight_decay, None)


@optimizer
def schedule_free_sgd(
    learning_rate: NonNegativeOrSchedule = 1.0,
    warmup_steps: Size | None = None,
    b1: float = 0.9,
    weight_decay: ScalarOrSchedule | None = None,
    weight_lr_power: float = 2.0,
    state_dtype: DType = None,
    *,
    warmup_from_zero: bool = True,
    weight_step_power: float | None = None,
) -> schedule_free:
    """Schedule-free SGD: gradient descent, evaluated at an average of its steps.

    Evaluate `eval_params(state, params)`, not the parameters.

    Args:
      learning_rate: at least 0, or a schedule that only climbs.
      warmup_steps: steps of a linear warm-up, at least 1, which multiplies the learning rate after
        n updates by n / warmup_steps. Defaults to none.
      warmup_from_zero: whether the first step of the warm-up has a rate of 0 and the weights of the
        average are those of the next step's rate, as in Optax. Without, the factor is (n + 1) /
        warmup_steps and the weights are those of the steps, as in the paper. Keyword-only.
      weight_decay: added to the gradients, at least 0, or a schedule. Defaults to none.

    See `schedule_free` for the other arguments.

    Reference: Defazio et al., The Road Less Scheduled, 2024, equations (3-5).
    """
    rate = _warmed_up_schedule_free(
        "schedule_free_sgd", learning_rate, warmup_steps, warmup_from_zero
    )
    base = sgd(rate)
    if weight_decay is not None:
        base = chain(add_decayed_weights(weight_decay), base)
    return schedule_free(
        base,
        rate,
        b1,
        weight_lr_power,
        state_dtype,
        weights_ahead=warmup_from_zero,
        weight_step_power=weight_step_power,
    )


@optimizer
def schedule_free_adamw(
    learning_rate: NonNegativeOrSchedule = 0.0025,
    warmup_steps: Size | None = None,
    b1: float = 0.9,
    b2: Decay = 0.999,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_lr_power: float = 2.0,
    state_dtype: DType = None,
    *,
    warmup_from_zero: bool = True,
    weight_step_power: float | None = None,
    decoupling: float | None = None,
) -> schedule_free:
    """Schedule-free AdamW: AdamW without momentum, evaluated at an average of its steps.

    Evaluate `eval_params(state, params)`, not the parameters. The weight decay is that of the
    parameters, where gradients are taken, not that of the average or of z.

    As in Optax, the second moment is corrected, and eps added to its corrected root. In the paper
    the learning rate has the factor sqrt(1 - b2^t) instead, which multiplies the decay and counts
    in the weights of the average, too: the first steps weigh less.

    Args:
      b2: the decay of the average of the squared gradients, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      decoupling: C of the refined method, greater than 0, as in `schedule_free`: min(1, (1 - b1) C
        c) is the weight of the new z in the average. Defaults to c itself. Keyword-only.

    See `add_decayed_weights` and `schedule_free_sgd` for the other arguments.

    Reference: Defazio et al., The Road Less Scheduled, 2024, Algorithm 1.
    """
    rate = _warmed_up_schedule_free(
        "schedule_free_adamw", learning_rate, warmup_steps, warmup_from_zero
    )
    base = _adam(rate, b2, eps, weight_decay)
    return schedule_free(
        base,
        rate,
        b1,
        weight_lr_power,
        state_dtype,
        weights_ahead=warmup_from_zero,
        weight_step_power=weight_step_power,
        decoupling=decoupling,
    )


@optimizer
def schedule_free_radam(
    learning_rate: NonNegativeOrSchedule = 0.0025,
    b1: float = 0.9,
    b2: Decay = 0.999,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_lr_power: float = 2.0,
    state_dtype: DType = None,
    *,
    weight_step_power: float | None = None,
) -> schedule_free:
    """Schedule-free RAdam: schedule-free AdamW, warmed up by RAdam's rectification.

    The first steps, in which the second moment has seen too few gradients (4 of them with b2 =
    0.999), do not move. Evaluate `eval_params(state, params)`, not the parameters.

    Args:
      learning_rate: at least 0, or a schedule that only climbs; the rectification multiplies it.

    See `schedule_free_adamw` for the other arguments.

    Reference: Defazio et al., The Road Less Scheduled, 2024, Algorithm 1; Liu et al., On the
    Variance of the Adaptive Learning Rate and Beyond, 2020, Algorithm 2, for the warm-up.
    """
    rate = product_schedule(learning_rate, rectified_warmup_schedule(b2, 4.0))
    base, power = _adam(rate, b2, eps, weight_decay), weight_step_power
    return schedule_free(
        base, rate, b1, weight_lr_power, state_dtype, weights_ahead=False, weight_step_power=power
    )


@optimizer
def schedule_free_prodigy(
    learning_rate: NonNegativeOrSchedule = 1.0,
    b1: float = 0.9,
    b2: Decay = 0.999,
    beta3: float | None = None,
    eps: float | None = 1e-8,
    estim_lr0: float = 1e-6,
    estim_lr_coef: float = 1.0,
    weight_decay: float = 0.0,
    weight_lr_power: float = 2.0,
    state_dtype: DType = None,
    *,
    weight_decay_mask: StaticMask | None = None,
    weight_step_power: float | None = None,
    growth_rate: float | None = None,
    use_bias_correction: bool = False,
    safeguard_warmup: bool = False,
) -> schedule_free:
    """Schedule-free Prodigy: neither a learning rate nor its schedule.

    Prodigy without momentum moves z, measures how far z has come, and decays z. A step weighs in
    the average by the largest d^weight_lr_power so far, with d the estimate after it.

    Evaluate `eval_params(state, params)`, not the parameters.

    Args:
      learning_rate: 1, or a schedule that climbs to 1.
      b2: the decay of the second moment, in [0, 1).
      estim_lr0: the first estimate of the learning rate, greater than 0.

    See `schedule_free` and `step_by_prodigy` for the other arguments.

    Reference: Defazio et al., The Road Less Scheduled, 2024, Algorithm 1, with the wrapper of the
    authors' code around Mishchenko and Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free
    Learner, 2023, Algorithm 4.
    """
    base = step_by_prodigy(
        learning_rate,
        (0.0, b2),
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
    return schedule_free(
        base,
        learning_rate,
        b1,
        weight_lr_power,
        state_dtype,
        weights_ahead=False,
        weight_step_power=weight_step_power,
        base_at_z=True,
    )

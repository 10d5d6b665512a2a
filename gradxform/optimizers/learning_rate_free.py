"""Optimizers that find their own step size; a learning rate only shapes it."""

from typing import Any

from gradxform.optimizers.base import optimizer
from gradxform.transforms.betting import scale_by_cocob
from gradxform.transforms.dadapt import step_by_dadapt_adamw, step_by_prodigy
from gradxform.transforms.dog import scale_by_dog, scale_by_dowg
from gradxform.transforms.momo import step_by_momo, step_by_momo_adam
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, StaticTree
from gradxform.wrappers.compose import chain


@optimizer
def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: float = 100.0,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: StaticTree = None,
) -> chain:
    """Coin betting: no learning rate, every entry steps in proportion to what it has won.

    Args:
      learning_rate: what multiplies the gradients before the betting, at least 0, or a schedule; a
        constant changes almost nothing.
      alpha: how timid the first bets are, at least 0.
      eps: what the largest gradient of an entry counts at least, at least 0.
      weight_decay: added to the gradients, at least 0, or a schedule.
      mask: which parameters decay; None: all.

    Reference: Orabona and Tommasi, Training Deep Networks without Learning Rates Through Coin
    Betting, 2017, Algorithm 2.
    """
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_cocob(alpha, eps),
    )


@optimizer
def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    estim_lr0: float = 1e-6,
    weight_decay: float = 0.0,
) -> step_by_dadapt_adamw:
    """AdamW whose learning rate is estimated by D-Adaptation.

    Args:
      learning_rate: 1, or a schedule whose largest value is some 1.
      betas: the decays (b1, b2) of the moments, each in [0, 1).
      eps: added to the root, at least 0.
      estim_lr0: the first estimate, greater than 0.
      weight_decay: at least 0.

    Reference: Defazio and Mishchenko, Learning-Rate-Free Learning by D-Adaptation, 2023,
    Algorithm 5, D-Adapted Adam.
    """
    return step_by_dadapt_adamw(learning_rate, betas, eps, estim_lr0, weight_decay)


@optimizer
def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    beta3: float | None = None,
    eps: float = 1e-8,
    estim_lr0: float = 1e-6,
    estim_lr_coef: float = 1.0,
    weight_decay: float = 0.0,
    safeguard_warmup: bool = False,
) -> step_by_prodigy:
    """AdamW whose learning rate is estimated by Prodigy, which rises faster than D-Adaptation's.

    Args:
      learning_rate: 1, or a schedule whose largest value is some 1.
      betas: the decays (b1, b2) of the moments, each in [0, 1).
      beta3: the decay of the sums behind the estimate, in [0, 1); None: sqrt(b2).
      eps: added to the root, at least 0.
      estim_lr0: the first estimate, greater than 0.
      estim_lr_coef: what the estimates are multiplied by, greater than 0.
      weight_decay: at least 0.
      safeguard_warmup: whether to keep the learning rate out of a sum, for long warmups.

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
    )


@optimizer
def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: tuple[Any, ...] = ("heuristic", 1e-6),
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = None,
    mask: StaticTree = None,
) -> chain:
    """SGD whose step is the distance travelled over the root of the gradients' squares.

    The authors evaluate an average of the parameters.

    Args:
      learning_rate: 1, or a schedule whose largest value is some 1.
      init_step: the first step, a pair `("heuristic", a)`, `("distance", r)` or
        `("learning_rate", x)`; see `scale_by_dog`.
      eps: added under the root, at least 0.
      weight_decay: added to the gradients, at least 0, or a schedule; None: 0.
      mask: which parameters decay; None: all.

    Reference: Ivgi et al., DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule,
    2023, the step size (DoG) of section 1.
    """
    return chain(
        add_decayed_weights(0.0 if weight_decay is None else weight_decay, mask),
        scale_by_dog(init_step, eps),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: float | None = None,
    eps: float = 1e-4,
    weight_decay: ScalarOrSchedule | None = None,
    mask: StaticTree = None,
) -> chain:
    """SGD as `dog`, with gradients that count by the distance at which they were met.

    Args:
      learning_rate: 1, or a schedule whose largest value is some 1.
      init_estim_sq_dist: the first squared distance, greater than 0; None: eps.
      eps: added to the root, at least 0.
      weight_decay: added to the gradients, at least 0, or a schedule; None: 0.
      mask: which parameters decay; None: all.

    Reference: Khaled et al., DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
    Method, 2023, Algorithm 1.
    """
    return chain(
        add_decayed_weights(0.0 if weight_decay is None else weight_decay, mask),
        scale_by_dowg(init_estim_sq_dist, eps),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def momo(
    learning_rate: ScalarOrSchedule = 1.0,
    beta: float = 0.9,
    lower_bound: float = 0.0,
    weight_decay: float = 0.0,
    adapt_lower_bound: bool = False,
) -> step_by_momo:
    """SGD with momentum and a Polyak step size; its update needs the loss, as `value`.

    Args:
      learning_rate: the largest step size, at least 0, or a schedule; choose it large.
      beta: the decay of the averages, in [0, 1).
      lower_bound: what the loss is never below.
      weight_decay: at least 0.
      adapt_lower_bound: whether to estimate the bound, from lower_bound upwards.

    Reference: Schaipp et al., MoMo: Momentum Models for Adaptive Learning Rates, 2023, Algorithm 1.
    """
    return step_by_momo(learning_rate, beta, lower_bound, weight_decay, adapt_lower_bound)


@optimizer
def momo_adam(
    learning_rate: ScalarOrSchedule = 1e-2,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    lower_bound: float = 0.0,
    weight_decay: float = 0.0,
    adapt_lower_bound: bool = False,
) -> step_by_momo_adam:
    """AdamW with a Polyak step size; its update needs the loss, as `value`.

    Args:
      learning_rate: the largest step size, at least 0, or a schedule; choose it larger than Adam's.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0.
      lower_bound: what the loss is never below.
      weight_decay: at least 0.
      adapt_lower_bound: whether to estimate the bound, from lower_bound upwards.

    Reference: Schaipp et al., MoMo: Momentum Models for Adaptive Learning Rates, 2023, Algorithm 2.
    """
    return step_by_momo_adam(
        learning_rate, b1, b2, eps, lower_bound, weight_decay, adapt_lower_bound
    )

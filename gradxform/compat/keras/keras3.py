"""`keras.optimizers` of Keras 3, and of Keras 2.11 to 2.15.

They differ from those of TensorFlow 2.8 in `gradxform.compat.keras`: `RMSprop` and `Adagrad` add
epsilon under the root, `Nadam` warms up faster, and weight decay, averages of the parameters and
accumulation are arguments of all. A learning rate may be a schedule of
`gradxform.compat.keras.decays` or any function of the count of updates. `name` is ignored.

Any transform trains a model of Keras 3 by `model.compile(optimizer=as_keras(tx))`.
"""

from collections.abc import Sequence
from typing import Any

from gradxform.compat.keras.keras3_options import keras3_optimizer
from gradxform.compat.keras.keywords import adam_parts, counting_part, is_present
from gradxform.compat.keras.loss_scale import LossScaleOptimizer as LossScaleOptimizer
from gradxform.compat.keras.multi_optimizer import (
    MultiOptimizer as MultiOptimizer,
    OptimizerMap as OptimizerMap,
)
from gradxform.compat.keras.optimizer import (
    as_keras as as_keras,
    register_optimizer as register_optimizer,
)
from gradxform.compat.keras.own_optimizer import Optimizer as Optimizer
from gradxform.compat.keras.rates import at_most_inverse_sqrt
from gradxform.compat.keras.schedule_free_adamw import step_by_schedule_free_adam
from gradxform.compat.keras.transform import from_keras as from_keras
from gradxform.leaves.masks import label_by, ndim_at_least, path_matches
from gradxform.schedules.product import product_schedule
from gradxform.transforms.adam import scale_by_adam, scale_by_nadam
from gradxform.transforms.adam_kin import scale_by_adamax
from gradxform.transforms.adaptive import (
    scale_by_adadelta,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
)
from gradxform.transforms.clipping import clip_by_block_rms
from gradxform.transforms.factored import scale_by_factored_rms
from gradxform.transforms.layerwise import scale_by_param_block_rms, scale_by_trust_ratio
from gradxform.transforms.momentum import trace
from gradxform.transforms.muon import scale_by_muon, scale_by_shape
from gradxform.transforms.proximal import step_by_ftrl
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.transforms.sign import scale_by_lion
from gradxform.types import Fixed, NonNegativeInt, ScalarOrSchedule, Size, ZeroIsNone
from gradxform.wrappers.compose import chain
from gradxform.wrappers.decay import decoupled_weight_decay
from gradxform.wrappers.select import partition


@keras3_optimizer
def SGD(
    learning_rate: ScalarOrSchedule = 0.01, momentum: ZeroIsNone = 0.0, nesterov: bool = False
) -> chain:
    """Gradient descent with the learning rate in the momentum: `scale_by_learning_rate`, `trace`.

    Reference: `keras.optimizers.SGD`.
    """
    parts: list[Any] = [scale_by_learning_rate(learning_rate)]
    if is_present(momentum):
        parts += [trace(momentum, nesterov)]
    return chain(*parts, *counting_part(learning_rate))


@keras3_optimizer
def RMSprop(
    learning_rate: ScalarOrSchedule = 0.001,
    rho: float = 0.9,
    momentum: ZeroIsNone = 0.0,
    epsilon: float = 1e-7,
    centered: bool = False,
) -> chain:
    """RMSProp with epsilon inside the root: `scale_by_rms`, learning rate, `trace`.

    `scale_by_stddev` if centered; `trace` with momentum.

    Reference: `keras.optimizers.RMSprop`.
    """
    scale_by = scale_by_stddev if centered else scale_by_rms
    parts: list[Any] = [scale_by(rho, epsilon), scale_by_learning_rate(learning_rate)]
    if is_present(momentum):
        parts += [trace(momentum)]
    return chain(*parts, *counting_part(learning_rate))


@keras3_optimizer
def Adagrad(
    learning_rate: ScalarOrSchedule = 0.001,
    initial_accumulator_value: float = 0.1,
    epsilon: float = 1e-7,
) -> chain:
    """Adagrad with epsilon inside the root: `scale_by_rss`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Adagrad`.
    """
    rule = scale_by_rss(initial_accumulator_value, epsilon)
    return chain(rule, scale_by_learning_rate(learning_rate), *counting_part(learning_rate))


@keras3_optimizer
def Adadelta(
    learning_rate: ScalarOrSchedule = 0.001, rho: float = 0.95, epsilon: float = 1e-7
) -> chain:
    """Adadelta: `scale_by_adadelta`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Adadelta`.
    """
    rule = scale_by_adadelta(rho, epsilon)
    return chain(rule, scale_by_learning_rate(learning_rate), *counting_part(learning_rate))


@keras3_optimizer
def Adam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    amsgrad: bool = False,
) -> chain:
    """Adam with the paper's epsilon hat: `densify`, `scale_by_tf_adam`, `scale_by_learning_rate`.

    With amsgrad: `scale_by_amsgrad`, corrected after the maximum.

    Reference: `keras.optimizers.Adam`.
    """
    return _keras3_adam(learning_rate, beta_1, beta_2, epsilon, amsgrad)


@keras3_optimizer
def AdamW(
    learning_rate: ScalarOrSchedule = 0.001,
    weight_decay: ZeroIsNone = 0.004,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    amsgrad: bool = False,
) -> chain:
    """`Adam` with a weight decay of 0.004 by default: `decoupled_weight_decay`.

    Reference: `keras.optimizers.AdamW`.
    """
    return _keras3_adam(learning_rate, beta_1, beta_2, epsilon, amsgrad)


def _keras3_adam(
    learning_rate: ScalarOrSchedule, beta_1: float, beta_2: float, epsilon: float, amsgrad: bool
) -> chain:
    parts = adam_parts(beta_1, beta_2, epsilon, amsgrad)
    return chain(*parts, scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Adamax(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
) -> chain:
    """AdaMax with epsilon added to the maximum: `scale_by_adamax`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Adamax`.
    """
    rule = scale_by_adamax(beta_1, beta_2, epsilon, eps_in_max=False)
    return chain(rule, scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Nadam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
) -> chain:
    """Adam with Nesterov momentum that warms up: `scale_by_nadam`, `scale_by_learning_rate`.

    The momentum's schedule is that of Keras 2 with schedule_decay=1.

    Reference: `keras.optimizers.Nadam`.
    """
    rule = scale_by_nadam(beta_1, beta_2, epsilon, 1.0)
    return chain(rule, scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Ftrl(
    learning_rate: ScalarOrSchedule = 0.001,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    l2_shrinkage_regularization_strength: float = 0.0,
    beta: float = 0.0,
) -> chain:
    """Follow the regularized leader: `step_by_ftrl`.

    Reference: `keras.optimizers.Ftrl`.
    """
    rule = step_by_ftrl(
        learning_rate,
        learning_rate_power,
        initial_accumulator_value,
        l1_regularization_strength,
        l2_regularization_strength,
        l2_shrinkage_regularization_strength,
        beta=beta,
    )
    return chain(rule)


@keras3_optimizer
def Lion(
    learning_rate: ScalarOrSchedule = 0.001, beta_1: float = 0.9, beta_2: float = 0.99
) -> chain:
    """The sign of an interpolated momentum: `scale_by_lion`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Lion`.
    """
    return chain(scale_by_lion(beta_1, beta_2), scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Lamb(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
) -> chain:
    """Adam's step with the norm of its array: `scale_by_adam`, `scale_by_trust_ratio`.

    Then `scale_by_learning_rate`. A weight decay comes before the step, which takes the norm of the
    array that has decayed.

    Reference: `keras.optimizers.Lamb`.
    """
    rule = scale_by_adam(beta_1, beta_2, epsilon)
    return chain(rule, scale_by_trust_ratio(), scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Adafactor(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_2_decay: float = -0.8,
    epsilon_1: float = 1e-30,
    epsilon_2: float = 1e-3,
    clip_threshold: float = 1.0,
    relative_step: bool = True,
) -> chain:
    """Second moments of rows and columns: `scale_by_factored_rms`, `clip_by_block_rms`.

    Then `scale_by_param_block_rms` and the learning rate, at most 1 / sqrt(t), also without
    relative_step, as in the original. In an array of more than two dimensions the last two axes
    form the matrix.

    Reference: `keras.optimizers.Adafactor`.
    """
    return chain(
        scale_by_factored_rms(
            decay_rate=-beta_2_decay,
            min_dim_size_to_factor=0,
            epsilon=epsilon_1,
            last_axes=True,
        ),
        clip_by_block_rms(clip_threshold),
        scale_by_param_block_rms(epsilon_2),
        scale_by_learning_rate(at_most_inverse_sqrt(learning_rate)),
    )


@keras3_optimizer
def ScheduleFreeAdamW(
    learning_rate: ScalarOrSchedule = 0.0025,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    warmup_steps: NonNegativeInt = 0,
    weight_decay: ZeroIsNone | None = None,
) -> chain:
    """Adam with an average in the place of a schedule: `step_by_schedule_free_adam`.

    Evaluate and save `eval_params(state, params)`, the average, which Keras does not offer: it
    evaluates and saves the parameters. The weight decay moves these alone, in the rule itself.

    Reference: `keras.optimizers.ScheduleFreeAdamW`.
    """
    decay = 0.0 if weight_decay is None else weight_decay
    return chain(
        step_by_schedule_free_adam(learning_rate, beta_1, beta_2, epsilon, warmup_steps, decay)
    )


@keras3_optimizer
def Muon(
    learning_rate: ScalarOrSchedule = 0.001,
    adam_beta_1: float = 0.9,
    adam_beta_2: float = 0.999,
    adam_weight_decay: ZeroIsNone | None = 0.004,
    epsilon: float = 1e-7,
    weight_decay: ZeroIsNone | None = 0.004,
    exclude_layers: Sequence[str] | None = None,
    exclude_embeddings: bool = True,
    muon_a: Fixed = 3.4445,
    muon_b: Fixed = -4.7750,
    muon_c: Fixed = 2.0315,
    adam_lr_ratio: float = 1.0,
    momentum: float = 0.95,
    ns_steps: Size = 5,
    nesterov: bool = True,
    rms_rate: float | None = 0.2,
) -> chain:
    """Orthogonalized momentum for matrices, Adam for the rest: a `partition`.

    Matrices: `trace`, `scale_by_muon` without an average, `scale_by_shape`. Parameters whose path
    contains "embedding", or matches a pattern of exclude_layers, are Adam's too. Each group decays
    by its own weight decay times the learning rate.

    Reference: `keras.optimizers.Muon`.
    """
    parts: list[Any] = [
        trace(momentum, nesterov),
        scale_by_muon((muon_a, muon_b, muon_c), ns_steps, beta=0.0, eps=1e-7, nesterov=False),
    ]
    if rms_rate is not None:
        parts.append(scale_by_shape(consistent_rms=rms_rate))
    matrices = chain(*parts, scale_by_learning_rate(learning_rate))
    adam_rate = _keras3_rate_times(learning_rate, adam_lr_ratio)
    others = _keras3_adam(adam_rate, adam_beta_1, adam_beta_2, epsilon, amsgrad=False)
    excluded = ~(ndim_at_least(2) & ~ndim_at_least(3))
    patterns = list(exclude_layers or ())
    if exclude_embeddings:
        patterns.append("(?i)embedding")
    for pattern in patterns:
        excluded = excluded | path_matches(pattern, optional=True)
    groups = {
        "muon": _with_keras3_weight_decay(matrices, weight_decay, learning_rate),
        "adam": _with_keras3_weight_decay(others, adam_weight_decay, learning_rate),
    }
    return chain(partition(groups, label_by(("adam", excluded), ("muon", True))))


def _keras3_rate_times(learning_rate: Any, ratio: Any) -> Any:
    if callable(learning_rate):
        return learning_rate if ratio == 1 else product_schedule(learning_rate, ratio)
    return learning_rate * ratio


def _with_keras3_weight_decay(tx: chain, weight_decay: Any, learning_rate: Any) -> Any:
    if weight_decay is None or not is_present(weight_decay):
        return tx
    return decoupled_weight_decay(tx, weight_decay, learning_rate=learning_rate, decay_first=True)


FACTORIES: tuple[Any, ...] = (
    SGD,
    RMSprop,
    Adagrad,
    Adadelta,
    Adam,
    AdamW,
    Adamax,
    Nadam,
    Ftrl,
    Lion,
    Lamb,
    Adafactor,
    ScheduleFreeAdamW,
    Muon,
)

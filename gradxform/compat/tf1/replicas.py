"""The distributed optimizers of TensorFlow 1 and its contrib, as wrappers over an axis of replicas.

`axis` names the axis of replicas. Where the originals' workers arrive one after another, the
replicas take turns in order. Arguments for sessions, hooks, variables, locks and names are accepted
and ignored, and so are the numbers of workers.
"""

import inspect
from typing import Any

from gradxform._names.deferred import signature_of
from gradxform.base import check_transform
from gradxform.compat.arguments import mask_of_names
from gradxform.distributed.averaging.elastic import agn, elastic_average
from gradxform.distributed.averaging.model_average import model_average
from gradxform.distributed.averaging.stale import drop_stale
from gradxform.distributed.averaging.synchronous import sync_replicas
from gradxform.distributed.averaging.tower import tower
from gradxform.errors import name_of, require_choice, shown
from gradxform.interop import identity
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import Choice, Fixed, Size
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.content import all_in
from gradxform.wrappers.average import moving_average
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import masked

# TensorFlow's `Reduction`; its fifth value is "none".
_REDUCTIONS = (
    "weighted_sum",
    "weighted_sum_over_batch_size",
    "weighted_mean",
    "weighted_sum_by_nonzero_weights",
)


@with_checked_arguments
def SyncReplicas(
    opt: Any,
    replicas_to_aggregate: Size,
    total_num_replicas: Fixed = None,
    variable_averages: Fixed = None,
    variables_to_average: Any = None,
    use_locking: Any = False,
    name: Any = "sync_replicas",
    *,
    axis: str = "replica",
    num_worker: Fixed = None,
    num_tokens: Fixed = 0,
) -> sync_replicas:
    """Aggregate gradients before a step: `sync_replicas`.

    With variable_averages the optimizer is in `moving_average`, whose decay they are: a number in
    the place of the original's `ExponentialMovingAverage`. It averages the parameters of the names
    in variables_to_average, by default all, after each step.

    It does not use tokens: to drop the gradient of a replica, as the original would, pass the extra
    argument `contribute` or `grad_step` to `update`. num_tokens must be 0, with which no gradient
    is dropped; the original's default drops some of the first.

    Raises:
      ValueError: if num_tokens is not 0, or variables_to_average are given without
        variable_averages.
      TypeError: if variable_averages is not a number, or variables_to_average not a list of names.

    Reference: `tf.train.SyncReplicasOptimizer`.
    """
    mask = mask_of_names("SyncReplicas", "variables_to_average", variables_to_average)
    if variables_to_average is not None and variable_averages is None:
        raise ValueError(
            "SyncReplicas: variables_to_average needs variable_averages, the decay of the averages."
        )
    if variable_averages is not None and (
        isinstance(variable_averages, bool) or not isinstance(variable_averages, int | float)
    ):
        raise TypeError(
            "SyncReplicas: variable_averages must be the decay of the averages, a number, or None, "
            f"got {shown(variable_averages)}."
        )
    if num_tokens:
        raise ValueError(f"SyncReplicas: num_tokens must be 0, got {num_tokens!r}.")
    if variable_averages is not None:  # inside, so that it averages once for each step
        decay = float(variable_averages)
        if mask is None:
            opt = moving_average(opt, decay)
        else:
            opt = chain(opt, masked(moving_average(identity(), decay), mask))
    return sync_replicas(opt, axis, replicas_to_aggregate=replicas_to_aggregate)


@with_checked_arguments
def ModelAverage(
    opt: Any,
    num_worker: Fixed = None,
    is_chief: Any = None,
    ma_custom_getter: Any = None,
    interval_steps: int = 100,
    use_locking: Any = True,
    name: Any = "ModelAverageOptimizer",
    *,
    axis: str = "replica",
) -> model_average:
    """Average the workers' parameters every interval_steps: `model_average`.

    Reference: `tf.contrib.opt.ModelAverageOptimizer`.
    """
    return model_average(opt, axis, period=interval_steps)


@with_checked_arguments
def ElasticAverage(
    opt: Any,
    num_worker: Fixed = None,
    ea_custom_getter: Any = None,
    communication_period: int = 10,
    moving_rate: float | None = None,
    rho: float | None = None,
    use_locking: Any = True,
    synchronous: Any = False,
    name: Any = "ElasticAverageOptimizer",
    *,
    axis: str = "replica",
) -> elastic_average:
    """Tie the workers to a center: `elastic_average`, the replicas taking turns.

    As in the original, rho is by default moving_rate over the optimizer's learning rate.

    Raises:
      ValueError: if rho is None and the optimizer does not have exactly one, constant learning
        rate.

    Reference: `tf.contrib.opt.ElasticAverageOptimizer`.
    """
    check_transform("ElasticAverage", opt, "opt")
    learning_rate = None if rho is not None else _rate("ElasticAverage", opt)
    return elastic_average(
        opt,
        axis,
        period=communication_period,
        moving_rate=moving_rate,
        rho=rho,
        learning_rate=learning_rate,
        order="sequential",
    )


@with_checked_arguments
def AGN(
    optimizer: Any = None,
    num_worker: Fixed = None,
    custom_getter: Any = None,
    communication_period: int = 10,
    use_locking: Any = True,
    name: Any = "AGNOptimizer",
    *,
    opt: Any = None,
    axis: str = "replica",
) -> agn:
    """Step a center along the workers' mean gradients: `agn`, the replicas taking turns.

    `opt` is an alias of `optimizer`.

    Reference: `tf.contrib.opt.AGNOptimizer`.
    """
    if optimizer is None and opt is None:
        raise TypeError("AGN: optimizer is required.")
    return agn(
        optimizer if opt is None else opt, axis, period=communication_period, order="sequential"
    )


@with_checked_arguments
def DropStaleGradient(
    opt: Any, staleness: int, use_locking: Any = False, name: Any = "DropStaleGradient"
) -> drop_stale:
    """Drop gradients of parameters that are too many steps old: `drop_stale`.

    Pass the step of these parameters as the extra argument `grad_step` of `update`.

    Reference: `tf.contrib.opt.DropStaleGradientOptimizer`.
    """
    return drop_stale(opt, staleness)


@with_checked_arguments
def Tower(
    optimizer_or_optimizer_fn: Any = None,
    loss_reduction: Choice = "weighted_sum_by_nonzero_weights",
    towers: Fixed = None,
    *,
    opt: Any = None,
    axis: str = "replica",
) -> tower:
    """Step on the towers' gradients together: `tower`.

    The gradients must be those of each tower's own loss, not divided by the number of towers. The
    step uses their mean, or their sum if loss_reduction is "weighted_sum".

    Args:
      optimizer_or_optimizer_fn: an optimizer, or a function without arguments that returns one.
      loss_reduction: one of the values of TensorFlow's `Reduction`: "weighted_sum",
        "weighted_sum_over_batch_size", "weighted_mean", "weighted_sum_by_nonzero_weights".
      towers: ignored; `axis` has their number.
      opt: an alias of optimizer_or_optimizer_fn. Keyword-only.
      axis: the axis of towers. Keyword-only.

    Raises:
      ValueError: for another loss_reduction, "none" included.

    Reference: `tf.contrib.estimator.TowerOptimizer` and `replicate_model_fn`.
    """
    if loss_reduction == "none":
        raise ValueError(
            "Tower: with loss_reduction 'none' there are several losses; reduce them first."
        )
    require_choice("Tower", "loss_reduction", loss_reduction, _REDUCTIONS)
    if optimizer_or_optimizer_fn is None and opt is None:
        raise TypeError("Tower: optimizer_or_optimizer_fn is required.")
    opt = optimizer_or_optimizer_fn if opt is None else opt
    if inspect.isroutine(opt):
        try:
            signature_of(opt).bind()
        except TypeError as error:
            raise TypeError(
                f"Tower: opt must be an optimizer or a function without arguments, got "
                f"{shown(opt)}: {error}."
            ) from None
        opt = opt()
    return tower(opt, axis, reduction="sum" if loss_reduction == "weighted_sum" else "mean")


def _rate(factory: str, opt: Any) -> float:
    """Return the one constant learning rate in an optimizer."""
    rates = [r.learning_rate for r in all_in(opt) if isinstance(r, scale_by_learning_rate)]
    if len(rates) != 1 or not isinstance(rates[0], int | float):
        listed = ", ".join(map(shown, rates)) or "none"
        raise ValueError(
            f"{factory}: rho is by default moving_rate over the learning rate of the optimizer, "
            f"but {name_of(opt)} has {listed}; pass rho."
        )
    return rates[0]

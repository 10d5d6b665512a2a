"""`LossScaleOptimizer` of Keras 3, and its weights."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradxform.base import check_transform
from gradxform.compat.keras.from_config import around_others
from gradxform.compat.keras.keras3_options import without_loss_scale_factor
from gradxform.compat.keras.objects import call_factory, check_keys, described_object, known_factory
from gradxform.errors import shown
from gradxform.types import PositiveInt
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.loss_scale import LARGEST, LEAST, LossScaleState, loss_scale

# In the order in which Keras has them, before those of the optimizer inside. The first two
# do not mean anything: they stay 0.
_NAMES = ("iteration", "learning_rate", "step_counter", "dynamic_scale")


_INITIAL, _GROWTH = 2.0**15, 2000


@around_others
@with_checked_arguments
def LossScaleOptimizer(
    inner_optimizer: Any,
    initial_scale: float | None = None,
    dynamic_growth_steps: PositiveInt | None = None,
    name: Any = None,
    *,
    dynamic: bool = True,
) -> loss_scale:
    """Skip steps that are not finite, and adapt the scale of the loss: `loss_scale`.

    The scale doubles after dynamic_growth_steps finite steps in a row, and halves after a step that
    is not finite. Keras does not bound it; here it stays in [2**-126, 2**126]. `scale_loss` of
    Keras is `scaled_loss(loss, state)`; `make_step` calls it by itself. With dynamic=False the
    scale is constant, and steps that are not finite are skipped too, which TensorFlow takes.

    Args:
      inner_optimizer: any transform. A loss_scale_factor of one of `compat.keras3` does not count
        here, as in Keras.
      initial_scale: the first scale. Defaults to 2**15; a constant scale must be given.
      dynamic_growth_steps: how many finite steps in a row it takes to double. Defaults to 2000;
        a constant scale does not have it.
      name: ignored.
      dynamic: whether the scale adapts. It stands second in TensorFlow 2.8, and Keras 3
        does not have it. Keyword-only.

    Raises:
      TypeError, ValueError: as `loss_scale`; for a constant scale without initial_scale, or with
        dynamic_growth_steps.

    Reference: `keras.optimizers.LossScaleOptimizer`, `tf.keras.mixed_precision.LossScaleOptimizer`.
    """
    if isinstance(initial_scale, bool):
        raise TypeError(
            f"LossScaleOptimizer: initial_scale stands second, as in Keras 3, got {initial_scale!r}"
            f"; for TensorFlow's dynamic write dynamic={initial_scale!r}."
        )
    if not dynamic:
        if initial_scale is None:
            raise ValueError(
                "LossScaleOptimizer: with dynamic=False initial_scale must be given, the constant "
                "scale of the loss."
            )
        if dynamic_growth_steps is not None:
            raise ValueError(
                "LossScaleOptimizer: with dynamic=False the scale does not grow; leave out "
                f"dynamic_growth_steps, got {shown(dynamic_growth_steps)}."
            )
    growth = _GROWTH if dynamic_growth_steps is None else dynamic_growth_steps
    return loss_scale(
        without_loss_scale_factor(inner_optimizer),
        _INITIAL if initial_scale is None else initial_scale,
        growth if dynamic else None,
        min_scale=LEAST,
        max_scale=LARGEST,
    )


@around_others
def LossScaleOptimizerV1(optimizer: Any, loss_scale: Any) -> loss_scale:
    """Skip steps that are not finite, and scale the loss: `LossScaleOptimizer` of these arguments.

    Args:
      optimizer: any transform, `inner_optimizer` there.
      loss_scale: a number, which is a constant scale; "dynamic"; or one of TensorFlow's two scales
        as plain data, {"class_name": "FixedLossScale", "config": {"loss_scale_value": 128}} and
        {"class_name": "DynamicLossScale", "config": {"initial_loss_scale": 2.0**15,
        "increment_period": 2000, "multiplier": 2}}, where each number has this default.

    Raises:
      TypeError, ValueError: as `LossScaleOptimizer`; for another loss_scale; for a multiplier other
        than 2, as in TensorFlow.

    Reference: `tf.keras.mixed_precision.experimental.LossScaleOptimizer` of TensorFlow 2.4 to 2.8.
    """
    check_transform("LossScaleOptimizerV1", optimizer, "optimizer")
    return LossScaleOptimizer(optimizer, **_arguments_of_loss_scale(loss_scale))


def _arguments_of_loss_scale(scale: Any) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` that mean this `loss_scale`."""
    if isinstance(scale, str) and scale == "dynamic":
        return {}
    if isinstance(scale, int | float | np.number) and not isinstance(scale, bool):
        return {"dynamic": False, "initial_scale": scale}
    if not isinstance(scale, dict):
        raise (TypeError if isinstance(scale, bool) else ValueError)(
            "LossScaleOptimizerV1: loss_scale must be a number, 'dynamic', or the config of a "
            f"FixedLossScale or DynamicLossScale, got {shown(scale)}."
        )
    where = "LossScaleOptimizerV1: loss_scale"
    thing = described_object(scale, where)
    factory = known_factory(thing, _SCALES, None, where, "loss scale")
    check_keys(factory, thing.config, f"{where}.config", TypeError)
    return call_factory(factory, thing.config, f"{where}.config")


def FixedLossScale(loss_scale_value: float) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` for this class of TensorFlow."""
    return {"dynamic": False, "initial_scale": loss_scale_value}


def DynamicLossScale(
    initial_loss_scale: float = _INITIAL, increment_period: int = _GROWTH, multiplier: float = 2.0
) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` for this class of TensorFlow."""
    if multiplier != 2:
        raise ValueError(
            f"multiplier must be 2, as TensorFlow requires here, got {shown(multiplier)}. Use "
            "loss_scale, whose growth_factor and backoff_factor are any."
        )
    return {"initial_scale": initial_loss_scale, "dynamic_growth_steps": increment_period}


_SCALES = {f.__name__.lower(): f for f in (FixedLossScale, DynamicLossScale)}


def own_weights(state: LossScaleState) -> list[tuple[str, np.ndarray]]:
    """Return the weights that stand before those of the optimizer inside, by name."""
    values = (
        np.zeros((), np.int64),
        np.zeros((), np.float32),
        np.asarray(state.finite_steps, np.int32),
        np.asarray(state.loss_scale, np.float32),
    )
    return list(zip(_NAMES, values, strict=True))


def with_own_weights(
    state: LossScaleState, weights: Any
) -> tuple[LossScaleState, Sequence[np.ndarray]]:
    """Return the state with the scale and the count of a list, and the rest of the list.

    Raises:
      ValueError: if the list does not begin with the weights of `LossScaleOptimizer`.
    """
    is_list = isinstance(weights, Sequence) and not isinstance(weights, str | bytes)
    if not is_list or len(weights) < len(_NAMES) or any(map(np.ndim, weights[: len(_NAMES)])):
        raise ValueError(
            f"set_weights: the weights of LossScaleOptimizer begin with {', '.join(_NAMES)}, got "
            f"{shown(weights)}. Was the list made by the optimizer inside?"
        )
    *_, count, scale = weights[: len(_NAMES)]
    state = state._replace(
        finite_steps=jnp.asarray(count, state.finite_steps.dtype),
        loss_scale=jnp.asarray(scale, state.loss_scale.dtype),
    )
    return state, weights[len(_NAMES) :]

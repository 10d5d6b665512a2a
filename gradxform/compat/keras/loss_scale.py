"""`LossScaleOptimizer` of Keras 3, and its weights."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras.from_config import around_others
from gradxform.compat.keras.keras3_options import without_loss_scale_factor
from gradxform.errors import shown
from gradxform.types import PositiveInt
from gradxform.values.arguments import checked
from gradxform.wrappers.loss_scale import LARGEST, LEAST, LossScaleState, loss_scale

# In the order in which Keras has them, before those of the optimizer inside. The first two
# do not mean anything: they stay 0.
_NAMES = ("iteration", "learning_rate", "step_counter", "dynamic_scale")


@around_others
@checked
def LossScaleOptimizer(
    inner_optimizer: Any,
    initial_scale: float = 2.0**15,
    dynamic_growth_steps: PositiveInt = 2000,
    name: Any = None,
) -> loss_scale:
    """Skip steps that are not finite, and adapt the scale of the loss: `loss_scale`.

    The scale doubles after dynamic_growth_steps finite steps in a row, and halves after a step that
    is not finite. Keras does not bound it; here it stays in [2**-126, 2**126]. `scale_loss` of
    Keras is `scaled_loss(loss, state)`; `make_step` calls it by itself.

    Args:
      inner_optimizer: any transform. A loss_scale_factor of one of `compat.keras3` does not count
        here, as in Keras.
      initial_scale: the first scale.
      dynamic_growth_steps: how many finite steps in a row it takes to double.
      name: ignored.

    Raises:
      TypeError, ValueError: as `loss_scale`.

    Reference: `keras.optimizers.LossScaleOptimizer`.
    """
    return loss_scale(
        without_loss_scale_factor(inner_optimizer),
        initial_scale,
        dynamic_growth_steps,
        min_scale=LEAST,
        max_scale=LARGEST,
    )


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

"""`DynamicScale` of `flax.training.dynamic_scale`, to `loss_scale` and back.

Flax keeps the scale beside the optimizer's state, and leaves it to the step to skip an update.
"""

from typing import Any

import jax.numpy as jnp

from gradxform.errors import must_be, name_of, shown
from gradxform.leaves.states import check_state
from gradxform.numerics import as_number, as_step, scalar
from gradxform.slots import zero_count
from gradxform.types import OptState
from gradxform.wrappers.loss_scale import LARGEST, LEAST, LossScaleState, loss_scale

_FIELDS = ("growth_factor", "backoff_factor", "growth_interval", "fin_steps", "scale")


def from_dynamic_scale(
    dynamic_scale: Any, inner: Any, inner_state: OptState
) -> tuple[loss_scale, LossScaleState]:
    """Return the optimizer with a `loss_scale` that goes on from a `DynamicScale`, and its state.

        tx, state = compat.flax.from_dynamic_scale(dynamic_scale, gx.adam(1e-3), opt_state)

    Flax's scale grows after growth_interval + 1 finite steps in a row; that is the growth_interval
    of the result. A minimum_scale of None becomes 2**-126.

    Args:
      dynamic_scale: the `DynamicScale` of one replica; its scale must be known.
      inner: the optimizer that gets the gradients, any transform.
      inner_state: its state.

    Raises:
      TypeError: if `dynamic_scale` is not one.
      ValueError: if its numbers are not those of a `loss_scale`, such as a scale beyond 2**126.
    """
    if not all(hasattr(dynamic_scale, name) for name in _FIELDS):
        raise TypeError(
            must_be("from_dynamic_scale", "dynamic_scale", "a DynamicScale of Flax", dynamic_scale)
        )
    scale = as_number("from_dynamic_scale", "the scale", dynamic_scale.scale)
    least = getattr(dynamic_scale, "minimum_scale", None)
    tx = loss_scale(
        inner,
        float(scale),
        dynamic_scale.growth_interval + 1,
        dynamic_scale.growth_factor,
        dynamic_scale.backoff_factor,
        min_scale=LEAST if least is None else float(least),
        max_scale=LARGEST,
    )
    steps = as_step("from_dynamic_scale", "fin_steps", dynamic_scale.fin_steps)
    return tx, LossScaleState(
        loss_scale=jnp.array(scalar(scale), copy=True),
        finite_steps=jnp.array(steps, copy=True),
        total_skipped=zero_count(),
        inner_state=inner_state,
    )


def to_dynamic_scale(tx: loss_scale, state: LossScaleState) -> Any:
    """Return the `DynamicScale` that goes on from the state of a `loss_scale`.

    The state of the optimizer inside is `state.inner_state`. Flax does not bound the scale from
    above, and does not count the steps that it skips.

    Args:
      tx: the `loss_scale`.
      state: its state.

    Raises:
      ImportError: if Flax is not installed.
      TypeError: if `tx` is not a `loss_scale`, or the state not its own.
      ValueError: if its scale is constant.
    """
    if not isinstance(tx, loss_scale):
        raise TypeError(f"to_dynamic_scale: tx must be a loss_scale, got {shown(tx)}.")
    check_state(tx, state, LossScaleState)
    if tx.growth_interval is None:
        raise ValueError(
            f"to_dynamic_scale: the scale of {name_of(tx)} is constant, and Flax's is not; "
            "multiply the loss by a number there."
        )
    try:
        from flax.training.dynamic_scale import DynamicScale
    except ImportError:
        raise ImportError("to_dynamic_scale: needs Flax; pip install flax.") from None
    return DynamicScale(
        growth_factor=tx.growth_factor,
        backoff_factor=tx.backoff_factor,
        growth_interval=tx.growth_interval - 1,
        fin_steps=jnp.array(state.finite_steps, copy=True),  # pyright: ignore[reportArgumentType]
        scale=jnp.array(state.loss_scale, copy=True),  # pyright: ignore[reportArgumentType]
        minimum_scale=tx.min_scale,
    )

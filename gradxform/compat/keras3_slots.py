"""What the options of Keras 3 remember: an average of the parameters, accumulated gradients."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.overwrite import overwriting_average
from gradxform.wrappers.parts import all_parts

# In the order in which Keras makes them, before the slots of the rule.
OPTIONAL = ("average", "gradient_accumulator")
_COUNT = "iteration"


def to_keras3(tx: Any, slots: Mapping[str, Any]) -> dict[str, Any]:
    """Return the slots of `get_slots(..., "keras3")` as Keras 3 keeps them.

    Keras counts every call, also those that only accumulate, and adds the gradients up.
    """
    slots = dict(slots)
    steps, averages = _options(tx)
    if averages:
        del slots["num_updates"]
    if steps is not None:
        n = slots.pop("mini_step")
        del slots["skip_state"]
        slots[_COUNT] = slots.pop("gradient_step") * steps + n
        slots["gradient_accumulator"] = jax.tree.map(
            lambda x: x * n.astype(x.dtype), slots.pop("acc_grads")
        )
    return slots


def from_keras3(tx: Any, slots: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `to_keras3` was given, of what it returned."""
    slots = dict(slots)
    steps, averages = _options(tx)
    n = jnp.asarray(slots[_COUNT], jnp.int32)
    if averages:
        slots["num_updates"] = n
    if steps is not None:
        done, mini = n // steps, n % steps
        slots |= {_COUNT: done, "gradient_step": done, "mini_step": mini}
        slots["acc_grads"] = jax.tree.map(
            lambda x: x / jnp.maximum(mini, 1).astype(x.dtype), slots.pop("gradient_accumulator")
        )
    return slots


def _options(tx: Any) -> tuple[int | None, bool]:
    """Return how many calls make a step, if gradients accumulate, and if there is an average."""
    parts = list(all_parts(tx))
    periods = [part.every_k_schedule for part in parts if isinstance(part, MultiSteps)]
    steps = [k for k in periods if isinstance(k, int)]
    averages = any(isinstance(part, overwriting_average) for part in parts)
    return steps[0] if len(steps) == 1 else None, averages

"""Mistakes that leave all numbers right and cost a step its speed."""

import functools
from collections.abc import Callable
from typing import Any

from jax.custom_batching import custom_vmap

from gradxform.errors import name_of
from gradxform.types import Array


def require_alike(part: Any, decision: Array) -> Array:
    """Return what decides whether replicas exchange, after a check that no `vmap` batches it.

    Under `vmap`, a `lax.cond` whose predicate is batched computes both branches and selects: each
    step would pay for an exchange. It leaves no operation in the compiled program.

    Args:
      part: the wrapper.
      decision: a scalar that is computed from its `schedule_step`.

    Raises:
      ValueError: where a `vmap`, of whatever axis, batches it; also when a program that was traced
        before is batched.
    """
    return _trap_for_vmap(name_of(part))(decision)


@functools.cache
def _trap_for_vmap(name: str) -> Callable[[Array], Array]:
    def unchanged(decision: Array) -> Array:
        return decision

    def refuse(axis_size: int, in_batched: list[bool], decision: Array) -> Any:
        raise ValueError(
            f"{name}: a jax.vmap over {axis_size} elements batches the schedule_step of its state. "
            "Every step would then exchange, whatever the period: a lax.cond with a batched "
            "predicate computes both branches. Keep schedule_step once for all elements: None in "
            "in_axes and out_axes for every leaf whose spec in gradxform.distributed.state_specs "
            "is P(), as Replicas(mode='vmap') does. Or call update with sync=True or sync=False."
        )

    checked = custom_vmap(unchanged)
    checked.def_vmap(refuse)
    return checked

"""Dropping gradients whose computation began too long ago."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import check_transform, transform
from gradxform.engine import merged_rows
from gradxform.leaves.states import check_state
from gradxform.numerics import as_step, safe_increment
from gradxform.slots import zero_count
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, NonNegativeInt, OptState, Params, Updates
from gradxform.wrappers.checks import Guard, check
from gradxform.wrappers.update_when import update_when


class DropStaleState(NamedTuple):
    """State of `drop_stale`. All of it is per replica where replicas differ in `grad_step`."""

    inner: Any  # the inner state; it has seen only the fresh gradients
    global_step: Array  # int32 scalar; steps taken
    stale_counter: Array  # int32 scalar; gradients dropped


@transform
class drop_stale(Guard):
    """Drop a gradient whose computation began more than `staleness` steps ago.

    Update rule, with s the number of steps taken and t the step at which the gradient was begun:

        if s - t <= staleness:  u = inner(g);  s <- s + 1
        else:                   u = 0, the inner state stays, and stale_counter counts it

    Use it for gradients that arrive from elsewhere together with the step at which they were begun:
    from a queue, or from other processes (`gradxform.distributed.center`). It does not name an axis
    and does not exchange anything. Around a part that exchanges, all replicas drop a gradient that
    is stale on one of them (`sync_replicas` uses the others').

    Args:
      inner: the optimizer.
      staleness: how many steps old a gradient may be, at least 0.

    Raises:
      TypeError: at update, if `grad_step` is missing or not an integer scalar.

    Reference: `tf.contrib.opt.DropStaleGradientOptimizer`.
    """

    inner: Any
    staleness: NonNegativeInt

    handles_rows = True
    holds = (("inner", "inner"),)
    step_fields = ("global_step",)
    locality = "tree"  # one number decides for the whole tree

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")

    def flags(self, state: DropStaleState, extra: dict[str, Any], sizes: Any) -> tuple[Array, ...]:
        """Return whether the gradient is fresh."""
        began = as_step(self, "grad_step", extra["grad_step"])
        return (state.global_step - began <= self.staleness,)

    def inner_extra(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the others than its own."""
        return {name: x for name, x in extra.items() if name != "grad_step"}

    def init(self, params):
        """Return the inner state and counts of 0."""
        return DropStaleState(self.inner.init(params), zero_count(), zero_count())

    def update(self, updates, state, params=None, *, grad_step, **extra):
        """Return the inner updates for a fresh gradient, and zeros for a stale one."""
        check_state(self, state, DropStaleState)
        updates = merged_rows(updates)
        checks = check(self, updates, state, params, extra | {"grad_step": grad_step})
        ((fresh,), *_) = checks.flags
        inputs = updates, state.inner, params, extra
        out, inner = update_when(self, self.inner, fresh, *inputs, zeros=True, found=checks.inside)
        return out, DropStaleState(
            inner,
            jnp.where(fresh, safe_increment(state.global_step), state.global_step),
            jnp.where(fresh, state.stale_counter, safe_increment(state.stale_counter)),
        )

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Any
    ) -> tuple[Params, DropStaleState]:
        """Return the new parameters and the new state."""
        updates, state = self.update(grads, state, params, **extra)
        return apply_updates(params, updates), state

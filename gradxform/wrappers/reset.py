"""Resetting the state of a transform from time to time."""

from typing import Any, NamedTuple

import jax

from gradxform import engine
from gradxform.base import Transform, call_update, check_transform, transform
from gradxform.errors import name_of
from gradxform.leaves import require_params
from gradxform.leaves.states import check_state
from gradxform.leaves.storage import begun_anew, is_stored
from gradxform.numerics import safe_increment
from gradxform.slots import zero_count
from gradxform.tree.params_in_state import map_params
from gradxform.types import Array, PositiveInt
from gradxform.wrappers.parts import all_parts, at_least


class ResetStateState(NamedTuple):
    """State of `reset_state`."""

    count: Array  # int32 scalar; the number of updates so far
    inner_state: Any  # the inner state


@transform
class reset_state(Transform):
    """Begin the state of a transform anew every few steps, as SPAM does with Adam's moments.

    Before every step t = 1, 2, ... that `every` divides, the inner state becomes what `init`
    returns for the parameters. Without `counts`, only the slots begin anew, which are like the
    parameters, and counts of steps go on.

    A schedule in the inner transform begins anew too, with `counts`: put learning rates and weight
    decay after this part of a chain.

    Of its own kind: it changes the inner state, not the steps.

    Args:
      inner: the transform.
      every: the number of steps from one reset to the next, at least 1.
      counts: whether counts of steps, and all else that is not like the parameters, begin anew too.

    Raises:
      ValueError: if a part of it averages parameters or exchanges with other devices; at update, if
        no parameters are given.

    Reference: Huang et al., SPAM: Spike-Aware Adam with Momentum Reset for Stable LLM Training,
    2025, without counts; Huang et al., Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit
    Adam, 2025, with counts.
    """

    inner: Any
    every: PositiveInt = 500
    counts: bool = True

    State = ResetStateState
    holds = (("inner", "inner_state"),)
    why_no_rows = "resets whole slots"
    needs_params = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        for part in all_parts(self.inner):
            if getattr(part, "records_params", False) or getattr(part, "exchanges", ()):
                raise ValueError(
                    f"{name_of(self)}: what {name_of(part)} keeps would begin anew with the rest. "
                    f"Put it around: {name_of(part)}({name_of(self)}(...), ...)."
                )

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return at_least("entry", self.inner)

    def init(self, params):
        """Return a count of 0 and the inner state."""
        return ResetStateState(zero_count(), self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        """Return the updates of the inner transform."""
        check_state(self, state, ResetStateState)
        require_params(self, params)
        count = safe_increment(state.count)
        due, old = count % self.every == 0, state.inner_state
        fresh = self.inner.init(params)
        if not self.counts:
            are_slots = map_params(
                self.inner, lambda _: True, old, transform_non_params=lambda _: False
            )
            kept, structure = jax.tree.flatten(old, is_leaf=is_stored)
            marks, new = (jax.tree.leaves(x, is_leaf=is_stored) for x in (are_slots, fresh))
            each = zip(marks, new, kept, strict=True)  # a stored slot is a form of marks
            fresh = jax.tree.unflatten(structure, [x if mark else y for mark, x, y in each])
        inner_state = begun_anew(due, fresh, old)
        us, inner_state = call_update(self.inner, updates, inner_state, params, extra)
        if self.locality == "entry":
            us = engine.with_slots(us, inner_state)
        return us, ResetStateState(count, inner_state)

"""Steps counted by the caller."""

from typing import Any

import jax.numpy as jnp

from gradxform.base import call_update, transform
from gradxform.errors import name_of
from gradxform.numerics import as_step, cast
from gradxform.types import Array, NonNegativeInt, OptState
from gradxform.wrappers.parts import StatelessWrapper


@transform
class external_step(StatelessWrapper):
    """Set the step count of the inner transform from the extra argument `step` of `update`.

    `step` is the number of earlier updates, 0 at the first: what TensorFlow calls the global step.
    Every `count` in the inner state (of a schedule, a bias correction, ...) is set to it before
    the inner update. Without `step` the inner transform counts its own updates, as always. The
    state is the inner state.

    Only wrap parts that should follow that step: a bias correction whose step is far ahead of its
    moments corrects too little.

    Args:
      inner: a transform, or a chain.
      at: a fixed step of at least 0 for every update, which takes precedence over `step`. Defaults
        to none.

    Raises:
      TypeError: at update, if `step` is not an integer.
      ValueError: at init, if the inner state does not have a count.
    """

    inner: Any
    at: NonNegativeInt | None = None

    def init(self, params):
        """Return the inner state."""
        state = self.inner.init(params)
        if not _has_own_count(state):
            raise ValueError(
                f"{name_of(self)}: {name_of(self.inner)} has no count in its state; leave it "
                "outside."
            )
        return state

    def update(self, updates, state, params=None, *, step=None, **extra):
        """Update the inner transform at that step."""
        if step is not None:
            step = as_step(self, "step", step)
            extra = extra | {"step": step}
        count = step if self.at is None else jnp.asarray(self.at, jnp.int32)
        if count is not None:
            state = with_counts(state, count)
        return call_update(self.inner, updates, state, params, extra)


def _has_own_count(state: OptState) -> bool:
    if isinstance(state, dict):
        return any(map(_has_own_count, state.values()))
    if isinstance(state, tuple | list):
        return "count" in getattr(state, "_fields", ()) or any(map(_has_own_count, state))
    return False


def with_counts(state: OptState, step: Array) -> OptState:
    """Return the state with every `count` of its NamedTuples set to `step`."""
    if isinstance(state, dict):
        return type(state)((k, with_counts(v, step)) for k, v in state.items())
    names = getattr(state, "_fields", None)
    if names is not None:
        fields = {k: with_counts(v, step) for k, v in zip(names, state, strict=True)}
        if "count" in fields:
            fields["count"] = cast(step, fields["count"].dtype)
        return type(state)(**fields)
    if isinstance(state, tuple | list):
        return type(state)(with_counts(v, step) for v in state)
    return state

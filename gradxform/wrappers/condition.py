"""Transforms that run at steps that a function of the caller chooses."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gradxform import engine
from gradxform._names.deferred import signature_of
from gradxform.base import check_transform, locality_of, transform
from gradxform.errors import name_of
from gradxform.leaves.states import check_state
from gradxform.numerics import as_flag, safe_increment
from gradxform.slots import zero_count
from gradxform.types import Array, Params, Updates
from gradxform.wrappers.changed_steps import told_change
from gradxform.wrappers.checks import Guard, check
from gradxform.wrappers.guard import zero_unless
from gradxform.wrappers.parts import check_movable
from gradxform.wrappers.update_when import update_when


class _Condition(Guard):
    """Base of the two wrappers: their fields, the decision, and the update that depends on it."""

    inner: Any
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        if self.forward_extra_args:
            return
        try:
            signature_of(self.should_transform_fn).bind(None)
        except TypeError as error:
            raise TypeError(
                f"{name_of(self)}: should_transform_fn is called with the step alone: {error}. "
                "With forward_extra_args=True it gets the extra arguments of the update too."
            ) from None
        except ValueError:  # a function of C may not have a signature
            pass

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return locality_of(self.inner)

    def extra_names(self) -> frozenset[str] | None:
        """Return the names that the inner transform takes; None if the condition sees them all."""
        return None if self.forward_extra_args else super().extra_names()

    @property
    def flags_vary(self) -> bool:
        """Whether the condition sees more than the number of the step."""
        return self.forward_extra_args

    def flags(self, state: Any, extra: dict[str, Any], sizes: Any) -> tuple[Array, ...]:
        """Return whether the condition holds."""
        forwarded = extra if self.forward_extra_args else {}
        flag = self.should_transform_fn(state.step, **forwarded)
        return (as_flag(self, "the result of should_transform_fn", flag),)

    def _run_inner(
        self,
        updates: Updates,
        state: Any,
        params: Params | None,
        extra: dict[str, Any],
        *,
        zeros: bool = False,
    ) -> tuple[Array, Updates, Any]:
        """Return whether the condition holds, the updates of `update_when`, and the new state."""
        findings = check(self, updates, state, params, extra)
        ((flag,), *_) = findings.flags
        arguments = updates, state.inner_state, params, extra
        updates, inner_state = update_when(
            self, self.inner, flag, *arguments, zeros=zeros, found=findings.inside
        )
        step = safe_increment(state.step)
        return flag, updates, state._replace(inner_state=inner_state, step=step)


class ConditionallyTransformState(NamedTuple):
    """State of `conditionally_transform`."""

    inner_state: Any  # the inner state; only steps on which it runs change it
    step: Array  # int32 scalar; the number of updates so far


@transform
class conditionally_transform(_Condition):
    """Run a transform at some steps only; at the others the updates pass unchanged.

    At the other steps the inner transform does not run, and its state stays as it is. The updates
    keep their dtypes. `conditionally_mask` gives zeros instead.

    Around a part that communicates between replicas, such as `distributed.tower`, it runs where the
    condition holds on all of them.

    Args:
      inner: the transform.
      should_transform_fn: a function of the number of earlier updates, an int32 scalar, that
        returns True or False, or a boolean scalar.
      forward_extra_args: whether the function also gets all extra arguments of the update, by name.

    Raises:
      TypeError: at update, if the function returns anything else.
    """

    inner: Any
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    why_no_rows = "returns either the rows of the gradient or what its inner part makes of them"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_movable(self, self.inner)

    def init(self, params):
        """Return the inner state and a count of 0."""
        return ConditionallyTransformState(self.inner.init(params), zero_count())

    def update(self, updates, state, params=None, **extra):
        """Run the inner update if the condition holds."""
        check_state(self, state, ConditionallyTransformState)
        flag, new, state = self._run_inner(updates, state, params, extra)
        # Updates that pass move the parameters, and the inner transform has not taken that step.
        inner_updates = zero_unless(flag, new)
        inner_state = told_change(self.inner, state.inner_state, params, inner_updates, new)
        return new, state._replace(inner_state=inner_state)


class ConditionallyMaskState(NamedTuple):
    """State of `conditionally_mask`."""

    step: Array  # int32 scalar; the number of updates so far
    inner_state: Any  # the inner state; only steps on which it runs change it


@transform
class conditionally_mask(_Condition):
    """Run a transform at some steps only; at the others the updates are zeros.

    At the other steps the inner transform does not run, and its state stays as it is. A NaN in the
    updates of such a step becomes 0 too. `conditionally_transform` passes them on unchanged.

    Around a part that communicates between replicas, such as `distributed.tower`, it runs where the
    condition holds on all of them.

    Args:
      inner: the transform.
      should_transform_fn: a function of the number of earlier updates, an int32 scalar, that
        returns True or False, or a boolean scalar.
      forward_extra_args: whether the function also gets all extra arguments of the update, by name.

    Raises:
      TypeError: at update, if the function returns anything else.
    """

    inner: Any
    should_transform_fn: Callable[..., Any]
    forward_extra_args: bool = False

    handles_rows = True

    def init(self, params):
        """Return a count of 0 and the inner state."""
        return ConditionallyMaskState(zero_count(), self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        """Run the inner update if the condition holds."""
        check_state(self, state, ConditionallyMaskState)
        _, updates, state = self._run_inner(
            engine.merged_rows(updates), state, params, extra, zeros=True
        )
        return updates, state

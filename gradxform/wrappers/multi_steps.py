"""One step of an optimizer from several micro-batches, as Optax has it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform._names.deferred import signature_of
from gradxform.base import Transform, check_transform, locality_of, transform
from gradxform.errors import name_of, require_at_least, shown
from gradxform.leaves import align_params, align_slot, check_shapes, dtype_of
from gradxform.leaves.states import check_state
from gradxform.numerics import safe_increment, scalar
from gradxform.slots import zero_count, zeros_like
from gradxform.types import Array, DType, Params, Slot, Updates
from gradxform.wrappers.accumulation.accumulate import (
    period_at,
    running_mean,
    running_sum,
    step_or_total,
)
from gradxform.wrappers.agree import agreed_flags
from gradxform.wrappers.changed_steps import check_overflows_reach
from gradxform.wrappers.update_when import check_exact, update_when


class MultiStepsState(NamedTuple):
    """State of `MultiSteps`."""

    mini_step: Array  # int32 scalar; micro-batches in the accumulator
    gradient_step: Array  # int32 scalar; steps of the inner optimizer so far
    inner_opt_state: Any  # the inner optimizer's state
    acc_grads: Slot  # like params, in accumulator_dtype; the mean (or sum) of the micro-batches
    skip_state: Any = ()  # what should_skip_update_fn returned second for the last micro-batch


@transform
class MultiSteps(Transform):
    """Take one step of an optimizer every k micro-batches, with their mean gradient.

    Between steps the updates are zeros and the optimizer does not run. It gets the mean in float32
    or wider. After each step the accumulator is emptied by selection, so that a NaN in one
    micro-batch affects at most the step it belongs to. With `skip_not_finite` it affects no step,
    and `MultiSteps(apply_if_finite(opt, n), k)` drops the whole step.

    `accumulate` weighs micro-batches, and keeps steps where they are if some are left out.

    In a donated, jitted step the inner state is updated in place, without a second copy of the
    gradients.

    Around a part that communicates between replicas, such as `distributed.tower`, all replicas skip
    a micro-batch that one of them must skip.

    Of its own kind: its state is Optax's, with a mean of micro-batches; `accumulate` is a `Guard`.

    Args:
      opt: the optimizer.
      every_k_schedule: k, at least 1, or a function of the inner optimizer's step that returns it.
      use_grad_mean: whether the optimizer sees the mean of the micro-batches, else their sum.
      should_skip_update_fn: a function `(updates, gradient_step, params) -> (skip, skip_state)`,
        such as `skip_not_finite`; a micro-batch for which `skip` is true is left out.
      accumulator_dtype: the dtype of the accumulator. Defaults to the parameter's, or float32 for
        16-bit ones.

    Raises:
      TypeError: at init and update, if `should_skip_update_fn` does not return a pair, or if the
        first of the pair is a Python number.
      ValueError: if the first of the pair is an array other than a boolean scalar.
    """

    opt: Any
    every_k_schedule: int | Callable[..., Any]
    use_grad_mean: bool = True
    should_skip_update_fn: Callable[..., Any] | None = None
    accumulator_dtype: DType = None

    why_no_rows = "adds gradients up in arrays (accumulate_rows has a buffer)"
    holds = (("opt", "inner_opt_state"),)
    step_fields = ("gradient_step",)
    counts_inner_steps = True
    zeros_unless = "mini_step"

    def __post_init__(self) -> None:
        check_transform(self, self.opt, "opt")
        require_at_least(self, 1, "every_k_schedule")
        if self.should_skip_update_fn is not None:
            check_overflows_reach(self, self.opt)
            try:
                signature_of(self.should_skip_update_fn).bind(None, None, None)
            except TypeError as error:
                raise TypeError(
                    f"{name_of(self)}: should_skip_update_fn is called with (updates, "
                    f"gradient_step, params): {error}. Give what else it needs with "
                    "functools.partial."
                ) from None

    @property
    def locality(self) -> str:
        """How far the optimizer looks; "tree" if micro-batches can be skipped."""
        return locality_of(self.opt) if self.should_skip_update_fn is None else "tree"

    @property
    def inner_opt(self) -> Any:
        """The optimizer."""
        return self.opt

    def gradient_transformation(self) -> "MultiSteps":
        """Return this transform itself."""
        return self

    def has_updated(self, state: MultiStepsState) -> Array:
        """Return whether the last update was a step of the optimizer."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def init(self, params):
        """Return an empty accumulator and the optimizer's state."""
        step = zero_count()
        acc = zeros_like(params, self.accumulator_dtype)
        skip_state: Any = ()
        if self.should_skip_update_fn is not None:
            _, skip_state = self._skip(jax.tree.map(jnp.zeros_like, params), step, params)
        return MultiStepsState(
            mini_step=zero_count(),
            gradient_step=step,
            inner_opt_state=self.opt.init(params),
            acc_grads=acc,
            skip_state=skip_state,
        )

    def _skip(
        self, updates: Updates, step: Array, params: Params | None
    ) -> tuple[Array | None, Any]:
        if self.should_skip_update_fn is None:
            return None, ()
        decision = self.should_skip_update_fn(updates, step, params)
        if not isinstance(decision, tuple | list) or len(decision) != 2:
            raise TypeError(
                f"{name_of(self)}: should_skip_update_fn must return (skip, skip_state), got "
                f"{shown(decision)}."
            )
        skip, skip_state = decision
        if jnp.shape(skip) != () or dtype_of(skip) != jnp.bool_:
            raise (TypeError if isinstance(skip, int | float) else ValueError)(
                f"{name_of(self)}: should_skip_update_fn must return a boolean scalar first, got "
                f"dtype {dtype_of(skip)} and shape {jnp.shape(skip)}."
            )
        return skip, skip_state

    def update(self, updates, state, params=None, **extra):
        """Accumulate, and take a step if it is due."""
        check_state(self, state, MultiStepsState)
        check_exact(self, self.opt, updates)
        k = period_at(self, "every_k_schedule", state.gradient_step)
        skip, skip_state = self._skip(updates, state.gradient_step, params)

        gs, treedef = jax.tree.flatten(updates)
        gs = [jnp.asarray(g) for g in gs]
        accs = align_slot(self, updates, treedef, state, "acc_grads")
        if params is not None:
            align_params(self, updates, treedef, params)
        check_shapes(self, updates, accs.leaves, "the state's acc_grads has")
        add = running_mean if self.use_grad_mean else running_sum
        weight = 1.0 / scalar(state.mini_step + 1)
        inner = state.inner_opt_state
        due = state.mini_step >= k - 1
        if skip is None:
            (due,) = agreed_flags(self.opt, (due,), updates, inner, params, extra)
        else:
            # One replica that skips makes all skip, and a skipped micro-batch does not end a step.
            due, counts = agreed_flags(self.opt, (due, ~skip), updates, inner, params, extra)
            due, skip = due & counts, ~counts
        means = engine.map_rows(add, [gs, accs.leaves], weight, skip)
        mean = jax.tree.unflatten(treedef, means)
        out, inner_state = update_when(self, self.opt, due, mean, inner, params, extra)
        pairs = engine.map_rows(step_or_total, [jax.tree.leaves(out), gs, accs.leaves], due)
        mini_step = jnp.where(due, 0, safe_increment(state.mini_step))
        return jax.tree.unflatten(treedef, [u for u, _ in pairs]), state._replace(
            mini_step=mini_step if skip is None else jnp.where(skip, state.mini_step, mini_step),
            gradient_step=jnp.where(due, safe_increment(state.gradient_step), state.gradient_step),
            inner_opt_state=inner_state,
            acc_grads=accs.rebuilt([acc for _, acc in pairs]),
            skip_state=skip_state,
        )

"""One step of an optimizer from several micro-batches."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import engine
from gradxform._jax.versions import is_tracer
from gradxform.base import call_update, check_transform, locality_of, transform
from gradxform.base.methods import is_for_replicas
from gradxform.errors import name_of, require_at_least, require_one_of, shown
from gradxform.leaves import align_params, align_slot, check_shapes
from gradxform.leaves.states import check_state
from gradxform.numerics import (
    as_flag,
    as_number,
    cast,
    promote,
    safe_increment,
    scalar,
    scalar_dtype,
)
from gradxform.slots import zero_count, zeros_like
from gradxform.types import Array, Choice, DType, OptState, Params, Schedule, Size, Slot, Updates
from gradxform.wrappers.changed_steps import check_overflows_reach
from gradxform.wrappers.checks import Findings, Guard, check
from gradxform.wrappers.finite import Sizes
from gradxform.wrappers.update_when import check_exact, update_when

REDUCTIONS = ("mean", "sum", "weighted")


# -------------------------------------------------------------- shared with the other accumulators


def running_mean(g: Array, acc: Array, weight: Array, skip: Array | None) -> Array:
    """Return the mean with one more micro-batch; `weight` is its share of the new mean."""
    wide = promote(g.dtype, acc.dtype)
    a, g = cast(acc, wide), cast(g, wide)
    # A skipped gradient is replaced before the arithmetic, so that its derivative is 0, not NaN.
    g = g if skip is None else jnp.where(skip, a, g)
    return a + (g - a) * cast(weight, jnp.finfo(wide).dtype)


def running_sum(g: Array, acc: Array, weight: Array, skip: Array | None) -> Array:
    """Return the sum with one more micro-batch; its weight is 1."""
    wide = promote(g.dtype, acc.dtype)
    g = cast(g, wide)
    return cast(acc, wide) + (g if skip is None else jnp.where(skip, jnp.zeros_like(g), g))


def step_or_total(x: Array, g: Array, acc: Array, due: Array) -> tuple[Array, Array]:
    """Return the update, which is `x` if a step was due, and the accumulator, `x` otherwise.

    The other of the two is zero.
    """
    zero = jnp.zeros_like(x)
    return cast(jnp.where(due, x, zero), g.dtype), cast(jnp.where(due, zero, x), acc.dtype)


def period_at(part: Any, name: str, step: Array) -> Array:
    """Return the number of micro-batches for this step of the inner optimizer, an int32 scalar.

    Args:
      part: the transform.
      name: its field with the number, or a function of the step that returns it.
      step: how many steps the inner optimizer has taken.

    Raises:
      ValueError: if the function does not return an integer of at least 1.
    """
    k: Any = getattr(part, name)
    k = k(step) if callable(k) else k
    valid = isinstance(k, int | float) or getattr(k, "shape", None) == ()
    # True is 1 to Python, but a function that returns it does not mean a number.
    valid = valid and not isinstance(k, bool) and getattr(k, "dtype", None) != np.bool_
    if valid and not is_tracer(k):
        number = np.asarray(k)  # under jit, JAX would trace the comparison even of known arrays
        valid = bool(1 <= number < np.inf) and bool(number == np.floor(number))
        if valid and number >= 2**31:
            raise ValueError(
                f"{name_of(part)}: {name} must return an integer of 32 bits, at most 2**31 - 1, "
                f"got {shown(k)}."
            )
    if not valid:
        raise ValueError(
            f"{name_of(part)}: {name} must return an integer of at least 1, got {shown(k)}."
        )
    return jnp.asarray(k).astype(jnp.int32)


# --------------------------------------------------------------------------------- the accumulator


class AccumulateState(NamedTuple):
    """State of `accumulate`."""

    mini_step: Array  # int32 scalar; micro-batches since the last step was due
    gradient_step: Array  # int32 scalar; steps of the inner optimizer so far
    inner_state: Any  # the inner optimizer's state
    acc_grads: Slot  # like params, in accumulator_dtype; the mean or sum so far; () for every=1
    total_weight: Array  # scalar, at least float32; the weight of what is in the accumulator
    total_skipped: Array  # int32 scalar; micro-batches left out since init


class _Decision(NamedTuple):
    """The decision about a micro-batch, on which all replicas agree."""

    valid: Array | None  # whether its gradient may be used; None where nothing is checked
    some_left_out: bool  # whether the gradients of some micro-batches may not be used
    due: Array  # whether the step is taken
    share: Array  # its part of the new mean; 0 if its gradient is not used
    total: Array  # the weight in the accumulator with it
    findings: Findings  # for the guards with which the inner optimizer begins


@transform
class accumulate(Guard):
    """Take one step of an optimizer every k micro-batches, and leave bad ones out.

    Update rule, with w = 1, or with `reduction="weighted"` w = weight, over the micro-batches of a
    step that are finite:

        u = inner(sum of w g / sum of w)      (with `reduction="sum"`: inner(sum of g))

    Between steps the updates are zeros and the inner optimizer does not run. A micro-batch that
    is left out keeps its place among the k: steps stay where they are, and the others share the
    mean. (`MultiSteps` waits for another micro-batch instead.) A step without any micro-batch, or
    of a total weight of 0, is not taken and not counted. A micro-batch of weight 0 may hold any
    gradient, also NaN, and is not counted as left out. Only entries are checked: a sum of finite
    gradients that overflows needs `apply_if_finite` inside.

    The extra argument `flush` of an update takes the step early, after this micro-batch, from those
    that there are: at the end of an epoch, say. It is True or False, the same on all replicas.

    The accumulator is at least float32, and so is what the optimizer gets. It is updated in place
    in a donated step. With `every=1` the state does not have one.

    Around a part that communicates between replicas, such as `distributed.tower`, all replicas
    leave out a micro-batch that one of them must, and a step is taken if each of them has some
    weight. Such a part weighs replicas equally, whatever their total weights. Inside such a part
    give the same weight to all replicas.

    Args:
      inner: the optimizer.
      every: k, at least 1, or a function of the inner optimizer's step that returns it.
      reduction: "mean", "sum", or "weighted" for a mean by the extra argument `weight` of every
        update: a number of at least 0, such as how many tokens the micro-batch has. An inner part
        that takes `weight` gets their total.
      skip_not_finite: whether a micro-batch with a NaN or an infinity, in its gradient or as its
        weight, or with a negative weight, is left out. Keyword-only.
      accumulator_dtype: the dtype of the accumulator. Defaults to the parameter's, or float32 for
        16-bit ones. Keyword-only.
      differentiable: whether the step branches in every program, which may copy the inner state, as
        it does where it is differentiated; else it loops at most once. Keyword-only.

    Raises:
      TypeError: at update, if `reduction` is "weighted" and `weight` is missing or is not one real
        number, or if `flush` is not True or False.
      ValueError: at update, if `weight` is known to be negative.
    """

    inner: Any
    every: Size | Schedule
    reduction: Choice = "mean"
    skip_not_finite: bool = field(default=True, kw_only=True)
    accumulator_dtype: DType = field(default=None, kw_only=True)
    differentiable: bool = field(default=False, kw_only=True)

    asks_for_sums = True
    why_no_rows = "adds gradients up in arrays (accumulate_rows has a buffer)"
    holds = (("inner", "inner_state"),)
    step_fields = ("gradient_step",)
    counts_inner_steps = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        require_at_least(self, 1, "every")
        require_one_of(self, "reduction", REDUCTIONS)
        if self.skip_not_finite:
            check_overflows_reach(self, self.inner)

    @property
    def zeros_unless(self) -> str | None:
        """The count of micro-batches, where a step takes several."""
        return None if self.every == 1 else "mini_step"

    @property
    def locality(self) -> str:
        """How far the optimizer looks; "tree" if micro-batches can be left out."""
        return "tree" if self.skip_not_finite else locality_of(self.inner)

    @property
    def looks_at_gradients(self) -> bool:
        """Whether micro-batches can be left out."""
        return self.skip_not_finite

    @property
    def passes_gradients(self) -> bool:
        """Whether the optimizer gets each micro-batch by itself."""
        return self.every == 1

    @property
    def flags_vary(self) -> bool:
        """Whether weights may differ."""
        return self.reduction == "weighted"

    def flags(
        self, state: AccumulateState, extra: dict[str, Any], sizes: Sizes | None
    ) -> tuple[Array, ...]:
        """Return whether a step is due: with the micro-batch, and if it may be left out, without.

        With weights also whether the micro-batch is valid, which depends on its weight.
        """
        # What is in the accumulator must have some weight: a mean over nothing is not a step.
        last, before = self._is_last(state, extra.get("flush")), scalar(state.total_weight)
        if self.reduction != "weighted":
            return (last, last & (before > 0)) if self.skip_not_finite else (last,)
        w = self._weight(extra["weight"])
        due = last & (before + w > 0)
        if not self.skip_not_finite:
            return (due,)
        assert sizes is not None, "it looks at gradients"
        valid = (sizes.finite() | (w == 0)) & jnp.isfinite(w) & (w >= 0)
        return due, last & (before > 0), valid

    def _is_last(self, state: AccumulateState, flush: Any) -> Array:
        """Return whether a micro-batch is the last of its step."""
        last = state.mini_step >= period_at(self, "every", state.gradient_step) - 1
        return last if flush is None else last | as_flag(self, "flush", flush)

    def init(self, params):
        """Return an empty accumulator and the optimizer's state."""
        return AccumulateState(
            mini_step=zero_count(),
            gradient_step=zero_count(),
            inner_state=self.inner.init(params),
            acc_grads=() if self.every == 1 else zeros_like(params, self.accumulator_dtype),
            total_weight=jnp.zeros((), scalar_dtype()),
            total_skipped=zero_count(),
        )

    def update(self, updates, state, params=None, *, weight=None, flush=None, **extra):
        """Accumulate, and take a step if it is due, or with `flush`."""
        check_state(self, state, AccumulateState)
        check_exact(self, self.inner, updates)
        w = self._weight(weight)
        if self.reduction != "weighted" and weight is not None:  # an inner part may take it
            extra = extra | {"weight": weight}
        if flush is not None:
            extra = extra | {"flush": flush}  # for accumulators inside, too
        last = self._is_last(state, flush)
        decision = self._decided(w, updates, state, params, extra)
        if self.reduction == "weighted" and not is_for_replicas(self.inner):
            extra = extra | {"weight": decision.total}
        step = self._stepped_alone if self.every == 1 else self._stepped
        out, inner_state, acc_grads = step(decision, updates, state, params, extra)
        skipped = state.total_skipped
        if decision.valid is not None:
            skipped = jnp.where(decision.valid, skipped, safe_increment(skipped))
        total, dtype = decision.total, state.total_weight.dtype
        next_step = safe_increment(state.gradient_step)
        return out, state._replace(
            mini_step=jnp.where(last, 0, safe_increment(state.mini_step)),
            gradient_step=jnp.where(decision.due, next_step, state.gradient_step),
            inner_state=inner_state,
            acc_grads=acc_grads,
            total_weight=cast(jnp.where(last, jnp.zeros_like(total), total), dtype),
            total_skipped=skipped,
        )

    def _weight(self, weight: Any) -> Array:
        if self.reduction != "weighted":
            return scalar(1)
        if weight is None:
            raise TypeError(
                f"{name_of(self)}: needs the extra argument 'weight' for reduction='weighted'; "
                "call update(updates, state, params, weight=...)."
            )
        w = as_number(self, "weight", weight)
        # NumPy compares: under jit, JAX would trace the comparison even of a known weight.
        if not is_tracer(weight) and np.asarray(weight) < 0:
            raise ValueError(f"{name_of(self)}: weight must be at least 0, got {shown(weight)}.")
        return w

    def _decided(
        self,
        w: Array,
        updates: Updates,
        state: AccumulateState,
        params: Params | None,
        extra: dict[str, Any],
    ) -> _Decision:
        """Decide about a micro-batch of weight `w`, together with all replicas."""
        weighted, before = self.reduction == "weighted", scalar(state.total_weight)
        extra = extra | {"weight": w} if weighted else extra
        findings = check(self, updates, state, params, extra)
        valid, flags = None, findings.flags[0]
        due = flags[0]
        if self.skip_not_finite:
            with_it, without_it = flags[:2]
            valid = flags[2] if weighted else findings.finite
            due = jnp.where(valid, with_it, without_it)
            # XLA turns a small branch into selections, and would compute the conjunction over all
            # leaves anew for each of them. It computes a root once.
            due = jnp.sqrt(scalar(due)) > 0 if self.differentiable else due
            w = jnp.where(valid, w, jnp.zeros_like(w))
        total = before + w
        # A weight of 0 in all is a share of 0, not 0 / 0.
        share = w / jnp.where(total == 0, 1, total)
        some_left_out = self.skip_not_finite or weighted
        return _Decision(valid, some_left_out, due, share, total, findings.inside)

    def _stepped_alone(
        self,
        decision: _Decision,
        updates: Updates,
        state: AccumulateState,
        params: Params | None,
        extra: dict[str, Any],
    ) -> tuple[Updates, OptState, Any]:
        """Return the step from one micro-batch: its updates, the inner state, no accumulator."""
        if jax.tree.leaves(state.acc_grads):
            raise ValueError(
                f"{name_of(self)}: every is 1, and the state has an accumulator. Was this state "
                "made with another `every`?"
            )
        inner = self.inner, updates, state.inner_state, params, extra
        if not decision.some_left_out:
            return *call_update(*inner), state.acc_grads
        out, inner_state = update_when(
            self, self.inner, decision.due, *inner[1:], zeros=True, found=decision.findings
        )
        return out, inner_state, state.acc_grads

    def _stepped(
        self,
        decision: _Decision,
        updates: Updates,
        state: AccumulateState,
        params: Params | None,
        extra: dict[str, Any],
    ) -> tuple[Updates, OptState, Any]:
        """Return updates, inner state and accumulator after one of several micro-batches."""
        gs, treedef = jax.tree.flatten(updates)
        gs = [jnp.asarray(g) for g in gs]
        accs = align_slot(self, updates, treedef, state, "acc_grads")
        if params is not None:
            align_params(self, updates, treedef, params)
        check_shapes(self, updates, accs.leaves, "the state's acc_grads has")
        add = running_sum if self.reduction == "sum" else running_mean
        # A valid micro-batch of weight 0 is left out too: 0 x NaN is NaN. The share decides: XLA
        # computes a division once. It would compute `valid`, a conjunction over all leaves, anew
        # for every leaf, and the program would grow with the square of their number.
        skip = decision.share == 0 if decision.some_left_out else None
        totals = engine.map_rows(add, [gs, accs.leaves], decision.share, skip)
        out, inner_state = update_when(
            self,
            self.inner,
            decision.due,
            jax.tree.unflatten(treedef, totals),
            state.inner_state,
            params,
            extra,
            differentiable=self.differentiable,
        )
        pairs = engine.map_rows(
            step_or_total, [jax.tree.leaves(out), gs, accs.leaves], decision.due
        )
        acc_grads = accs.rebuilt([acc for _, acc in pairs])
        return jax.tree.unflatten(treedef, [u for u, _ in pairs]), inner_state, acc_grads

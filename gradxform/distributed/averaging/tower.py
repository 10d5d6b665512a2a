"""Replicas that step together on the mean or sum of their gradients: data parallelism."""

import abc
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._jax.versions import is_tracer
from gradxform.base import Transform, call_update, check_transform, extra_names, transform
from gradxform.distributed.wire import narrow
from gradxform.distributed.wire.axis import (
    Axes,
    as_varying,
    axes_argument,
    axis_names,
    check_axis_name,
    check_bound,
    require_local,
    size_of,
    varies_along,
    widen,
)
from gradxform.distributed.wire.feedback import check_sending, first_feedback, summed_with_feedback
from gradxform.errors import must_be, name_of, require_choice, require_one_of, shown
from gradxform.leaves import dtype_of, flatten_updates
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import as_number, cast
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, Choice, DType, OptState, Params, PyTree, Updates

__all__ = [
    "scale_loss",
    "tower",
    "TowerState",
]

REDUCTIONS = ("mean", "sum")


def scale_loss(loss: Array, axis: Axes, reduction: str = "mean") -> Array:
    """Return the loss of one tower scaled as in TensorFlow: divided by the number of towers.

    Use it if you sum the gradients yourself, or with `tower(..., reduction="sum")`.

    Args:
      loss: this replica's loss.
      axis: the name of the axis, or several.
      reduction: "mean" divides, "sum" does not.

    Raises:
      TypeError, ValueError: if `axis` or `reduction` is something else.
    """
    require_choice("scale_loss", "reduction", reduction, REDUCTIONS)
    names = axes_argument("scale_loss", "axis", axis)
    return loss / size_of(names) if reduction == "mean" else loss


class Synchronous(Transform, abc.ABC):
    """A wrapper under which all replicas take the same steps.

    Of its own kind: it exchanges gradients with devices before the inner step.
    """

    inner: Any
    axis: Any  # a name, or a tuple of names
    reduction: str
    wire_dtype: Any
    compress: Any

    locality = "tree"
    handles_rows = True
    holds = (("inner", "inner"),)

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axis, as a tuple of names."""
        return axis_names(self.axis)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        check_axis_name(self)
        require_one_of(self, "reduction", REDUCTIONS)
        check_sending(self)

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Any
    ) -> tuple[Params, OptState]:
        """Return the new parameters and the new state."""
        updates, state = self.update(grads, state, params, **extra)
        return apply_updates(params, updates), state


class TowerState(NamedTuple):
    """State of `tower`."""

    inner: Any  # the inner state; the same on all replicas
    feedback: Any = None  # with `compress`: what is still to be sent, per replica; or None


@transform
class tower(Synchronous):
    """Step on the mean (or sum) of all replicas' gradients: plain data parallelism.

    Update rule: u = inner((1/N) sum_j g_j), or inner(sum_j g_j). With the extra argument `weight`
    of an update, a number w_j of each replica such as the examples in its batch:

        u = inner(sum_j w_j g_j / sum_j w_j)            (reduction "sum": inner(sum_j w_j g_j))

    A replica of weight 0 does not count, even if its gradient is NaN. If all weights are 0, the
    mean is 0. A part inside that takes a `weight`, as `accumulate(..., "weighted")` does, gets it
    instead, and the mean over replicas is the plain one.

    All replicas take the same step, so their parameters and states stay equal. Gradients are summed
    in float32 or wider. Row-sparse gradients are concatenated: only their rows are communicated.

    Args:
      inner: the optimizer, ours or Optax's.
      axis: the name of the axis of replicas, or several.
      reduction: "mean" or "sum". Keyword-only.
      reduced: how to treat gradients that are already summed over the replicas, as `shard_map` does
        for replicated parameters. "error" refuses them. "sum" takes them as the sum of the
        replicas' gradients, which is right if each replica differentiated its own loss. "mean"
        takes them as the mean, which is right if the loss was a `pmean`. Keyword-only.
      wire_dtype: the dtype in which gradients travel; they are summed in float32. Defaults to that
        of each gradient. Keyword-only.
      compress: a compression such as `int8()`, `sign()`, `top_k(0.01)` or `powersgd(4)`, for what
        travels. What it rounds away is sent later. Keyword-only.

    Raises:
      ValueError: if both `wire_dtype` and `compress` are given, or `compress` with `reduced`; at
        init, if `wire_dtype` is wider than a parameter.
      AlreadyReducedError: at update, for gradients that are already summed, if reduced="error".
      NameError: at update, where the axis is not bound.

    Reference: `tf.contrib.estimator.TowerOptimizer`.
    """

    inner: Any
    axis: str | tuple[str, ...]
    reduction: Choice = field(default="mean", kw_only=True)
    reduced: Choice = field(default="error", kw_only=True)
    wire_dtype: DType = field(default=None, kw_only=True)
    compress: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "reduced", ("error", *REDUCTIONS))
        if self.compress is not None and self.reduced != "error":
            raise ValueError(
                f"{name_of(self)}: compress needs each replica's own gradients, which "
                f"reduced={self.reduced!r} does not; leave it out, and see local_view."
            )

    def init(self, params):
        """Return the inner state, and nothing that is still to be sent."""
        return TowerState(self.inner.init(params), first_feedback(self, params, self.axis))

    def update(
        self,
        updates,
        state,
        params=None,
        *,
        experimental_aggregate_gradients=True,
        weight=None,
        **extra,
    ):
        """Return the inner updates of the reduced gradient.

        With `experimental_aggregate_gradients=False`, as in Keras's `apply_gradients`, the caller
        has reduced the gradient: every replica passes the same one. `weight` is this replica's, a
        real scalar of at least 0; by default all weigh the same.
        """
        check_state(self, state, TowerState)
        check_bound(self, self.axis)
        if not isinstance(experimental_aggregate_gradients, bool):
            flag = experimental_aggregate_gradients
            raise TypeError(
                must_be(self, "experimental_aggregate_gradients", "True or False", flag)
            )
        weight, extra = left_to_inner_weight(self.inner, weight, extra)
        if weight is not None and (self.reduced != "error" or not experimental_aggregate_gradients):
            raise TypeError(
                f"{name_of(self)}: weight needs each replica's own gradients, and these are "
                "reduced already; leave it out, or weigh them where they are summed."
            )
        if experimental_aggregate_gradients:
            if self.reduced == "error":
                require_local(self, updates, self.axis)
            grads, feedback = self._reduced(updates, state, weight)
        else:
            grads, feedback = updates, state.feedback
            extra["experimental_aggregate_gradients"] = False
        grads = as_varying_like(grads, (state.inner, params), self.axis)
        updates, inner = call_update(self.inner, grads, state.inner, params, extra)
        return updates, TowerState(inner, feedback)

    def _reduced(self, updates: Updates, state: TowerState, weight: Any) -> tuple[Updates, Any]:
        """Return the mean (or sum) of all replicas' gradients, and what is still to be sent."""
        gs, treedef = flatten_updates(updates)
        divisor, ok = size_of(self.axis) if self.reduction == "mean" else 1, True
        if weight is not None:
            weight = checked_weight(self, weight)
            ok, divisor = weight > 0, 1
            share = share_of_weight(weight, self.axis) if self.reduction == "mean" else weight
            gs = [weighed(g, share, ok) for g in gs]
        summands = [
            None if isinstance(g, RowSparse) or not varies_along(g, self.axis) else g for g in gs
        ]
        dtypes = [dtype_of(g) for g in gs]
        totals, feedback = summed_with_feedback(
            self, updates, summands, dtypes, state.feedback, ok=ok, divisor=divisor
        )
        pairs = zip(gs, totals, strict=True)
        out = [self._as_reduced(g, divisor) if x is None else cast(x, g.dtype) for g, x in pairs]
        return jax.tree.unflatten(treedef, out), feedback

    def _as_reduced(self, g: Any, divisor: int) -> Any:
        """Return the mean (or sum) of row-sparse gradients, or of gradients already reduced."""
        if isinstance(g, RowSparse):
            return slices_of_replicas(g, self.axis, self.wire_dtype) / divisor
        wide = widen(g)
        divided_by = size_of(self.axis) if self.reduced == "mean" else 1
        return cast(wide * jnp.asarray(divided_by / divisor, wide.dtype), g.dtype)


def left_to_inner_weight(
    inner: Any, weight: Any, extra: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the weight and the other arguments; a part inside that takes a weight gets it."""
    if weight is None or "weight" not in (extra_names(inner) or ()):
        return weight, extra
    return None, extra | {"weight": weight}


def checked_weight(part: Any, weight: Any) -> Array:
    """Return a replica's weight, a real scalar in float32 or wider.

    Raises:
      ValueError: if it is known, and negative or not finite.
    """
    number = as_number(part, "weight", weight)
    if not is_tracer(number) and not 0 <= float(number) < np.inf:
        raise ValueError(f"{name_of(part)}: weight must be at least 0, got {shown(weight)}.")
    return widen(number)


def share_of_weight(weight: Array, axis: Axes) -> Array:
    """Return the share that a weight has in those of all replicas; 0 if all weights are 0."""
    total = lax.psum(as_varying(weight, axis), axis_names(axis))
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1), 0)


def weighed(g: Any, share: Array, ok: Array) -> Any:
    """Return a replica's gradient times a number, and 0 where it does not count.

    Shares travel, not products with weights, which may be too large for a gradient of few bits.
    """
    if isinstance(g, RowSparse):
        return g.with_values(weighed(g.values, share, ok))
    wide = widen(g)
    product = wide * share.astype(jnp.finfo(wide.dtype).dtype)
    return cast(jnp.where(ok, product, jnp.zeros_like(product)), g.dtype)


def slices_of_replicas(g: RowSparse, axis: Axes, wire_dtype: Any = None) -> RowSparse:
    """Return the slices of all replicas as one gradient.

    Args:
      g: this replica's slices.
      axis: the axis of replicas, or several.
      wire_dtype: the dtype in which they travel; None for their own.
    """
    indices, values = as_varying((g.indices, g.values), axis)
    is_floating = jnp.issubdtype(values.dtype, jnp.floating)
    form = narrow(values.dtype if wire_dtype is None or not is_floating else wire_dtype)
    values = values if form is None else form.encode(values)
    for name in axis_names(axis):
        indices = lax.all_gather(indices, name, tiled=True)
        values = lax.all_gather(values, name, tiled=True)
    if form is not None:
        values = cast(form.decode(values, values.shape[-1]), g.values.dtype)
    return RowSparse(indices, values, g.num_rows)


def as_varying_like(tree: PyTree, others: PyTree, axis: Axes) -> PyTree:
    """Mark `tree` as varying between replicas if any leaf of `others` may vary."""
    if any(varies_along(x, axis) for x in jax.tree.leaves(others)):
        return as_varying(tree, axis)
    return tree

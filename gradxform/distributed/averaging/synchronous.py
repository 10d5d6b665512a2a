"""Replicas that step together as soon as enough of them have contributed: quorums, backups."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import transform
from gradxform.distributed.averaging.tower import (
    Synchronous,
    as_varying_like,
    checked_weight,
    left_to_inner_weight,
    share_of_weight,
    slices_of_replicas,
    weighed,
)
from gradxform.distributed.wire.axis import (
    as_varying,
    axis_names,
    check_bound,
    require_local,
    size_of,
    widen,
)
from gradxform.distributed.wire.feedback import first_feedback, summed_with_feedback
from gradxform.distributed.wire.powersgd import powersgd
from gradxform.errors import name_of, require_one_of
from gradxform.leaves import (
    align_params,
    align_slot,
    check_shapes,
    dtype_of,
    flatten_updates,
    has_rows,
)
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import as_flag, as_step, cast, safe_increment, scalar
from gradxform.slots import zero_count, zeros_like
from gradxform.types import (
    Array,
    Choice,
    DType,
    Everywhere,
    NonNegativeInt,
    PositiveInt,
    Slot,
)
from gradxform.wrappers.agree import agreed_flags
from gradxform.wrappers.update_when import update_when


class SyncReplicasState(NamedTuple):
    """State of `sync_replicas`. All of it but `feedback` is the same on all replicas."""

    inner: Any  # the inner state
    global_step: Everywhere  # int32 scalar; steps taken
    dropped: Everywhere  # int32 scalar; contributions that were stale, too late or not offered
    count: Everywhere  # int32 scalar; contributions in the accumulator
    acc: Slot  # at least float32; the sum of the contributions since the last step
    feedback: Any = None  # with `compress`: what is still to be sent, per replica; or None
    weight: Everywhere = None  # with `weighted`: the sum of the weights in the accumulator; or None


@transform
class sync_replicas(Synchronous):
    """Take a step as soon as enough replicas have contributed a fresh gradient.

    Update rule, with s the number of steps taken, and on replica i the flag c_i (`contribute`) and
    the step t_i at which its gradient was begun (`grad_step`):

        ok_i = c_i and s - t_i <= max_staleness
        A <- A + sum_i ok_i g_i;  n <- n + sum_i ok_i
        if n >= replicas_to_aggregate:
            u = inner(A / n);  s <- s + 1;  A <- 0;  n <- 0       (reduction "sum": inner(A))
        else:
            u = 0, and the inner state stays

    `replicas_to_aggregate` may be less than the number of replicas (the others are backups), equal
    to it, or more: then the contributions of several calls make one step. With count="first_r",
    only the first R contributions count, in the order of `arrival`, ties by index. Later ones are
    dropped, as TensorFlow drops those of backups. A dropped gradient does not enter the sum, even
    if it is NaN.

    Flags may differ between replicas: every replica takes part in every sum, so that no replica
    waits forever for another. For the same reason, each call waits for the slowest device.

    Each row of a row-sparse gradient is divided by the number of contributions that touched it, not
    by n, as in TensorFlow. Row-sparse gradients are not accumulated from call to call: those of a
    call without a step are dropped. They are refused if `replicas_to_aggregate` is more than the
    number of replicas.

    With `weighted`, each update takes a `weight` w_i, such as the examples in this replica's batch:

        A <- A + sum_i ok_i w_i g_i;  W <- W + sum_i ok_i w_i;  u = inner(A / W)

    A contribution of weight 0 counts for n, but not for A, even if it is NaN. If W is 0, so is the
    mean. Row-sparse gradients do not have weights.

    Args:
      inner: the optimizer, ours or Optax's.
      axis: the name of the axis of replicas, or several.
      replicas_to_aggregate: R, at least 1. Defaults to the number of replicas. Keyword-only.
      max_staleness: how many steps old a gradient may be, at least 0. Keyword-only.
      count: "all", or "first_r", which needs `arrival`. Keyword-only.
      reduction: "mean" or "sum". Keyword-only.
      wire_dtype: as for `tower`. Keyword-only.
      compress: as for `tower`. A replica that does not contribute keeps what it still has to send.
        Keyword-only.
      weighted: whether updates take the weight of each replica's gradient. Keyword-only.

    Raises:
      ValueError: as for `tower`.
      TypeError: at update, if `weight` is missing with `weighted`, or given without it.
      AlreadyReducedError: at update, for gradients that are already summed over the replicas.
      NameError: at update, where the axis is not bound.

    Reference: Chen et al., Revisiting Distributed Synchronous SGD, 2016, Algorithms 3 and 4;
    `tf.train.SyncReplicasOptimizer`.
    """

    inner: Any
    axis: str | tuple[str, ...]
    replicas_to_aggregate: PositiveInt | None = field(default=None, kw_only=True)
    max_staleness: NonNegativeInt = field(default=0, kw_only=True)
    count: Choice = field(default="all", kw_only=True)
    reduction: Choice = field(default="mean", kw_only=True)
    wire_dtype: DType = field(default=None, kw_only=True)
    compress: Any = field(default=None, kw_only=True)
    weighted: bool = field(default=False, kw_only=True)

    step_fields = ("global_step",)  # its count is of contributions

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "count", ("all", "first_r"))

    def init(self, params):
        """Return the inner state, counts of 0 and an empty accumulator."""
        return SyncReplicasState(
            self.inner.init(params),
            zero_count(),
            zero_count(),
            zero_count(),
            zeros_like(params),
            first_feedback(self, params, self.axis),
            scalar(0.0) if self.weighted else None,
        )

    def update(
        self,
        updates,
        state,
        params=None,
        *,
        contribute=True,
        grad_step=None,
        arrival=None,
        weight=None,
        **extra,
    ):
        """Return the updates if a step is taken, and zeros otherwise.

        Args:
          updates: this replica's own gradients.
          state: the state.
          params: the parameters.
          contribute: whether this replica offers a gradient, a boolean scalar.
          grad_step: the `global_step` when its gradient was begun, an integer scalar. Defaults to
            the current one.
          arrival: when the gradient arrived, any scalar; NaN is last. Required if count="first_r".
          weight: the weight of this replica's gradient, a real scalar of at least 0. Required if
            weighted, and else an error.
          **extra: extra arguments of the inner transform.
        """
        state = check_state(self, state, SyncReplicasState)
        if not self.weighted:
            weight, extra = left_to_inner_weight(self.inner, weight, extra)
        self._check_weight(state, weight)
        check_bound(self, self.axis)
        require_local(self, updates, self.axis)
        n = size_of(self.axis)
        needed = n if self.replicas_to_aggregate is None else self.replicas_to_aggregate
        ok = self._counts(state, needed, contribute, grad_step, arrival)
        contributions = self._sum(ok.astype(jnp.int32))
        total = state.count + contributions
        (ready,) = agreed_flags(self.inner, (total >= needed,), updates, state.inner, params, extra)

        leaves, treedef = flatten_updates(updates)
        if self.weighted and has_rows(updates):
            engine.refuse_rows(self, updates, "is weighted")
        if needed > n and has_rows(updates):
            engine.refuse_rows(self, updates, f"gathers {needed} contributions of {n} replicas")
        if params is not None:
            align_params(self, updates, treedef, params)
        accs = align_slot(self, updates, treedef, state, "acc")
        check_shapes(self, updates, accs.leaves, "the state's acc has")
        total_weight, sending, by = None, ok, n
        if weight is not None:
            weight = checked_weight(self, weight)
            sending = ok & (weight > 0)
            weight = jnp.where(ok, weight, 0)
            by = lax.psum(as_varying(weight, self.axis), axis_names(self.axis))
            total_weight = state.weight + by
            share = share_of_weight(weight, self.axis)
            leaves = [weighed(g, share, sending) for g in leaves]
        dense = [None if isinstance(g, RowSparse) else g for g in leaves]
        dtypes = [dtype_of(g) for g in leaves]
        # Means travel, not sums, which may be too large for a gradient of few bits.
        divisor = 1
        if weight is None:
            if isinstance(self.compress, powersgd):
                by = jnp.maximum(contributions, 1)
            divisor = by
        means, feedback = summed_with_feedback(
            self, updates, dense, dtypes, state.feedback, ok=sending, divisor=divisor
        )
        over = jnp.maximum(total, 1) if total_weight is None else _weight_or_one(total_weight)
        rows = zip(leaves, accs.leaves, means, strict=True)
        pairs = [self._accumulate(g, acc, x, by, ok, over) for g, acc, x in rows]
        grads = jax.tree.unflatten(treedef, [grad for _, grad in pairs])
        grads = as_varying_like(grads, (state.inner, params), self.axis)
        out, inner = update_when(self, self.inner, ready, grads, state.inner, params, extra)
        out = [
            _update_or_zero(ready, u, dtype_of(g))
            for u, g in zip(treedef.flatten_up_to(out), leaves, strict=True)
        ]
        new_accs = engine.map_rows(_acc_or_zero, [[acc for acc, _ in pairs]], ready)
        return jax.tree.unflatten(treedef, out), SyncReplicasState(
            inner=inner,
            global_step=jnp.where(ready, safe_increment(state.global_step), state.global_step),
            dropped=state.dropped + n - contributions,
            count=jnp.where(ready, 0, total),
            acc=as_varying_like(accs.rebuilt(new_accs), state.acc, self.axis),
            feedback=feedback,
            weight=None if total_weight is None else jnp.where(ready, 0, total_weight),
        )

    def _check_weight(self, state: SyncReplicasState, weight: Any) -> None:
        """Require a weight where the transform and its state have weights, and only there."""
        if (weight is not None) != self.weighted:
            how = "needs" if self.weighted else "does not take"
            raise TypeError(
                f"{name_of(self)}: {how} the extra argument 'weight', since weighted="
                f"{self.weighted}. With weighted=True, call update(updates, state, params, "
                "weight=...) at each step."
            )
        if (state.weight is not None) != self.weighted:
            raise ValueError(
                f"{name_of(self)}: the state was made with weighted={not self.weighted}; call the "
                "init of this transform, or migrate_state."
            )

    def _counts(
        self, state: SyncReplicasState, needed: int, contribute: Any, grad_step: Any, arrival: Any
    ) -> Array:
        """Return whether this replica's contribution counts."""
        ok = as_flag(self, "contribute", contribute)
        if grad_step is not None:
            age = state.global_step - as_step(self, "grad_step", grad_step)
            ok = ok & (age <= self.max_staleness)
        if self.count == "first_r":
            ok = ok & self._is_among_first(ok, arrival, needed - state.count)
        return ok

    def _accumulate(
        self, g: Any, acc: Array, mean: Any, by: Any, ok: Array, over: Array
    ) -> tuple[Array, Any]:
        """Return the accumulator of a leaf with the new contributions, and its gradient."""
        if isinstance(g, RowSparse):
            return acc, self._reduce_rows(g, ok)
        acc = acc + cast(mean, acc.dtype) * jnp.asarray(by, acc.dtype)
        if self.reduction == "sum":
            return acc, acc
        return acc, acc / over.astype(jnp.finfo(acc.dtype).dtype)

    def _sum(self, x: Array) -> Array:
        return lax.psum(as_varying(x, self.axis), axis_names(self.axis))

    def _is_among_first(self, ok: Array, arrival: Any, r: Array) -> Array:
        """Return whether this contribution is among the first `r` of those that are ok."""
        if arrival is None:
            raise TypeError(
                f"{name_of(self)}: count='first_r' needs the extra argument 'arrival'; call "
                "update(updates, state, params, arrival=...)."
            )
        # Not cast to float32, in which many times would be equal.
        sort_keys = as_varying((~ok, jnp.asarray(arrival)), self.axis)
        not_ok, arrivals = (lax.all_gather(x, axis_names(self.axis)) for x in sort_keys)
        order = jnp.lexsort((arrivals, not_ok))  # stable: ties by index; NaN is last
        rank = jnp.argmax(order == lax.axis_index(axis_names(self.axis)))
        return ok & (rank < r)

    def _reduce_rows(self, g: RowSparse, ok: Array) -> RowSparse:
        """Return the rows of all contributions, for "mean" over how many touched each of them."""
        g = g.coalesce()
        indices = jnp.where(ok, g.indices, g.num_rows)  # what does not count becomes padding
        contribution = RowSparse(indices, g.values, g.num_rows)
        rows = slices_of_replicas(contribution, self.axis, self.wire_dtype)
        if self.reduction == "sum":
            return rows
        ones = jnp.ones((rows.values.shape[0], *[1] * (rows.values.ndim - 1)), jnp.float32)
        counts = RowSparse(rows.indices, ones, g.num_rows).coalesce().values
        total = rows.coalesce()
        values = widen(total.values)
        mean = values / jnp.maximum(counts, 1).astype(values.dtype)
        return total.with_values(cast(mean, total.dtype))


def _weight_or_one(total: Array) -> Array:
    return jnp.where(total > 0, total, 1)


def _update_or_zero(keep: Array, u: Any, dtype: Any) -> Any:
    if isinstance(u, RowSparse):
        return u.with_values(_update_or_zero(keep, u.values, dtype))
    return cast(jnp.where(keep, u, jnp.zeros_like(u)), dtype)


def _acc_or_zero(x: Array, empty: Array) -> Array:
    return jnp.where(empty, jnp.zeros_like(x), x)

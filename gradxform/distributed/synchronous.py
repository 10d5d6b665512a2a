"""Replicas that step together on the mean or sum of their gradients: data parallelism, quorums."""

import abc
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.apply import apply_updates
from gradxform.base import Transform, call_update, check_transform, transform
from gradxform.distributed.axis import (
    Axes,
    as_varying,
    axis_names,
    check_axis_name,
    check_bound,
    psum,
    require_local,
    size_of,
    varies,
    widen,
)
from gradxform.errors import name_of, require_one_of
from gradxform.leaves import (
    align_params,
    align_slot,
    check_shapes,
    dtype_of,
    flatten_updates,
    has_rows,
    map_updates,
)
from gradxform.numerics import as_flag, as_step, cast, safe_increment
from gradxform.row_sparse import RowSparse
from gradxform.slots import zero_count, zeros_like
from gradxform.states import check_state
from gradxform.types import (
    Array,
    Choice,
    Everywhere,
    NonNegativeInt,
    OptState,
    Params,
    PositiveInt,
    PyTree,
    Slot,
    Updates,
)
from gradxform.wrappers.agree import agreed
from gradxform.wrappers.update_when import update_when

__all__ = [
    "scale_loss",
    "sync_replicas",
    "tower",
    "SyncReplicasState",
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
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"scale_loss: reduction must be 'mean' or 'sum', got {reduction!r}.")
    return loss / size_of(axis) if reduction == "mean" else loss


class _Synchronous(Transform, abc.ABC):
    """A wrapper under which all replicas take the same steps."""

    inner: Any
    axis: Any  # a name; for `tower` also a tuple of names
    reduction: str

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

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Any
    ) -> tuple[Params, OptState]:
        """Return the new parameters and the new state."""
        updates, state = self.update(grads, state, params, **extra)
        return apply_updates(params, updates), state


class TowerState(NamedTuple):
    """State of `tower`."""

    inner: Any  # the inner state; the same on all replicas


@transform
class tower(_Synchronous):
    """Step on the mean (or sum) of all replicas' gradients: plain data parallelism.

    Update rule: u = inner((1/N) sum_j g_j), or inner(sum_j g_j).

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

    Raises:
      AlreadyReducedError: at update, for gradients that are already summed, if reduced="error".
      NameError: at update, where the axis is not bound.

    Reference: `tf.contrib.estimator.TowerOptimizer`.
    """

    inner: Any
    axis: str | tuple[str, ...]
    reduction: Choice = field(default="mean", kw_only=True)
    reduced: Choice = field(default="error", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "reduced", ("error", *REDUCTIONS))

    def init(self, params: Params) -> TowerState:
        """Return the inner state."""
        return TowerState(self.inner.init(params))

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, TowerState]:
        """Return the inner updates of the reduced gradient."""
        check_state(self, state, TowerState)
        check_bound(self, self.axis)
        if self.reduced == "error":
            require_local(self, updates, self.axis)
        grads = map_updates(self._reduce, updates)
        grads = _as_varying_like(grads, (state, params), self.axis)
        updates, inner = call_update(self.inner, grads, state.inner, params, extra)
        return updates, TowerState(inner)

    def _reduce(self, g: Any) -> Any:
        n = size_of(self.axis)
        divisor = n if self.reduction == "mean" else 1
        if isinstance(g, RowSparse):
            return _concatenate(g, self.axis) / divisor
        wide = widen(g)
        if not varies(g, self.axis):
            divided_by = n if self.reduced == "mean" else 1
            return cast(wide * jnp.asarray(divided_by / divisor, wide.dtype), g.dtype)
        return cast(psum(wide, self.axis) / jnp.asarray(divisor, wide.dtype), g.dtype)


def _concatenate(g: RowSparse, axis: Axes) -> RowSparse:
    """Return the slices of all replicas as one gradient."""
    indices, values = as_varying((g.indices, g.values), axis)
    for name in axis_names(axis):
        indices = lax.all_gather(indices, name, tiled=True)
        values = lax.all_gather(values, name, tiled=True)
    return RowSparse(indices, values, g.num_rows)


def _as_varying_like(tree: PyTree, others: PyTree, axis: Axes) -> PyTree:
    """Mark `tree` as varying between replicas if any leaf of `others` may vary."""
    if any(varies(x, axis) for x in jax.tree.leaves(others)):
        return as_varying(tree, axis)
    return tree


class SyncReplicasState(NamedTuple):
    """State of `sync_replicas`. All of it is the same on all replicas."""

    inner: Any  # the inner state
    global_step: Everywhere  # int32 scalar; steps taken
    dropped: Everywhere  # int32 scalar; contributions that were stale, too late or not offered
    count: Everywhere  # int32 scalar; contributions in the accumulator
    acc: Slot  # at least float32; the sum of the contributions since the last step


@transform
class sync_replicas(_Synchronous):
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

    Args:
      inner: the optimizer, ours or Optax's.
      axis: the name of the axis of replicas.
      replicas_to_aggregate: R, at least 1. Defaults to the number of replicas. Keyword-only.
      max_staleness: how many steps old a gradient may be, at least 0. Keyword-only.
      count: "all", or "first_r", which needs `arrival`. Keyword-only.
      reduction: "mean" or "sum". Keyword-only.

    Raises:
      AlreadyReducedError: at update, for gradients that are already summed over the replicas.
      NameError: at update, where the axis is not bound.

    Reference: Chen et al., Revisiting Distributed Synchronous SGD, 2016, Algorithms 3 and 4;
    `tf.train.SyncReplicasOptimizer`.
    """

    inner: Any
    axis: str
    replicas_to_aggregate: PositiveInt | None = field(default=None, kw_only=True)
    max_staleness: NonNegativeInt = field(default=0, kw_only=True)
    count: Choice = field(default="all", kw_only=True)
    reduction: Choice = field(default="mean", kw_only=True)

    step_fields = ("global_step",)  # its count is of contributions

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "count", ("all", "first_r"))

    def init(self, params: Params) -> SyncReplicasState:
        """Return the inner state, counts of 0 and an empty accumulator."""
        return SyncReplicasState(
            self.inner.init(params),
            zero_count(),
            zero_count(),
            zero_count(),
            zeros_like(params),
        )

    def update(
        self,
        updates: Updates,
        state: OptState,
        params: Params | None = None,
        *,
        contribute: Any = True,
        grad_step: Any = None,
        arrival: Any = None,
        **extra: Any,
    ) -> tuple[Updates, SyncReplicasState]:
        """Return the updates if a step is taken, and zeros otherwise.

        Args:
          updates: this replica's own gradients.
          state: the state.
          params: the parameters.
          contribute: whether this replica offers a gradient, a boolean scalar.
          grad_step: the `global_step` when its gradient was begun, an integer scalar. Defaults to
            the current one.
          arrival: when the gradient arrived, any scalar; NaN is last. Required if count="first_r".
          **extra: extra arguments of the inner transform.
        """
        check_state(self, state, SyncReplicasState)
        check_bound(self, self.axis)
        require_local(self, updates, self.axis)
        n = size_of(self.axis)
        needed = n if self.replicas_to_aggregate is None else self.replicas_to_aggregate
        ok = self._counts(state, needed, contribute, grad_step, arrival)
        contributions = self._sum(ok.astype(jnp.int32))
        total = state.count + contributions
        (ready,) = agreed(self.inner, (total >= needed,), updates, state.inner, params, extra)

        leaves, treedef = flatten_updates(updates)
        if needed > n and has_rows(updates):
            engine.refuse_rows(self, updates, f"gathers {needed} contributions of {n} replicas")
        if params is not None:
            align_params(self, updates, treedef, params)
        accs = align_slot(self, updates, treedef, state, "acc")
        check_shapes(self, updates, accs.leaves, "the state's acc has")
        pairs = [
            self._accumulate(g, acc, ok, total) for g, acc in zip(leaves, accs.leaves, strict=True)
        ]
        grads = jax.tree.unflatten(treedef, [grad for _, grad in pairs])
        grads = _as_varying_like(grads, (state.inner, params), self.axis)
        out, inner = update_when(self, self.inner, ready, grads, state.inner, params, extra)
        out = [
            _zero_unless(ready, u, dtype_of(g))
            for u, g in zip(treedef.flatten_up_to(out), leaves, strict=True)
        ]
        new_accs = engine.map_rows(_zero_if, [[acc for acc, _ in pairs]], ready)
        return jax.tree.unflatten(treedef, out), SyncReplicasState(
            inner=inner,
            global_step=jnp.where(ready, safe_increment(state.global_step), state.global_step),
            dropped=state.dropped + n - contributions,
            count=jnp.where(ready, 0, total),
            acc=_as_varying_like(accs.rebuilt(new_accs), state.acc, self.axis),
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

    def _accumulate(self, g: Any, acc: Array, ok: Array, total: Array) -> tuple[Array, Any]:
        """Return the accumulator of a leaf with the new contributions, and its gradient."""
        if isinstance(g, RowSparse):
            return acc, self._reduce_rows(g, ok)
        acc = acc + self._sum(jnp.where(ok, cast(g, acc.dtype), jnp.zeros_like(acc)))
        if self.reduction == "sum":
            return acc, acc
        return acc, acc / jnp.maximum(total, 1).astype(acc.dtype)

    def _sum(self, x: Array) -> Array:
        return lax.psum(as_varying(x, self.axis), self.axis)

    def _is_among_first(self, ok: Array, arrival: Any, r: Array) -> Array:
        """Return whether this contribution is among the first `r` of those that are ok."""
        if arrival is None:
            raise TypeError(
                f"{name_of(self)}: count='first_r' needs the extra argument 'arrival'; call "
                "update(updates, state, params, arrival=...)."
            )
        # Not cast to float32, in which many times would be equal.
        own = as_varying((~ok, jnp.asarray(arrival)), self.axis)
        not_ok, arrivals = (lax.all_gather(x, self.axis) for x in own)
        order = jnp.lexsort((arrivals, not_ok))  # stable: ties by index; NaN is last
        rank = jnp.argmax(order == lax.axis_index(self.axis))
        return ok & (rank < r)

    def _reduce_rows(self, g: RowSparse, ok: Array) -> RowSparse:
        """Return the rows of all contributions, for "mean" over how many touched each of them."""
        g = g.coalesce()
        indices = jnp.where(ok, g.indices, g.num_rows)
        rows = _concatenate(RowSparse(indices, g.values, g.num_rows), self.axis)
        if self.reduction == "sum":
            return rows
        ones = jnp.ones((rows.values.shape[0], *[1] * (rows.values.ndim - 1)), jnp.float32)
        counts = RowSparse(rows.indices, ones, g.num_rows).coalesce().values
        total = rows.coalesce()
        values = widen(total.values)
        mean = values / jnp.maximum(counts, 1).astype(values.dtype)
        return total.with_values(cast(mean, total.dtype))


def _zero_unless(keep: Array, u: Any, dtype: Any) -> Any:
    if isinstance(u, RowSparse):
        return u.with_values(_zero_unless(keep, u.values, dtype))
    return cast(jnp.where(keep, u, jnp.zeros_like(u)), dtype)


def _zero_if(x: Array, empty: Array) -> Array:
    return jnp.where(empty, jnp.zeros_like(x), x)

"""Decoupled weight decay around any optimizer."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import EmptyState, Transform, call_update, check_transform, farthest, transform
from gradxform.errors import name_of
from gradxform.leaves import align, align_params, dtype_of, flatten_updates, masks, require_params
from gradxform.leaves.row_sparse import RowSparse, coalesced
from gradxform.leaves.states import check_state
from gradxform.numerics import add, at_least_float32, cast, promote, safe_increment, times, value_at
from gradxform.transforms.scaling import WeightDecaySchedule, start_of_field
from gradxform.types import Array, NonNegativeOrSchedule, StaticMask
from gradxform.wrappers.changed_steps import check_changeable, told_change, told_start
from gradxform.wrappers.parts import check_movable, exact_part

# ------------------------------------------------------------- one leaf: updates that are downhill


def scaled_update(u: Any, factor: Array) -> Any:
    """Return `factor * u`, in the dtype of `u`."""
    if isinstance(u, RowSparse):
        return u.with_values(scaled_update(u.values, factor))
    return cast(times(factor, cast(u, at_least_float32(u.dtype))), u.dtype)


def decayed_update(u: Any, p: Array, factor: Array, decay: Array) -> Any:
    """Return `factor * u - decay * p`; for row-sparse updates only touched rows decay."""
    if isinstance(u, RowSparse):
        rows = u.coalesce()
        return rows.with_values(decayed_update(rows.values, rows.take(p), factor, decay))
    wide = at_least_float32(promote(u.dtype, p.dtype))
    return cast(times(factor, cast(u, wide)) - times(decay, cast(p, wide)), u.dtype)


def cautiously_decayed(u: Any, p: Array, decay: Array) -> Any:
    """Return `u - decay * p` where `u` does not lead away from 0, so that no step is shortened."""
    if isinstance(u, RowSparse):
        rows = u.coalesce()
        return rows.with_values(cautiously_decayed(rows.values, rows.take(p), decay))
    wide = at_least_float32(promote(u.dtype, p.dtype))
    u_wide, p_wide = cast(u, wide), cast(p, wide)
    # Signs, because a product of two small numbers may round to 0.
    agrees = jnp.sign(u_wide) * jnp.sign(p_wide) <= 0
    return cast(jnp.where(agrees, u_wide - times(decay, p_wide), u_wide), u.dtype)


def _fully_decayed_update(u: Any, p: Array, decay: Array) -> Any:
    return decayed_update(u, p, jnp.ones_like(decay), decay)


def _updated_and_decayed(u: Any, g: Any, p: Array, decay: Array, cautious: bool) -> Any:
    """Return the update with decay; for a row-sparse gradient only touched rows decay."""
    rule = cautiously_decayed if cautious else _fully_decayed_update
    if isinstance(g, RowSparse) and not isinstance(u, RowSparse):
        rows = coalesced(g.with_raw(False))
        old = rows.with_values(rows.take(u))
        return u + (rule(old, p, decay) - old)
    return rule(u, p, decay)


def _decayed_update_like_grad(u: Any, g: Any) -> Any:
    return _decayed_update_in_dtype(u, g.dtype)


def _decayed_update_in_dtype(u: Any, dtype: Any) -> Any:
    return u.with_values(cast(u.values, dtype)) if isinstance(u, RowSparse) else cast(u, dtype)


def _wide_enough(g: Any) -> Any:
    """Return a gradient of 8 bits in float32, and any other as it is."""
    return _decayed_update_in_dtype(g, at_least_float32(g.dtype)) if g.dtype.itemsize < 2 else g


def _change_of_param(g: Any, p: Array, decay: Array) -> Any:
    """Return the change of a parameter by its decay, in the form of its gradient."""
    wide = at_least_float32(p.dtype)
    if isinstance(g, RowSparse):
        rows = coalesced(g.with_raw(False))
        return rows.with_values(-times(decay, cast(rows.take(p), wide)))
    return -times(decay, cast(p, wide))


def _param_moved(p: Array, change: Any) -> Array:
    if isinstance(change, RowSparse):
        return change.add_to(p)
    return cast(add(p, change), p.dtype)


def _update_with_change(u: Any, change: Any) -> Any:
    """Return the sum of an update and a change by decay, in the dtype of the update."""
    if isinstance(u, RowSparse) or isinstance(change, RowSparse):
        dtype = dtype_of(u)
        both = u + change
        if isinstance(both, RowSparse):
            return both.with_values(cast(both.values, dtype))
        return cast(both, dtype)
    return cast(add(u, change), u.dtype)


# ------------------------------------------------------------------------------- the wrapper


class DecoupledWeightDecayState(NamedTuple):
    """State of `decoupled_weight_decay`."""

    inner_state: Any
    decay: Any  # the count of updates, if the decay or its rate is a schedule


@transform
class decoupled_weight_decay(Transform):
    """Add decoupled weight decay to any optimizer.

    Update rule, with u the inner update and n = 0, 1, ... the number of earlier updates:

        u <- u - learning_rate(n) weight_decay(n) p      on the leaves that `mask` selects

    Without a `learning_rate` the decay is not scaled by any rate. With `cautious`, an entry decays
    only where the step agrees: where -u p >= 0. With `decay_first` the parameters decay before the
    step, as in TensorFlow: the inner transform sees the decayed ones, p - weight_decay p.

    For a row-sparse gradient, only touched rows decay. An inner transform that keeps copies of
    the parameters is told about the decay.

    Of its own kind: its schedules count by themselves, and the decay may come before the inner
    step.

    Args:
      inner: the optimizer; its updates point downhill.
      weight_decay: the multiple of the parameter, at least 0, or a schedule of it.
      mask: which parameters decay: a mask such as `ndim_at_least(2)`, a tree of booleans that may
        be a prefix of the parameters, or a function of the parameters. Defaults to all.
      learning_rate: the rate that multiplies the decay, usually that of `inner`, at least 0, or a
        schedule. Defaults to 1. Keyword-only.
      cautious: whether only entries decay whose step leads towards 0. Keyword-only.
      decay_first: whether the inner transform sees decayed parameters. Keyword-only.

    Raises:
      ValueError: if both `cautious` and `decay_first` are set; if a part of `inner` would undo the
        decay; at update, if no parameters are given.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 1; for
      `cautious` Chen et al., Cautious Weight Decay, 2025, Algorithm 1.
    """

    inner: Any
    weight_decay: NonNegativeOrSchedule
    mask: StaticMask | None = None
    learning_rate: NonNegativeOrSchedule | None = field(default=None, kw_only=True)
    cautious: bool = field(default=False, kw_only=True)
    decay_first: bool = field(default=False, kw_only=True)

    holds = (("inner", "inner_state"),)
    handles_rows = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        if self.cautious and self.decay_first:
            raise ValueError(
                f"{name_of(self)}: cautious decay looks at the step, which decay_first does not "
                "know yet; set one of them."
            )
        if not self.decay_first:
            check_movable(self, self.inner)
            check_changeable(self, self.inner)

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return farthest([self.inner])

    @property
    def _schedule_kind(self) -> Any:
        scheduled = callable(self.weight_decay) or callable(self.learning_rate)
        return WeightDecaySchedule if scheduled else EmptyState

    def init(self, params):
        """Return the inner state, and a count of 0 for a schedule."""
        masks.check_patterns(self, self.mask, params)
        return DecoupledWeightDecayState(
            self.inner.init(params), start_of_field(self._schedule_kind)
        )

    def _decay_at(self, state: Any) -> tuple[Array, Any]:
        """Return this step's decay, and the state of the schedules after it."""
        state = check_state(self, state, self._schedule_kind)
        count: Any = getattr(state, "count", 0)
        decay = value_at(self.weight_decay, count)
        if self.learning_rate is not None:
            decay = value_at(self.learning_rate, count) * decay
        if self._schedule_kind is EmptyState:
            return decay, state
        return decay, state._replace(count=safe_increment(state.count))

    def update(self, updates, state, params=None, **extra):
        """Take the inner step, and decay."""
        require_params(self, params)
        state = check_state(self, state, DecoupledWeightDecayState)
        decay, schedules = self._decay_at(state.decay)
        gs, treedef = flatten_updates(updates)
        aligned = align_params(self, updates, treedef, params)
        ps = aligned.leaves
        where = range(len(gs))
        if self.mask is not None:
            mask = masks.resolve(self, self.mask, params)
            is_in = align(self, updates, treedef, mask, "the mask has").leaves
            where = [k for k in where if is_in[k]]
        gs_in, ps_in = ([column[k] for k in where] for column in (gs, ps))
        inner_params, changes, inner_state = params, [], state.inner_state
        if self.decay_first:
            changes = engine.map_rows(_change_of_param, [gs_in, ps_in], decay)
            moved_ps = list(ps)
            for k, p in zip(where, engine.map_rows(_param_moved, [ps_in, changes]), strict=True):
                moved_ps[k] = p
            inner_params = aligned.rebuilt(moved_ps)
            inner_state = told_start(self.inner, inner_state, params, inner_params)
        inner_grads = updates
        if self.cautious:
            # A step has the dtype of its gradient. In 8 bits a small one would be 0, and its sign
            # unknown.
            wide = iter(engine.map_rows(_wide_enough, [gs_in]))
            inner_grads = treedef.unflatten(
                [next(wide) if k in where else g for k, g in enumerate(gs)]
            )
        inner_updates, inner_state = call_update(
            self.inner, inner_grads, inner_state, inner_params, extra
        )
        us = treedef.flatten_up_to(inner_updates)
        us_in = [us[k] for k in where]
        if self.decay_first:
            new = engine.map_rows(_update_with_change, [us_in, changes])
        else:
            statics = [self.cautious] * len(where)
            new = engine.map_rows(
                _updated_and_decayed, [us_in, gs_in, ps_in], decay, statics=statics
            )
            # Back in the dtypes of the gradients that were widened, unless updates must stay exact.
            if self.cautious and exact_part(self.inner) is None:
                new = engine.map_rows(_decayed_update_like_grad, [new, gs_in])
        for k, u in zip(where, new, strict=True):
            us[k] = u
        changed = jax.tree.unflatten(treedef, us)
        if not self.decay_first:  # else the inner transform already knows the decayed parameters
            inner_state = told_change(self.inner, inner_state, params, inner_updates, changed)
        return changed, state._replace(inner_state=inner_state, decay=schedules)

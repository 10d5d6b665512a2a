"""Guards that keep bad gradients from an optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import check_transform, transform
from gradxform.leaves import flatten_updates, leaves_of
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import safe_increment, within
from gradxform.slots import zero_count
from gradxform.types import Array, NonNegativeInt, Params, PyTree, Updates
from gradxform.values.registry import register
from gradxform.wrappers.changed_steps import check_overflows_reach
from gradxform.wrappers.checks import Guard, check
from gradxform.wrappers.finite import entries_of_leaf, sizes_of
from gradxform.wrappers.update_when import update_when

__all__ = [
    "all_finite",
    "apply_if_finite",
    "skip_large_updates",
    "skip_not_finite",
    "ApplyIfFiniteState",
]


def _not_finite_count(x: Any) -> Array:
    return jnp.sum(~jnp.isfinite(entries_of_leaf(x)), dtype=jnp.int32)


def all_finite(tree: PyTree) -> Array:
    """Return whether every entry of every leaf is finite, as a boolean scalar."""
    return engine.true_on_all_shards(sizes_of(tree).finite())


def _guarded_or_zero(u: Any, keep: Array) -> Any:
    if isinstance(u, RowSparse):
        return u.with_values(_guarded_or_zero(u.values, keep))
    return jnp.where(keep, u, jnp.zeros_like(u))


def zero_unless(keep: Array, updates: Updates) -> Updates:
    """Return `updates` if `keep`, else zeros, also where `updates` has NaN."""
    leaves, treedef = flatten_updates(updates)
    return jax.tree.unflatten(treedef, engine.map_rows(_guarded_or_zero, [leaves], keep))


class ApplyIfFiniteState(NamedTuple):
    """State of `apply_if_finite`."""

    notfinite_count: Array  # int32 scalar; consecutive updates that were not finite
    last_finite: Array  # boolean scalar; whether the last update was finite
    total_notfinite: Array  # int32 scalar; updates that were not finite since init
    inner_state: Any  # the inner state; only accepted updates change it


@transform
class apply_if_finite(Guard):
    """Skip updates with a NaN or an infinity, up to a number of them in a row.

    A skipped update is all zeros and leaves the inner state unchanged. After
    `max_consecutive_errors` skips in a row the next update is accepted whatever it contains, so
    that a run that cannot recover is noticed.

    Around a part that communicates between replicas, such as `distributed.tower`, all replicas skip
    if one of them must.

    Args:
      inner: the transform to guard.
      max_consecutive_errors: how many bad updates in a row are skipped, at least 0.
    """

    inner: Any
    max_consecutive_errors: NonNegativeInt

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        check_overflows_reach(self, self.inner)

    locality = "tree"  # one bad entry anywhere skips the whole update
    asks_for_sums = True
    handles_rows = True
    holds = (("inner", "inner_state"),)
    looks_at_gradients = True

    def flags(
        self, state: ApplyIfFiniteState, extra: dict[str, Any], sizes: Any
    ) -> tuple[Array, ...]:
        """Return whether a gradient that is not finite would be one too many to skip."""
        return (safe_increment(state.notfinite_count) > self.max_consecutive_errors,)

    def init(self, params):
        """Return counts of 0 and the inner state."""
        return ApplyIfFiniteState(
            notfinite_count=zero_count(),
            last_finite=jnp.ones((), jnp.bool_),
            total_notfinite=zero_count(),
            inner_state=self.inner.init(params),
        )

    def update(self, updates, state, params=None, **extra):
        """Run the inner update if every entry is finite, or after too many consecutive skips."""
        return self._updated(updates, state, params, extra, False)

    def update_params(self, updates, state, params, **extra):
        """Return the parameters after the update, or as they are if it is skipped."""
        return self._updated(updates, state, params, extra, True)

    def _updated(
        self, updates: Updates, state: Any, params: Any, extra: dict[str, Any], to_params: bool
    ) -> tuple[Any, ApplyIfFiniteState]:
        check_state(self, state, ApplyIfFiniteState)
        updates = engine.merged_rows(updates)
        notfinite_count = safe_increment(state.notfinite_count)
        found = check(self, updates, state, params, extra)
        finite, ((too_many,), *_) = found.finite, found.flags
        notfinite_count = jnp.where(finite, 0, notfinite_count)
        accept = finite | too_many
        given = updates, state.inner_state, params, extra
        new, inner_state = update_when(
            self, self.inner, accept, *given, zeros=True, to_params=to_params, found=found.inside
        )
        total = jnp.where(finite, state.total_notfinite, safe_increment(state.total_notfinite))
        return new, state._replace(
            notfinite_count=notfinite_count.astype(jnp.int32),
            last_finite=finite,
            total_notfinite=total,
            inner_state=inner_state,
        )


def skip_not_finite(
    updates: Updates, gradient_step: Any, params: Params | None
) -> tuple[Array, dict[str, Array]]:
    """Decide whether `MultiSteps` skips a micro-batch: if any entry is NaN or infinite.

    Returns:
      A boolean scalar, and a dict with that scalar (`should_skip`) and the number of entries that
      are not finite (`num_not_finite`, int32).
    """
    counts = engine.map_rows(_not_finite_count, [leaves_of(updates)])
    num_not_finite = jnp.sum(jnp.stack(counts)) if counts else zero_count()
    skip = num_not_finite > 0
    return skip, {"should_skip": skip, "num_not_finite": num_not_finite}


def skip_large_updates(
    updates: Updates, gradient_step: Any, params: Params | None, max_squared_norm: float
) -> tuple[Array, dict[str, Array]]:
    """Decide whether `MultiSteps` skips a micro-batch: if its squared norm is too large, or NaN.

    Args:
      updates: the gradients.
      gradient_step: unused.
      params: unused.
      max_squared_norm: the largest squared Euclidean norm over the tree; infinity for no bound.
        Bind it with `functools.partial`.

    Returns:
      A boolean scalar, and a dict with that scalar (`should_skip`) and the squared norm
      (`norm_squared`).
    """
    norm_squared = engine.sum_of_squares(updates)
    bound = jnp.asarray(within(max_squared_norm, norm_squared.dtype), norm_squared.dtype)
    # An infinite bound also accepts a square that has overflowed.
    skip = ~((norm_squared < bound) | (jnp.isinf(bound) & (norm_squared == bound)))
    return skip, {"should_skip": skip, "norm_squared": norm_squared}


register("skip_not_finite", skip_not_finite)

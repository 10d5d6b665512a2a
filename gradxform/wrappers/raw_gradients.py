"""What an optimizer can know of the gradients before anything has changed them."""

from dataclasses import field
from typing import Any, NamedTuple

from gradxform.base import (
    Transform,
    call_update,
    check_transform,
    tell_moved,
    transform,
)
from gradxform.engine import global_norm
from gradxform.errors import name_of
from gradxform.leaves import align, flatten_updates, masks, require_params
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import as_step, safe_increment, scalar
from gradxform.slots import zero_count
from gradxform.types import Array, OptState, Params, Updates
from gradxform.values.field_kinds import check_mask

__all__ = [
    "raw_gradient_norms",
    "RawGradientNormsState",
]


class RawGradientNormsState(NamedTuple):
    """State of `raw_gradient_norms`."""

    count: Array  # int32 scalar; the number of calls so far
    inner_state: Any  # the inner state


@transform
class raw_gradient_norms(Transform):
    """Tell the parts of an optimizer the norms of the raw gradients, and the number of calls.

    The inner transform gets two extra arguments: `raw_norms`, a dict from tags to Euclidean norms,
    and from "" to that of all gradients; and `step`, the caller's or else the number of earlier
    calls. `clip_by_raw_norm` and `zero_above_raw_norm` read the first, `external_step` the second,
    also inside `MultiSteps`, whose inner optimizer counts its own steps.

    Args:
      inner: the optimizer.
      tags: a tuple of pairs of a tag, a string, and a mask of its parameters. Defaults to none.
      by_slice: whether the slices of a row-sparse gradient count each by itself, as in TensorFlow;
        else those of one row are summed first. Keyword-only.

    Raises:
      ValueError: at update, if there are tags and no parameters are given.

    Reference: the `Updater` of RETURNN.
    """

    inner: Any
    tags: tuple[Any, ...] = ()
    by_slice: bool = field(default=False, kw_only=True)

    handles_rows = True
    locality = "tree"
    asks_for_sums = True
    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        for i, pair in enumerate(self.tags):
            if not (
                isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and pair[0]
            ):
                raise TypeError(
                    f"{name_of(self)}: tags must be pairs of a tag and a mask, such as "
                    f"(('encoder', path_matches('^encoder')),), but pair {i} is not."
                )
            check_mask(self, pair[1])

    def init(self, params: Params) -> RawGradientNormsState:
        """Return a count of 0 and the inner state."""
        for _, mask in self.tags:
            masks.check_patterns(self, mask, params)
        return RawGradientNormsState(zero_count(), self.inner.init(params))

    def moved(self, state: OptState, old: Params, new: Params) -> RawGradientNormsState:
        """Return the state after something else has moved the parameters."""
        return state._replace(inner_state=tell_moved(self.inner, state.inner_state, old, new))

    def update(
        self,
        updates: Updates,
        state: OptState,
        params: Params | None = None,
        *,
        step: Any = None,
        **extra: Any,
    ) -> tuple[Updates, RawGradientNormsState]:
        """Update the inner transform with the norms and the step."""
        state = check_state(self, state, RawGradientNormsState)
        step = state.count if step is None else as_step(self, "step", step)
        gs, treedef = flatten_updates(updates)
        arrays = [g.values if self.by_slice and isinstance(g, RowSparse) else g for g in gs]
        norms: dict[str, Array] = {"": scalar(global_norm(treedef.unflatten(arrays)))}
        for tag, mask in self.tags:
            require_params(self, params)
            selected = align(
                self, updates, treedef, masks.resolve(self, mask, params), "the mask has"
            ).leaves
            tagged = [g if is_in else None for g, is_in in zip(arrays, selected, strict=True)]
            norms[tag] = scalar(global_norm(treedef.unflatten(tagged)))
        extra = extra | {"step": step, "raw_norms": norms}
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        return updates, state._replace(count=safe_increment(state.count), inner_state=inner_state)

"""How a transform treats row-sparse gradients, and transforms for one kind of gradient only."""

from typing import Any

import jax

from gradxform import engine
from gradxform.base import call_update, transform
from gradxform.errors import require_one_of
from gradxform.leaves import align_params, flatten_updates
from gradxform.leaves.row_sparse import RowSparse, coalesced
from gradxform.types import Choice, MaskedNode, OptState, Params, Updates
from gradxform.wrappers.parts import StatelessWrapper

SEMANTICS = ("rows", "dense", "slots", "raw", "error")


@transform
class sparse_semantics(StatelessWrapper):
    """Choose how a transform treats the row-sparse gradient of a table.

    - "rows", the default of every transform that can: the rule sees only the touched rows. The
      others keep their parameters and slots, and the cost is that of the touched rows. A row with a
      gradient of zero counts as touched.
    - "dense": the rule sees an array that is zero elsewhere. Every row may move, as in TensorFlow's
      Adam.
    - "slots": the slots change as with "dense", the parameter moves only in touched rows.
    - "raw": as "rows", but without summing repeated slices of a row first, as the three above do.
      Each slice acts by itself on the old parameters and slots. The parameter moves once for each
      slice, and a row keeps the new slots of its last slice (unless the rule has a `slice_rule`). A
      part without slots that looks at whole arrays sees the slices as the array.
    - "error": a row-sparse gradient is refused.

    Dense gradients are not affected. The state is the inner state.

    Args:
      inner: a transform, or a chain.
      semantics: "rows", "dense", "slots", "raw" or "error".

    Raises:
      TypeError: at update, for a row-sparse gradient under "error", or if the inner transform looks
        further than a row and the semantics are "rows" (or "raw" and it has slots).
    """

    inner: Any
    semantics: Choice = "rows"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "semantics", SEMANTICS)

    def update(self, updates, state, params=None, **extra):
        """Update the inner transform with the gradients in that form."""
        if self.semantics == "error":
            engine.refuse_rows(self.inner, updates, "is for dense gradients only here")
        leaves, treedef = flatten_updates(updates)
        gs = [coalesced(g) if self.semantics == "slots" else g for g in leaves]
        inner_gs = jax.tree.unflatten(treedef, [self._for_inner(g) for g in gs])
        updates, state = call_update(self.inner, inner_gs, state, params, extra)
        us, treedef = flatten_updates(updates)
        us = [self._from_inner(u, g) for u, g in zip(us, gs, strict=True)]
        return jax.tree.unflatten(treedef, us), state

    def _for_inner(self, g: Any) -> Any:
        """Return a gradient in the form that the inner transform sees."""
        if not isinstance(g, RowSparse):
            return g
        if self.semantics in ("dense", "slots"):
            return g.to_dense()
        return g.with_raw(True) if self.semantics == "raw" else g

    def _from_inner(self, u: Any, g: Any) -> Any:
        """Return an update of the inner transform in the form of its gradient."""
        if self.semantics == "slots" and isinstance(g, RowSparse):
            return g.with_values(engine.take_rows(g, u))
        if self.semantics == "raw" and isinstance(u, RowSparse):
            return u.with_raw(False)
        return u


class _OnlySparseOrDense(StatelessWrapper):
    """Base of wrappers for one kind of gradient; gradients of the other kind pass unchanged."""

    inner: Any

    def _update_kind(
        self,
        sparse: bool,
        updates: Updates,
        state: OptState,
        params: Params | None,
        extra: dict[str, Any],
    ) -> tuple[Updates, OptState]:
        gs, treedef = flatten_updates(updates)
        if params is not None:  # the inner transform does not check what it does not see
            align_params(self, updates, treedef, params)
        is_in = [isinstance(g, RowSparse) == sparse for g in gs]
        inner_gs = [g if inside else MaskedNode() for g, inside in zip(gs, is_in, strict=True)]
        updates, state = call_update(
            self.inner, jax.tree.unflatten(treedef, inner_gs), state, params, extra
        )
        us = treedef.flatten_up_to(updates)
        out = [u if inside else g for u, g, inside in zip(us, gs, is_in, strict=True)]
        return jax.tree.unflatten(treedef, out), state


@transform
class only_dense(_OnlySparseOrDense):
    """Run a transform on dense gradients only; row-sparse ones pass unchanged.

    Unlike a mask this does not need names, and the state has slots for all parameters.

    Args:
      inner: a transform, or a chain.
    """

    inner: Any

    def update(self, updates, state, params=None, **extra):
        """Update the leaves with a dense gradient."""
        return self._update_kind(False, updates, state, params, extra)


@transform
class only_rows(_OnlySparseOrDense):
    """Run a transform on row-sparse gradients only; dense ones pass unchanged.

    Args:
      inner: a transform, or a chain, that accepts row-sparse gradients.
    """

    inner: Any

    def update(self, updates, state, params=None, **extra):
        """Update the leaves with a row-sparse gradient."""
        return self._update_kind(True, updates, state, params, extra)

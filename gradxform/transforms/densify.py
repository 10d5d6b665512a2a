"""Converting row-sparse gradients to arrays."""

import jax

from gradxform.base import EmptyState, Transform, transform
from gradxform.leaves import align_params, flatten_updates
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state


@transform
class densify(Transform):
    """Convert every row-sparse gradient to an array, zero in the rows that were not touched.

    Put it before a part that looks further than a row, or where every row should move, as with a
    dense optimizer. It takes the time and memory of the whole table.
    """

    locality = "entry"
    handles_rows = True
    keeps_updates = True

    def init(self, params):
        """Return the empty state."""
        return EmptyState()

    def update(self, updates, state, params=None, **extra):
        """Return the updates as arrays."""
        state = check_state(self, state, EmptyState)
        leaves, treedef = flatten_updates(updates)
        if params is not None:
            align_params(self, updates, treedef, params)
        dense = [g.to_dense() if isinstance(g, RowSparse) else g for g in leaves]
        return jax.tree.unflatten(treedef, dense), state

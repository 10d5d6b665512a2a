"""A count of updates, for optimizers that remember their number and nothing else."""

from typing import NamedTuple

from gradxform.base import ArrayRule, transform
from gradxform.numerics import safe_increment
from gradxform.types import Array


class CountUpdatesState(NamedTuple):
    """State of `count_updates`."""

    count: Array  # int32 scalar; the number of updates so far


@transform
class count_updates(ArrayRule):
    """Count the updates, and leave them as they are.

    Update rule, from n = 0: n <- n + 1, u = g.

    Most optimizers need no count: without a schedule or a bias correction, no number depends on
    it. Add this part where a checkpoint, a logger or `current_step` should know it all the same, as
    Keras's optimizers do. It costs one addition a step; the updates are not copied.
    """

    State = CountUpdatesState
    locality = "entry"
    handles_complex = True
    keeps_updates = True

    def prepare(self, updates, state, params):
        """Return the advanced count."""
        return (state._replace(count=safe_increment(state.count)),)

    def rule(self, g, p):
        """Return the update as it is."""
        return g

"""Three transforms in order: of single gradients, of their aggregation, and an optimizer."""

from typing import Any

from gradxform import tree
from gradxform.base import Transform, call_update, check_transform, transform
from gradxform.errors import name_of, shown
from gradxform.experimental.aggregator import Aggregator
from gradxform.interop import identity
from gradxform.leaves import Path
from gradxform.types import OptState, Params, Updates
from gradxform.wrappers.agree import agreed_flags
from gradxform.wrappers.parts import all_parts
from gradxform.wrappers.update_when import update_when


def process(
    preprocessor: Any, aggregator: Any, postprocessor: Any, aggregator_has_aux: bool = False
) -> "processed | processed_per_element":
    """Return three transforms in order: of single gradients, their aggregation, and an optimizer.

    The optimizer runs only when the aggregator's state says that it is `ready`, if it says
    anything; until then the updates are zeros.

    Args:
      preprocessor: a transform of the gradients of single elements, such as a clip.
      aggregator: a transform of them into one gradient, or an accumulator of gradients.
      postprocessor: the optimizer.
      aggregator_has_aux: whether the aggregator returns a pair, the gradient and a dict of extra
        arguments for the optimizer.

    Returns:
      An `Aggregator` if `aggregator` is one.
    """
    parts = preprocessor, aggregator, postprocessor, aggregator_has_aux
    if isinstance(aggregator, Aggregator):
        return processed_per_element(*parts)
    return processed(*parts)


class _Process(Transform):
    """Base of what `process` returns."""

    preprocessor: Any
    aggregator: Any
    postprocessor: Any
    aggregator_has_aux: bool = False

    def __post_init__(self) -> None:
        for field in ("preprocessor", "aggregator", "postprocessor"):
            check_transform("process", getattr(self, field), field)

    def init(self, params):
        """Return the three states."""
        parts = self.preprocessor, self.aggregator, self.postprocessor
        first, second, third = (part.init(params) for part in parts)
        return first, second, third

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the places of the three states."""
        parts = self.preprocessor, self.aggregator, self.postprocessor
        return [((str(i),), part) for i, part in enumerate(parts)]

    def update(self, updates, state, params=None, **extra):
        """Transform, aggregate, and take a step if it is due."""
        if not isinstance(state, tuple | list) or len(state) != 3 or hasattr(state, "_fields"):
            raise TypeError(
                f"process: the state must be a tuple of 3 states, got {shown(state)}. Was this "
                "state made by another transform's init?"
            )
        first, second, third = state
        updates, first = self._preprocessed(updates, first, params, extra)
        updates, second = call_update(self.aggregator, updates, second, params, extra)
        if self.aggregator_has_aux:
            updates, more = self._with_aux(updates)
            extra = extra | more
        ready = tree.get(second, "ready")
        if ready is None:
            updates, third = call_update(self.postprocessor, updates, third, params, extra)
        else:
            flags = agreed_flags(self.postprocessor, (ready,), updates, third, params, extra)
            updates, third = update_when(
                self, self.postprocessor, flags[0], updates, third, params, extra, zeros=True
            )
        return updates, (first, second, third)

    def _preprocessed(
        self, updates: Updates, state: OptState, params: Params | None, extra: dict[str, Any]
    ) -> tuple[Updates, OptState]:
        """Run the preprocessor; without the parameters, of other shapes, where it needs none."""
        if isinstance(self.preprocessor, identity):
            return updates, state
        ours = all(hasattr(part, "registered_name") for part in all_parts(self.preprocessor))
        needs = any(getattr(part, "needs_params", False) for part in all_parts(self.preprocessor))
        hidden = isinstance(self.aggregator, Aggregator) and ours and not needs
        return call_update(self.preprocessor, updates, state, None if hidden else params, extra)

    def _with_aux(self, pair: Any) -> tuple[Updates, dict[str, Any]]:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], dict):
            raise TypeError(
                f"process: {name_of(self.aggregator)} must return a pair of updates and a dict of "
                "extra arguments, because aggregator_has_aux=True."
            )
        return pair


@transform
class processed(_Process):
    """A preprocessor, an accumulator and an optimizer in order, as `process` returns them.

    Args:
      preprocessor: see `process`.
      aggregator: see `process`.
      postprocessor: see `process`.
      aggregator_has_aux: see `process`.
    """

    preprocessor: Any
    aggregator: Any
    postprocessor: Any
    aggregator_has_aux: bool = False


@transform
class processed_per_element(Aggregator, _Process):
    """A preprocessor, an aggregator and an optimizer in order, as `process` returns them.

    Args:
      preprocessor: see `process`.
      aggregator: see `process`.
      postprocessor: see `process`.
      aggregator_has_aux: see `process`.
    """

    preprocessor: Any
    aggregator: Any
    postprocessor: Any
    aggregator_has_aux: bool = False

"""Keras's functions of gradients: they take and return pairs of a gradient and its variable."""

from collections.abc import Callable
from typing import Any

import jax

from gradxform.base import EmptyState, Transform, transform
from gradxform.errors import name_of, shown
from gradxform.leaves import flatten_with_names
from gradxform.leaves.states import check_state
from gradxform.types import Params, Updates
from gradxform.values import Value
from gradxform.values.fields import value


@value
class of_pairs(Value):
    """Make a function of pairs a function of a tree, for `stateless`.

    The function gets a list of pairs `(gradient, path)`, where Keras has `(gradient, variable)`;
    the path is a string such as `encoder/kernel`. Gradients that are None are left out. It returns
    pairs with the same paths, in any order, and gradients of the same shapes.

    Args:
      function: the function of pairs.
      keyword: the argument of Keras that it is, for messages.
    """

    function: Callable[..., Any]
    keyword: str = "gradient_transformers"

    never_schedule = True

    def __call__(self, updates: Updates, params: Params | None = None) -> Updates:
        """Return the updates that the function makes.

        Raises:
          ValueError: if it returns other paths or shapes.
          TypeError: if it does not return pairs.
        """
        named, treedef = flatten_with_names(updates)
        pairs = [(g, "/".join(path)) for path, g in named]
        answer = self.function(list(pairs))
        title = f"{self.keyword}: {name_of(self.function)}"
        if not isinstance(answer, list | tuple) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], str)
            for pair in answer
        ):
            raise TypeError(
                f"{title} must return a list of pairs (gradient, path), got {shown(answer)}."
            )
        by_path = {path: g for g, path in answer}
        known = [path for _, path in pairs]
        if sorted(path for _, path in answer) != sorted(known):
            raise ValueError(
                f"{title} must return the paths that it was given, {', '.join(known)}, got "
                f"{', '.join(path for _, path in answer) or 'none'}."
            )
        for g, path in pairs:
            if getattr(by_path[path], "shape", None) != g.shape:
                raise ValueError(
                    f"{title} must return a gradient of shape {g.shape} for {path}, got "
                    f"{shown(by_path[path])}."
                )
        return jax.tree.unflatten(treedef, [by_path[path] for path in known])


@transform
class aggregate_pairs(Transform):
    """Aggregate gradients by a function of pairs, unless the caller has done so.

    The extra argument `experimental_aggregate_gradients=False` of `update` leaves the gradients as
    they are, as that of Keras's `apply_gradients` does.

    Args:
      function: gets and returns a list of pairs `(gradient, path)`.

    Raises:
      TypeError: at update, if `experimental_aggregate_gradients` is not True or False, or the
        function does not return pairs.
      ValueError: at update, if it returns other paths or shapes.

    Reference: `gradient_aggregator` of `tf.keras.optimizers`.
    """

    function: Callable[..., Any]

    locality = "tree"

    def init(self, params: Params) -> Any:
        """Return the empty state."""
        return EmptyState()

    def update(
        self,
        updates: Updates,
        state: Any,
        params: Params | None = None,
        *,
        experimental_aggregate_gradients: bool = True,
        **extra: Any,
    ) -> tuple[Updates, Any]:
        """Return the updates that the function makes."""
        state = check_state(self, state, EmptyState)
        if not isinstance(experimental_aggregate_gradients, bool):
            raise TypeError(
                f"{name_of(self)}: experimental_aggregate_gradients must be True or False, got "
                f"{shown(experimental_aggregate_gradients)}."
            )
        if not experimental_aggregate_gradients:
            return updates, state
        return of_pairs(self.function, "gradient_aggregator")(updates, params), state

"""The trees in a state to evaluate in the place of the parameters, as `eval_params` reads them."""

from collections.abc import Callable
from typing import Any

from gradxform.transforms.tree_rules import copied_params
from gradxform.types import Params, PyTree

__all__ = []


def eval_methods_of(field: str) -> tuple[Callable[..., dict[str, PyTree]], Callable[..., Any]]:
    """Return the methods `evaluated` and `exchanged` of a state with one tree to evaluate.

    Args:
      field: the field with the tree, or with None where there is nothing to evaluate.
    """

    def evaluated(state: Any, params: Params | None) -> dict[str, PyTree]:
        """Return the tree by the name of its field."""
        tree = getattr(state, field)
        return {} if tree is None else {field: tree}

    def exchanged(state: Any, name: str, params: Params) -> Any:
        """Return the state with `params` in the place of the tree."""
        return state._replace(**{field: copied_params(params)})

    return evaluated, exchanged

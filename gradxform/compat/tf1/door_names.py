"""The names that a factory of TensorFlow 1 is given for its variables."""

import functools
from collections.abc import Callable, Collection
from typing import Any, ParamSpec

from gradxform._names.deferred import signature_of
from gradxform.compat.called_numbers import called_numbers, with_called_numbers
from gradxform.compat.tf1.names import usual_name
from gradxform.wrappers.compose import chain
from gradxform.wrappers.variable_names import check_variable_name, variable_names

P = ParamSpec("P")
Factory = Callable[P, chain]


def remembers_names(
    class_name: str | None = None, of_step: Collection[str] = ()
) -> Callable[[Factory[P]], Factory[P]]:
    """Return a decorator of factories, whose optimizers then know the names that they were given.

    The names are kept by `variable_names`; those that a checkpoint would have anyway add no part.

    Args:
      class_name: the name of the original class, which a `name` of None stands for. By default
        None stands for the argument's default.
      of_step: the numbers of which the original calls a function with the step, where it can be.
    """

    def decorator(factory: Factory[P]) -> Factory[P]:
        signature = signature_of(factory)
        title: Any = getattr(factory, "__name__", "")
        default = signature.parameters["name"].default or class_name

        @functools.wraps(factory)
        def named(*args: P.args, **kwargs: P.kwargs) -> Any:
            tx = with_called_numbers(factory, named, args, kwargs, signature, of_step)
            if isinstance(tx, called_numbers):  # the call with its numbers comes back here
                return tx
            bound = signature.bind(*args, **kwargs)
            names = {
                k: bound.arguments.get(k)
                for k in ("name", "accum_name", "linear_name")
                if k in signature.parameters
            }
            for field, name in names.items():
                check_variable_name(title, field, name)
            name = names.pop("name") or default
            names["slot_name"] = None if name == (usual_name(tx) or default) else name
            new: dict[str, Any] = {k: x for k, x in names.items() if x is not None}
            return chain(variable_names(tx, **new)) if new else tx

        return named

    return decorator

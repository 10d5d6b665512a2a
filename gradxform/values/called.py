"""Numbers as functions without arguments: `learning_rate=lambda: 0.1`, as TensorFlow has them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradxform._jax.versions import is_tracing
from gradxform.errors import TracedCallError
from gradxform.values.content import parts_of, with_parts
from gradxform.values.value import printed


@dataclass(frozen=True, repr=False)
class Called:
    """A schedule that ignores the count, and calls a function without arguments at each update.

    Args:
      function: returns a real number.
    """

    function: Callable[[], Any]

    def __call__(self, count: Any) -> Any:
        """Return the function's number of this moment.

        Raises:
          TracedCallError: under `jax.jit`, which would keep the number of its first call for ever.
        """
        if is_tracing():
            raise TracedCallError(
                f"the function {printed(self.function)} without arguments cannot be called under "
                "jax.jit, which would keep its first number. Use inject_hyperparams and set the "
                "number in the state, or a make_step or Optimizer outside of jax.jit."
            )
        return self.function()

    def __repr__(self) -> str:
        return printed(self.function)


def number_or_called(x: Any) -> Any:
    """Return a function without arguments as a `Called`, and anything else as it is."""
    return Called(x) if callable(x) and _takes_nothing(x) else x


def _takes_nothing(x: Any) -> bool:
    """Whether a function can be called without arguments, and not with a count."""
    try:
        signature = inspect.signature(x)
        signature.bind()
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None)
    except TypeError:
        return True
    return False


def replace_called(x: Any, new: Callable[[Called], Any]) -> Any:
    """Return a value with `new(called)` in place of every `Called` in it, at any depth."""
    if isinstance(x, Called):
        return new(x)
    parts = parts_of(x)
    if parts is None:
        return x
    replaced = [replace_called(part, new) for part in parts]
    same = all(a is b for a, b in zip(replaced, parts, strict=True))
    return x if same else with_parts(x, replaced)


def has_called(x: Any) -> bool:
    """Whether there is any `Called` in a value."""
    return replace_called(x, lambda called: None) is not x

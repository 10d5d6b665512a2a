"""Numbers as functions without arguments: `learning_rate=lambda: 0.1`, as TensorFlow has them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradxform._jax.versions import is_tracing
from gradxform._names.deferred import signature_of
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


def number_or_called(x: Any, or_schedule: bool = True) -> Any:
    """Return a function without arguments as a `Called`, and anything else as it is.

    Args:
      x: anything.
      or_schedule: whether a function that can also be called with a count is a schedule.
    """
    if not callable(x) or isinstance(x, Called) or not _can_be_called(x):
        return x
    return x if or_schedule and _can_be_called(x, None) else Called(x)


def _can_be_called(x: Any, *args: Any) -> bool:
    """Whether the signature of a function allows these arguments."""
    try:
        signature_of(x).bind(*args)
    except (TypeError, ValueError):
        return False
    return True


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
